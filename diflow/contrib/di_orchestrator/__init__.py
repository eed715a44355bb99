"""DIJobs of DI-orchestrator v0.x (v1alpha1): a coordinator, which asks for collectors and learners by the REST API.

manifest     from a DIJob object to the job whose tasks are its modules, and the AggregatorConfig
workflow     that job as an Argo Workflow; expressions: what Argo evaluates in it
modules      the replicas that the coordinator has asked for, as the Workflow has them
routes       the routes that DI-engine's clients speak; changes: what a request changes; bodies: what is sent
looks        what the controller does for such a job; unwanted: the pods that are not wanted any more;
             statuses: the status of its object
crd          the version v1alpha1 of the kind DIJob, and the kind AggregatorConfig
settings     where the controller finds the template of aggregators
"""
