"""DIJobs as Kubernetes objects: the controller that gives each of them a Workflow, and its status.

    crd            the CustomResourceDefinition, generated from the models; schemas has parts of it
    statuses       the `status` of an object, from its Workflow and pods
    requests       what an object asks of its Workflow: to stop, or other replicas
    forms          other forms of an object than one with tasks
    workqueue      which jobs are looked at next
    caches         the watches, and what one look reads of them
    reconcile      one look at one job
    writes         the writes of a look
    telemetry      metrics and probes
    settings       the settings
    daemon         the loop: watches, queue and looks
    process        the process

Its state is in the cluster: the DIJob's status says what it last reported, and annotations of the Workflow which
requests it has carried out. It writes the Workflow only to create it and to carry out a request.
"""
