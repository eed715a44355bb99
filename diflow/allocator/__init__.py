"""The allocator: which replicas of which jobs run on which nodes.

    run        the process: its parts (`wiring`), its loop (`daemon`), leadership, timers, journal, metrics
    watch      what it sees: objects as records, and the cluster state of one moment
    reconcile  from a job's Workflow and pods to the next writes
    plan       from the cluster state to a snapshot, a plan, and its writes
    write      the writes as plain values, and their one sender
    remember   what outlives a job: the record of ended jobs, and the memory of applications
    inspect    what people ask: queues, jobs and nodes as rows, why a job waits, what a new job would change

These are pure:

    model      what a policy is given and what it returns: snapshots, plans, and the reasons of decisions
    policies   who gets what: `fit`, `fair`, `goodput` and their parts
    reasons    what a plan and its reasons say to people
    health     which replicas are silent, stalled or slow

`settings`, `gpu_pools` and `signature` are for all of them.
"""
