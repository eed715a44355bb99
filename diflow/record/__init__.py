"""The record of a job: the one reader and writer of the parameters, labels and annotations of its Workflow.

Users can edit all of a Workflow, so nothing in it is trusted. The CLI, the allocator, the server and its page ask the
record that is made here: all get the same result, no reader raises, and an invalid Workflow yields one sentence about
this job (`JobRecord.problem`).

    job            record_of(workflow): the one record of a job, in groups by who wrote what
    pod, node      the records of a pod and of a node; dijob: that of a DIJob object
    identity       which object a record is of
    untrusted      parsers for JSON, numbers and times, bounded in bytes, depth and digits; types: those of records
    parameters     the parameters and annotations that a record is made of, and what follows if they are invalid
    live           the rounds and the replicas that are granted
    allocation     the node of each replica, as the allocator wrote it; exclusions: the nodes that are left out
    chain          a job that continues in another Workflow
    side_by_side   jobs whose rounds run side by side
    waiting        a gang that waits, from the metadata of its Workflow alone
    stage          where a job is in its life
    roster         the ranks and hosts of the replicas, for given replica counts
    reports        what a job reports; perfmodel: the model of AdaptDL's clients
    signals        when each replica was heard of; health: which ones are silent, stalled or slow
    nodecheck      the results of the node check
    overstay       how long a pod may run on after its job was ended
    patches        the merge patches that change any of this
    requests/      ranges: the replicas that are requested of each task; changes: other numbers or bounds of them;
                   notes: what the server records about the requests that it carried out; retrying: what a job
                   forgets when it is retried
    argo/          nodes: Argo's, typed and bounded; tree: the phase of each replica in them, restarts and reschedules;
                   failures: what follows when a pod fails
    status/        observe: the replicas, rounds and pod problems that a Workflow and its pods show; status: the DIJob's
                   status, derived from that; messages, advice: the sentence about a job; timeline: its phases so far;
                   followed: what followed its failures; row: what all views show of a job alike
    namespace/     the records of a namespace, in ConfigMaps: ended jobs, the memory of applications, and the
                   ledgers of data shards

It does not access the cluster, and it imports neither Hera nor pydantic, because `diflow list` runs it on a thousand
Workflows.
"""
