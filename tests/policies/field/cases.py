"""All rows of the field cases, and what of the originals' tests is left out.

Left out, by file, with the reason (kube-batch first, then Volcano; the paths are those of their repositories):

- `pkg/scheduler/plugins/gang/gang_test.go` (kube-batch): states of a job's record, no cluster.
- `test/e2e/predicates.go`, `test/e2e/nodeorder.go` (kube-batch), pod affinity: affinity between pods is not read.
- `actions/allocate/allocate_test.go`, network topologies, volumes, sub-jobs: no topology of networks, no volumes.
- `actions/allocate/dequeue_strategy_test.go`, `allocate_priority_fifo_test.go`, strict FIFO: queues that one job blocks
  are no feature here.
- `actions/allocate/allocate_shard_test.go`, `backfill/backfill_shard_test.go`, `preempt/preempt_shard_test.go`,
  `reclaim/reclaim_shard_test.go`: one allocator sees all nodes.
- `actions/allocate/recorder_test.go`, `placement_test.go`, `placement_session_test.go`, `dry_run_placement_test.go`:
  inner records of the session.
- `actions/backfill/backfill_test.go`, `backfill_nil_node_test.go`: the order of a list of tasks, and errors of plugins.
- `actions/preempt/preempt_test.go`, preemption policy Never, affinity between pods, gangs tied to one zone: not read;
  scores as fractions: inner.
- `actions/reclaim/reclaim_test.go`, queue priorities, preemption policy Never and closed queues: queues have neither
  priorities nor states.
- `actions/reclaim/reclaim_victim_test.go`, `topology_aware_test.go`: predicates on records; which nodes are sampled.
- `actions/gangpreempt`, `actions/gangreclaim`, arguments, domains and bundles: inner; victims by a plugin that agrees
  to everything: no shares are asked; `planning_test.go`: network topologies.
- `actions/gangreclaim/gangreclaim_fairness_test.go`, without a plugin of shares: queues here always have shares.
- `actions/enqueue`, `actions/dequeue`, `actions/decorate`, `actions/elect`, `actions/reserve`, `actions/shuffle`,
  `actions/garantee`, `actions/utils`: admission of groups before their pods exist, rescheduling, and helpers.
- `plugins/proportion/proportion_test.go`, pod-deallocate, realcapability-test: metrics, and affinity between pods;
  closed queues and queue priorities: as above.
- `plugins/capacity/capacity_test.go`, case4 and closed queues: queue priorities and states; shares of records: inner.
- `plugins/capacity/capacity_reserved_test.go`, `capacity_dra_test.go`: scheduling gates, dynamic resource claims.
- `plugins/gang/gang_test.go`: conditions in the status of a group.
- `plugins/predicates/predicates_test.go`, anti-affinity, claims and which plugins are made: not read, or inner.
- `plugins/tdm`, `numaaware`, `deviceshare`, `extender`, `nodegroup`, `network-topology-aware`, `resource-strategy-fit`,
  `rescheduling`, `sla`, `usage`, `task-topology`, `ascend-volcano-plugin`: features that diflow has not.
- `test/e2e/gangevict/gangevict.go`, GR-5: queues that nobody may reclaim from; topologies and sub-groups: as above.
- `test/e2e/schedulingaction/reclaim.go`, Case 3: a pod deleted by hand; `preempt.go`, `allocate.go`, groups that are
  pending: admission of groups; anti-affinity and scheduling gates: not read.
- `test/e2e/schedulingaction/fairshare.go`: shares by what was used in the past.
- `test/e2e/schedulingbase/job_scheduling.go`, shares of namespaces: queues are what shares; binpack and jobs of
  `batch/v1`: nothing of this module.
"""

from __future__ import annotations

from tests.policies.field import cases_kube_batch, cases_volcano_actions, cases_volcano_e2e, cases_volcano_queues
from tests.policies.field.rows import Case

CASES: tuple[Case, ...] = (
    *cases_kube_batch.ACTIONS,
    *cases_kube_batch.JOBS,
    *cases_kube_batch.NODES,
    *cases_kube_batch.ISSUES,
    *cases_volcano_actions.ALLOCATE,
    *cases_volcano_actions.PREEMPT,
    *cases_volcano_actions.RECLAIM,
    *cases_volcano_actions.NODES,
    *cases_volcano_queues.PROPORTION,
    *cases_volcano_queues.CAPACITY,
    *cases_volcano_queues.HIERARCHY,
    *cases_volcano_queues.HDRF,
    *cases_volcano_e2e.PREEMPT,
    *cases_volcano_e2e.RECLAIM,
    *cases_volcano_e2e.GANG,
    *cases_volcano_e2e.SHARES,
)
