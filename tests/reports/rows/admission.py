"""What admission adds to pods, and refuses of them."""

from __future__ import annotations

from tests.reports.table import Kind, Row

_REFUSED = "test_admission.py::test_a_gang_whose_pods_are_refused_waits_with_the_words_and_uses_nothing"
_MESH = "kubeflow/website#2011, mpi-operator#480"

KINDS = (
    Kind(
        "What admission adds",
        "Webhooks, runtime classes and LimitRanges change a pod when it is made, and the allocator knew its template "
        "alone.",
        (
            Row(
                "kueue#170, kuberay#1914, AKS#1449, aibrix#909",
                "GPU nodes are tainted, and admission adds the toleration",
                "waits beside 16 free GPUs; the taint is named nowhere",
                "starts at once",
                "test_admission.py::test_a_toleration_that_admission_adds_opens_tainted_nodes",
            ),
            Row(
                _MESH,
                "a mesh adds 100m to each pod; 4 workers of 4 CPUs, 4 nodes of 8",
                "starts with 2, complete after 36 s",
                "one on each node, at once",
                "test_admission.py::test_a_sidecar_of_a_mesh_is_counted_before_the_gang_starts",
            ),
            Row(
                "the same",
                "2 nodes",
                "2 of 4 run and hold both nodes",
                "the gang waits whole, and others start",
                "test_admission.py::test_a_gang_that_fits_only_without_the_sidecars_waits_whole",
            ),
            Row(
                "overhead of a RuntimeClass",
                "the overhead fills the node with one pod",
                "not counted",
                "counted",
                "test_admission.py::test_the_overhead_of_a_runtime_class_is_counted",
            ),
            Row(
                "a node selector of a RuntimeClass",
                "one of two nodes has the label",
                "sent to the other one, and back",
                "started where the label is",
                "test_admission.py::test_a_node_selector_that_admission_adds_is_followed",
            ),
        ),
    ),
    Kind(
        "What admission refuses",
        "The pods of a gang were refused one by one after it had got its places, and that used up backoffLimit.",
        (
            Row(
                "kubeflow/pipelines#3594, argo#1096 and others",
                "pod security, a class or an account that does not exist, a LimitRange",
                "places are taken, pods are refused, and the job fails",
                "waits without pods, with the words of the API server; starts when it may",
                _REFUSED,
            ),
            Row(
                "argo#1913, #3645",
                "a quota has room for 2 of 4 pods",
                "2 run for 300 s, and are given back",
                "none starts while the quota cannot hold all; the quota is named",
                "test_quotas.py::test_a_quota_with_room_for_part_of_a_gang_starts_none_of_it",
            ),
            Row(
                "the same",
                "two gangs, and room for one of them",
                "both start in part",
                "one after the other",
                "test_quotas.py::test_of_two_gangs_that_fit_alone_one_starts_at_a_time",
            ),
            Row(
                "deployKF#228, argo#6424, #1096",
                "pods are refused when they are made",
                "each refusal uses one of backoffLimit",
                "nothing is counted",
                "test_admission.py::test_refusals_of_real_pods_use_nothing_of_the_backoff_limit",
            ),
            Row(
                "kueue#74, #3897, instaslice#82",
                "the scheduling gate of another controller stays on the pods",
                "the place is given back after 300 s, again and again; the gate is not named",
                "named; the gang starts whole when it is gone",
                "test_admission.py::"
                "test_a_gate_of_another_controller_is_named_and_its_gang_starts_whole_when_it_is_gone",
            ),
            Row(
                "a webhook that does not answer",
                "it is about the pods of one job",
                "not tried",
                "this job waits alone",
                "test_admission.py::test_a_webhook_that_never_answers_holds_its_job_alone",
            ),
        ),
    ),
)
