"""The allocator at work, from what it watches to what it writes.

caches         records, cluster_state, cluster_view: the objects as they are read, and the state of one moment;
               reports, queues, access, pools, node_pools, missing_nodes: parts of it
job            a job: its Workflow with its pods
planning       planner → standing, picture → guard (the policy and the validator) → plan_writes → sequence;
               promises, isolation, priors: places that were not used, faulty jobs, the memory of applications
reconciliation reconciler → reconcile: admission, rounds, hand_over, failing, node_checks, pending, unbound_pods;
               free_capacity
health         health, with health_inputs and health_texts: replicas that are silent, stalled or slow
writes         patches → executor, seal
beside it      takeover, problems, cordons, ended_jobs, applications and lessons, namespace_records
process        process → daemon: triggers, timers, lease_requests; control_channel, settings, telemetry, journal,
               once
"""
