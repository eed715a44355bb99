"""Pools of nodes that an autoscaler makes."""

from __future__ import annotations

from tests.reports.table import Kind, Row

KINDS = (
    Kind(
        "Autoscaled pools",
        "A gang that waits has no pods, and its pods are sent to nodes: an autoscaler saw nothing of it.",
        (
            Row(
                "volcano#2558, #3804; kubernetes/community#6840",
                "a GPU pool with no node, a gang of GPUs",
                "no pod ever, can never start here",
                "all nodes are asked for at once, and the text says so",
                "test_autoscaled.py::test_a_gang_gets_its_nodes_from_a_pool_without_nodes_and_starts_all_at_once",
            ),
            Row(
                "volcano#3910, skypilot#9322",
                "a gang of 4 × 8 GPUs, 2 nodes exist",
                "the same, add nodes",
                "the other two nodes are asked for",
                "test_autoscaled.py::test_a_gang_for_which_some_nodes_exist_gets_the_others",
            ),
            Row(
                "pytorch/elastic#97",
                "elastic, 1 to 4, one node, the pool could grow",
                "runs with 1, and nothing says that 3 more are wanted",
                "a setting of the queue asks for what is desired, and an Event says it",
                "test_autoscaled.py::test_an_elastic_job_asks_for_its_minimum_or_by_a_setting_of_its_queue_for_what_it_desires",
            ),
            Row(
                "KAI-Scheduler#1615, volcano#4710",
                "jobs that the cap of their queue holds back",
                "no demand",
                "stays so",
                "test_autoscaled.py::test_a_job_that_its_queue_caps_asks_for_no_nodes",
            ),
        ),
    ),
)
