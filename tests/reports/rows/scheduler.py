"""What kube-scheduler knows of pods, nodes and volumes, and taints that come later."""

from __future__ import annotations

from tests.reports.table import Kind, Row

_RULES = "test_scheduler.py::test_a_gang_obeys_its_rules_and_starts_at_once_in_one_round"
_BACK = "test_refused.py::test_a_gang_that_does_not_fit_goes_back_as_a_whole_and_pauses_longer_each_time"

KINDS = (
    Kind(
        "What kube-scheduler knows",
        "The allocator fixed each pod to a node by a model of its own. Where the model lacked a rule, kube-scheduler "
        "refused the pod, and another node was guessed: the gang started piecemeal, or never.",
        (
            Row(
                "mpi-operator#285, pytorch-operator#344",
                "required anti-affinity by host, 4 workers, 6 empty nodes",
                "all 4 sent to one node; complete after 196 s",
                "4 nodes, all at once",
                _RULES,
            ),
            Row("the same", "preemptible, 2 to 4", "never complete, a round each 35 s", "one round", _RULES),
            Row(
                "kubernetes#116978, karpenter-aws#6447",
                "topologySpreadConstraints by zone with DoNotSchedule, 4 workers",
                "complete after 68 s",
                "2 and 2 at once",
                "test_scheduler.py::test_a_spread_gang_is_two_and_two",
            ),
            Row(
                "volcano#778, pytorch-operator#353",
                "hostNetwork and a containerPort without hostPort",
                "3 on one node, complete after 68 s",
                "one on each node",
                _RULES,
            ),
            Row(
                "volumes with node affinity (zonal disks)",
                "a claim bound in the last of three zones, 12 nodes",
                "started one by one, complete after 228 s",
                "the zone of the volume",
                "test_volumes.py::test_a_gang_is_in_the_zone_of_its_volume",
            ),
            Row(
                "cloud-harness#249, tekton#2630, airflow-helm#51",
                "a ReadWriteOnce claim, 3 workers on 3 nodes",
                "1 runs, 2 stay ContainerCreating, nothing is said",
                "all on one node",
                "test_volumes.py::test_all_that_mount_a_claim_of_one_node_are_on_one",
            ),
            Row(
                "the same",
                "no node holds all of them",
                "as above",
                "the gang waits, and the claim is named",
                "test_volumes.py::test_a_gang_that_cannot_share_its_claim_waits_and_says_why",
            ),
            Row(
                "claims that come later",
                "a claim that does not exist, or is not bound and its class binds at once",
                "sent to a node, and kept there for 15 minutes",
                "waits alone, with the claim's name, and starts where its volume is",
                "test_volumes.py::test_a_gang_waits_alone_for_its_claim_and_is_where_its_volume_is",
            ),
            Row(
                "kueue#2941, KAI-Scheduler#1217, kubernetes#137617",
                "ResourceClaims, 2 devices on each node",
                "starts piecemeal; preemptible: endless rounds",
                "starts as a whole, where kube-scheduler chooses",
                "test_refused.py::test_a_gang_with_claims_of_devices_is_let_go_as_a_whole_and_starts_at_once",
            ),
            Row(
                "the same",
                "fewer devices than the gang needs",
                "as above",
                "all goes back after a minute, the job pauses, nothing is counted",
                _BACK,
            ),
            Row(
                "skypilot#2345",
                "any of these",
                'Event "kube-scheduler does not bind X to n0: placed again", then a false "grows to 4 replicas"',
                "kube-scheduler's own words",
                _BACK,
            ),
            Row(
                "an innocent job beside one that can never fit",
                "anti-affinity by host, 3 workers, 2 nodes",
                "waits 124 s on two empty nodes",
                "is not delayed",
                "test_scheduler.py::test_a_gang_that_its_rules_let_nowhere_says_which_and_delays_nobody",
            ),
            Row(
                "an innocent job beside one that is refused",
                "ResourceClaims that cannot be met",
                "waits, as its nodes are avoided",
                "is not delayed",
                "test_refused.py::test_others_do_not_wait_for_it",
            ),
        ),
    ),
    Kind(
        "Taints that come later",
        "A taint was seen only when kube-scheduler refused a pod, and an announced end not at all.",
        (
            Row(
                "karpenter#651, #3185, karpenter-aws#5786",
                "a node gets a NoSchedule taint, and its pods are evicted",
                "sent there again, back after 35 s; preemptible: 42 s and 3 rounds",
                "as for a cordon",
                "test_taints.py::test_a_taint_that_comes_later_is_as_a_cordon",
            ),
            Row(
                "the same",
                "a node announces its end by karpenter.sh/disrupted or another taint",
                "its replicas end with it",
                "they leave before it ends",
                "test_taints.py::test_a_node_that_announces_its_end_is_left_before_it_ends",
            ),
        ),
    ),
)
