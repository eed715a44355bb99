"""The state of a job: the one reader and writer of the parameters, labels and annotations of its Workflow.

Everything in a Workflow is a user's text until it is proven: `kubectl edit` reaches all of it. So the CLI, the
allocator, the server and its page read a Workflow through this package and nowhere else. Each reader gets the same
answer, no reader raises, and what does not hold is one sentence about this one job (`JobState.problem`).

    memo         what was read from a text, remembered in a bounded number of bytes
    untrusted    JSON that anybody may have written: bounded in bytes, depth and numbers
    parameters   JobState.parse(workflow): what is asked for, granted and noted
    allocation   a node for each replica, as the allocator wrote it
    nodes        the nodes of Argo's tree, typed and bounded
    tree         what these nodes say of each replica, and how often the job was restarted and rescheduled
    failures     which ends of a pod count against backoffLimit
    observe      what a Workflow and its nodes say of the job's replicas, rounds and pods in trouble
    status       the DIJob's status, made of that
    timeline     the phases that the job went through, and when
    messages     the sentence of a status
    advice       what Kubernetes and Argo write of a pod in trouble, in a short line that says what to do
    roster       the ranks and hosts of the replicas, for given numbers of them
    reports      what a job reports of its speed and progress
    perfmodel    the performance model of AdaptDL's clients, for one job at one place
    notes        what the server notes about requests that it carried out
    chain        a job that goes on in another Workflow
    patches      the merge patches that change any of this

It knows nothing of a cluster, and it imports neither Hera nor pydantic, because `diflow list` runs it over a thousand
Workflows.
"""
