"""DIJobs as Kubernetes objects: the controller that gives each of them a Workflow, and its status.

    crd          the CustomResourceDefinition, generated from the models
    objects      a DIJob object as it is read: the job, or why it cannot run
    statuses     the `status` of an object, from its Workflow and pods
    requests     changes of the spec and of status.replicas, as scale requests for the Workflow
    workqueue    which jobs are looked at next
    caches       the watches
    reconcile    one look at one job
    telemetry    metrics and probes
    settings     the settings
    process      the process

Its state is in the cluster: the DIJob's status says what it last reported, and annotations of the Workflow which
requests it has carried out. It writes the Workflow only to create it and to carry out a request.
"""
