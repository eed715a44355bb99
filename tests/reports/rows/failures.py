"""Failures that say nothing of the program, and gangs that are not whole."""

from __future__ import annotations

from tests.reports.table import Kind, Row

KINDS = (
    Kind(
        "Failures that say nothing of the program",
        "What a node or a peer did was judged as an error of the program, and tried again in the same way.",
        (
            Row(
                "nvidia-container-toolkit#237, microsoft/pai#4344",
                "StartError on one node with a broken driver, two good ones are free",
                "the same node 4 times in 18 s, Failed",
                "elsewhere the next time",
                "test_failures.py::test_a_replica_that_cannot_be_started_on_a_node_is_elsewhere_next_time",
            ),
            Row(
                "the same",
                "a kubelet that cannot allocate a device",
                "the same node, again and again",
                "elsewhere the next time, not counted",
                "test_failures.py::test_a_kubelet_that_cannot_give_a_device_is_left_and_not_counted",
            ),
            Row(
                "pytorch-operator#125, #258, #333, dlrover#1175",
                "rank 0 pulls its image for 10 minutes, the others give up after 60 s with exit 1",
                "4 counted failures in 126 s, stopped although rank 0 never began",
                "not counted, and started again when rank 0 has begun",
                "test_failures.py::test_what_fails_while_a_member_has_not_begun_does_not_count",
            ),
            Row(
                "kubeflow/common#167, trainer#2045",
                "exit 137 without OOM, always; preemptible",
                "98 rounds in 1 h without a pause",
                "a pause that is twice as long each time, and nodes that are free meanwhile",
                "test_failures.py::test_a_preemptible_job_that_is_killed_each_time_pauses_longer_each_time",
            ),
        ),
    ),
    Kind(
        "Gangs that are not whole",
        "Replicas that wait for one that cannot come kept their places for ever.",
        (
            Row(
                "kueue#2732, #13502, #14811",
                "a gang of 4 loses a node for good, a job of 2 waits",
                "3 idle replicas are kept for ever",
                "after `INCOMPLETE_SECONDS` the gang goes back to its queue as a whole, with the reason",
                "test_failures.py::test_a_gang_that_loses_a_node_for_good_goes_back_to_its_queue_whole",
            ),
        ),
    ),
)
