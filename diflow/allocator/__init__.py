"""The allocator: which replicas of which jobs run on which nodes.

model      what a policy is given and what it returns: snapshots, plans, and what follows from them alone
policies   who gets what: `fit`, `fair`, `goodput` and their parts. They are pure, as the model is
messages   the text of each reason, for people
engine     the process: caches → planning → reconcile → patches → executor
health     which replicas are silent, stalled or slow. Pure
inspect    what people ask: queues, jobs and nodes as rows, why a job waits, what a new job would change
simulator  policies on workloads, without a cluster
"""
