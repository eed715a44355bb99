"""DIJobs as Kubernetes objects: the controller that gives each of them a Workflow, and its status.

    crd            the CustomResourceDefinition, generated from the models; schemas and crd_v1alpha1 are parts of it
    objects        a DIJob object as it is read: the job, or why it cannot run
    statuses       the `status` of an object, from its Workflow and pods
    requests       changes of the spec and of status.replicas, as scale requests for the Workflow
    modules        which pods of a v1alpha1 job are not wanted any more
    workqueue      which jobs are looked at next
    caches         the watches
    reconcile      one look at one job
    coordinated    the part of a look that a v1alpha1 job needs besides
    prerequisites  what the namespace of a job needs, kept for some seconds
    writes         the writes of a look
    telemetry      metrics and probes
    settings       the settings
    daemon         the loop: watches, queue and looks
    process        the process

Its state is in the cluster: the DIJob's status says what it last reported, and annotations of the Workflow which
requests it has carried out. It writes the Workflow only to create it and to carry out a request.
"""
