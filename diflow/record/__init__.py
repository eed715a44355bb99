"""The record of a job: the one reader and writer of the parameters, labels and annotations of its Workflow.

Users can edit all of a Workflow, so nothing in it is trusted. The CLI, the allocator, the server and its page ask the
record that is made here: all get the same result, no reader raises, and an invalid Workflow yields one sentence about
this job (`JobRecord.problem`).

    untrusted    parsers for JSON, numbers and times, bounded in bytes, depth and digits
    identity     which object a record is of
    job          record_of(workflow): the one record of a job, in groups by who wrote what
    pod, node    the records of a pod and of a node
    parameters   the parameters and annotations that a record is made of, and what follows if they are invalid
    ranges       the replicas that are requested of each task
    allocation   the node of each replica, as the allocator wrote it
    nodes        the nodes of Argo's tree, typed and bounded
    tree         the phase of each replica in this tree, and the job's restarts and reschedules
    failures     which failures of a pod count against backoffLimit
    observe      the replicas, rounds and pod problems that a Workflow and its pods show
    status       the DIJob's status, derived from an observation
    timeline     the phases of a job so far, and when each began
    messages     the message of a status
    advice       a pod's error message in one line, with what to do about it
    roster       the ranks and hosts of the replicas, for given replica counts
    reports      the speed and progress that a job reports
    perfmodel    the performance model of AdaptDL's clients, for one job and one allocation
    notes        what the server records about the requests that it carried out
    chain        a job that continues in another Workflow
    patches      the merge patches that change any of this

It does not access the cluster, and it imports neither Hera nor pydantic, because `diflow list` runs it on a thousand
Workflows.
"""
