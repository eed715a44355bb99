"""The labels, annotations, parameters and fixed names that diflow writes or reads.

Not here: the annotation of Leases in `diflow/kube/leader_election.py`, as `diflow.kube` does not import this module,
and what only the probe of `diflow/labs/conformance` uses (`diflow/probe...`).

`diengine/...` are the keys that users of DI-orchestrator know; `diflow/...` are our own.
"""

from __future__ import annotations

from typing import Final

API_GROUP: Final = "diengine.opendilab.org"
API_VERSION: Final = f"{API_GROUP}/v2alpha1"
API_VERSION_1: Final = f"{API_GROUP}/v1alpha1"  # jobs with a coordinator
KIND: Final = "DIJob"

# Labels of the Workflow.
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY_VALUE: Final = "diflow"
MANAGED: Final = f"{MANAGED_BY}={MANAGED_BY_VALUE}"  # selects the Workflows of jobs
PRIORITY: Final = "diflow/priority"
PREEMPTIBLE: Final = "diflow/preemptible"
QUEUE: Final = "diflow/queue"
SCHEDULING: Final = "diflow/scheduling"
GRANTED: Final = "diflow/replicas"  # how many replicas are granted, of all tasks: a column of the Argo UI (allocator)
ADMITTED: Final = "diflow/admitted"  # "false" until the allocator has admitted a gang for the first time
# Which of Argo's controllers a Workflow belongs to: with this value none of them. Argo looks at once at a Workflow that
# it sees for the first time, but only some seconds later at one that has changed.
INSTANCE: Final = "workflows.argoproj.io/controller-instanceid"
INSTANCE_VALUE: Final = "diflow"
CHAIN: Final = "diflow/job"  # the name of a job with several Workflows, on all of them
PART: Final = "diflow/part"  # "2" for the second
RESUBMITTED: Final = "workflows.argoproj.io/resubmitted-from-workflow"  # of a copy that `argo resubmit` has made (Argo)
ARGO_PHASE: Final = "workflows.argoproj.io/phase"  # (Argo)
ARGO_COMPLETED: Final = "workflows.argoproj.io/completed"  # "true" of a Workflow that has ended (Argo)
NOT_COMPLETED: Final = f"{ARGO_COMPLETED}!=true"

# Argo's keys of pods: the label with the name of the Workflow, the annotations with the id and the name of the node.
ARGO_WORKFLOW: Final = "workflows.argoproj.io/workflow"
ARGO_NODE_ID: Final = "workflows.argoproj.io/node-id"
ARGO_NODE_NAME: Final = "workflows.argoproj.io/node-name"

# Annotations of the Workflow.
DIJOB: Final = "diflow/dijob"  # the DIJob as submitted, JSON
VERSION: Final = "diflow/version"  # the diflow that rendered it
ALLOCATION: Final = "diflow/allocation"  # JSON: a node for each replica of the current round (allocator)
PROOF: Final = "diflow/allocation-proof"  # the allocator's signature of that text (allocator)
POOL: Final = "diflow/node-pool"  # the pool of its nodes, on a cluster with several (allocator)
EXCLUDED: Final = "diflow/excluded-nodes"  # JSON: the nodes that are left out for this job (allocator)
CORDONED: Final = "diflow/cordoned"  # of a node, JSON {since, why}: why diflow has cordoned it (allocator)
NODE_CHECK: Final = "diflow/node-check"  # JSON: the results of the node check of the current round (server)
DECISION: Final = "diflow/decision"  # JSON {action, why, time}: the allocator's last decision on the job
HEALTH: Final = "diflow/health"  # JSON: which replicas are silent, have stopped or are slow (allocator)
RUN_TIME: Final = "diflow/run-time"  # JSON: how long the job and its tasks have run, if that is limited (allocator)
HELD: Final = "diflow/held"  # "true": its user suspended it, and not only the wait for its admission
REQUESTED: Final = (
    "diflow/requested"  # JSON {task: replicas}: the parameter `replicas`, of a gang scaled while it waits
)
BOUNDS: Final = "diflow/bounds"  # JSON {task: {min, max}}: requested since the submission
REQUESTS: Final = "diflow/requests"  # JSON: the replica requests that were carried out (server)
# JSON {spec, status}: the requests of its DIJob object that were carried out (controller)
CARRIED_OUT: Final = "diflow/carried-out"
STOPPED_BECAUSE: Final = "diflow/stopped-because"  # why the controller has stopped the job
MODULES: Final = "diflow/modules"  # JSON {module: port}: what a v1alpha1 job can have replicas of (controller)
EPOCH: Final = "diflow/epoch"  # which leader wrote last, as LEASE UID/EPOCH
# Carried over from the Workflow that this one continues, and of rounds that were replaced before Argo counted them.
RESTARTS_BEFORE: Final = "diflow/restarts-before"
ROUNDS_BEFORE: Final = "diflow/rounds-before"
HISTORY_BEFORE: Final = "diflow/history-before"  # JSON {started, phases}: the phases in earlier Workflows
SUBMITTED: Final = "diflow/submitted"  # when the job was submitted, of a Workflow that continues another
CONTINUES: Final = "diflow/continues"  # the Workflow that this one continues ...
CONTINUES_UID: Final = "diflow/continues-uid"  # ... and its uid
CONTINUED_IN: Final = "diflow/continued-in"  # the Workflow in which the job continues
TITLE: Final = "workflows.argoproj.io/title"
DESCRIPTION: Final = "workflows.argoproj.io/description"
DISPLAY_NAME: Final = "workflows.argoproj.io/display-name"  # of a template: the name of its node in the Argo UI

# Annotations that a user puts on a job.
ADAPTDL: Final = "diflow/adaptdl"  # "true": its containers get the variables of AdaptDL's clients
DITASK: Final = (
    "diflow/ditask"  # "<topology>/<parallel workers>": those of DI-engine's `ditask`, as DI-orchestrator v1.0
)
DLROVER: Final = "diflow/dlrover"  # "true": those of DLRover's trainers
RENDEZVOUS: Final = "diflow/rendezvous"  # "c10d": those of torchrun's c10d rendezvous, with a run id
APPLICATION: Final = "diflow/application"  # the application that it runs; jobs of one application scale alike

# The pod of a step of a Workflow that waits for the job: when it ends, the controller stops the job.
WAITED_BY: Final = "diflow/waited-by"
SENDS_TOKEN: Final = "diflow/sends-token"  # noqa: S105 ("false": its programs send no token, like DI-engine's)

# Labels of the pods.
JOB: Final = "diengine/job"
OPERATOR: Final = "diengine/operator"
OPERATOR_VALUE: Final = "diflow"
POD: Final = "diengine/pod"
TASK_TYPE: Final = "diengine/task-type"
TASK_NAME: Final = "diengine/task-name"
ROUND: Final = "diflow/round"

# The task of a job for whose missing nodes a pod stands, and the name of the scheduler of such a pod (allocator).
DEMAND: Final = "diflow/demand"
DEMAND_SCHEDULER: Final = "diflow-demand"

# A label of the pods of steps that wait for a DIJob (`diflow/workflows/steps.py`).
STEP: Final = "diflow/step"

# Labels of the pods of v1alpha1 jobs, as DI-orchestrator v0.2 has them.
GROUP_NAME: Final = "group-name"
DIJOB_NAME: Final = "dijob-name"
CONTROLLER_NAME: Final = "controller-name"
CONTROLLER_NAME_VALUE: Final = "di-operator"
REPLICA_TYPE: Final = "replica-type"
POD_NAME: Final = "pod-name"
DDP_LEARNER_TYPE: Final = "ddp-learner-type"

# Annotations of the pods.
REPLICAS: Final = "diengine/replicas"
RANK: Final = "diengine/rank"
TASK_RANK: Final = "diengine/task-rank"
NODE: Final = "diengine/node"
NODES: Final = "diflow/nodes"  # the hosts of all replicas as in DI_NODES, kept up to date in running pods

MEMORY: Final = "diflow/memory"  # MiB of the main container, of a job whose failurePolicy may give it more

# The roster: a downward API volume in every container, with the pod's annotations as files.
ROSTER_VOLUME: Final = "diflow"
ROSTER_FOLDER: Final = "/etc/diflow"
ROSTER_FILE: Final = "nodes"

# The token that identifies a pod's job to the REST API by its audience (`names.audience`).
IDENTITY_VOLUME: Final = "diflow-token"
IDENTITY_FOLDER: Final = "/var/run/secrets/diflow"
IDENTITY_FILE: Final = "token"
IDENTITY_AUDIENCE: Final = "diflow"
IDENTITY_SECONDS: Final = 3600  # its lifetime; the kubelet renews it after four fifths of that

# Workflow parameters: the live state of a job (design: "One job, one Workflow"). All are text.
PARAM_ROUNDS: Final = "rounds"  # JSON list of the rounds so far, append-only
PARAM_CURRENT: Final = "current"  # the current round
PARAM_GRANTED: Final = "granted"  # JSON {round: {task: replicas}}: the replicas that may run
# JSON {"round/task/index": suffix}: the incarnation of a replica that was dropped and came back
PARAM_INCARNATIONS: Final = "incarnations"
PARAM_RELEASED: Final = (
    "released"  # JSON list of members that diflow stops on purpose: "round/task/member", "round/restart"
)
PARAM_TASKS: Final = "tasks"  # JSON list of the tasks' names in the order of the ranks: never changes
# JSON {"until": seconds since 1970, "round/task/member/attempt/retry": node}: pods that are created without a gate
PARAM_PLACES: Final = "places"
PARAM_REPLICAS: Final = "replicas"  # JSON {task: replicas}: requested by the user
PARAM_PROFILINGS: Final = "profilings"  # JSON: the job's reports
PARAM_MEMORY: Final = "memory"  # JSON {task: MiB}: of the main containers of a job whose failurePolicy may raise it
PARAM_MODULES: Final = "modules"  # JSON: the replicas of a v1alpha1 job that its coordinator has asked for (server)

# Names of templates inside the Workflow that are not tasks of the user.
TEMPLATE_JOB: Final = "job"
TEMPLATE_ROUND: Final = "round"
TEMPLATE_GIVE_UP: Final = "give-up"
TEMPLATE_SUPERSEDED: Final = "superseded"

CHECK_CONTAINER: Final = "diflow-check"  # the init container of the node check
MONITOR_CONTAINER: Final = "diflow-monitor"  # the container of the monitor
MAIN_CONTAINER: Final = "di-container"
SERVICE: Final = "di"  # the headless Service of all jobs of a namespace: the subdomain of their pods
PORT_NAME: Final = "di-port"
PORT: Final = 22270
MASTER_PORT: Final = 29500  # torchrun's own default

HOSTNAME: Final = "kubernetes.io/hostname"  # the label of a node by which pods are sent there

WORKER_ACCOUNT: Final = "diflow-worker"
STEPS_ACCOUNT: Final = "diflow-steps"
SUBMIT_ACCOUNT: Final = "diflow-submit"  # of the steps of other Workflows that create DIJobs
GATE: Final = "diflow/gang"
AGGREGATOR_CONFIG: Final = "di-system/aggregator-config"  # the object with the template of aggregators, by default
ALLOCATOR: Final = "diflow-allocator"  # its service account, its name in events, and the ConfigMap below
ENDED_JOBS: Final = "diflow-ended"  # the ConfigMap of a namespace with the record of its ended jobs (allocator)
APPLICATIONS: Final = "diflow-applications"  # the ConfigMap with what its applications have shown (allocator)
CONTROLLER: Final = "diflow-controller"  # its Deployment, its service account, its Lease, and its name in events
SERVER: Final = "diflow-server"  # its Deployment, its Service, and its public ConfigMap
QUEUES: Final = "diflow-queues"  # the ConfigMap in its namespace in which the administrator defines the queues
QUEUES_FILE: Final = "queues.yaml"  # its key
PUBLIC_QUEUES: Final = "diflow-queue-names"  # the ConfigMap with as much of it as all users may read
RULES_LINES: Final = "rules"  # its key with the rules for namespaces, as manifests/admission reads them
PUBLIC_NAMESPACE: Final = "kube-public"  # all users may read that ConfigMap there, which announces the allocator
PRIORITY_CLASSES: Final = {"normal": "diflow-normal", "high": "diflow-high"}
WORKFLOW_PRIORITIES: Final = {"normal": 0, "high": 100}
PRIORITY_VALUES: Final = {"normal": 0, "high": 1000}  # those of the classes, of pods
HIGHEST_PRIORITY: Final = 2**31 - 1  # of pods

# Annotations of the allocator's Lease. Each Lease also has `WRITES_AS` of `diflow.kube.leader_election`.
PAUSED: Final = "diflow/paused"  # who paused it, when, why: it makes no new decisions while this is set
REPLAN: Final = "diflow/replan"  # a new value requests a plan of the whole cluster
POLICY: Final = "diflow/policy"  # the policy of the leader (allocator)
POOLS: Final = "diflow/pools"  # JSON: the node pools of the leader (allocator)


LABEL_LIMIT: Final = 63  # of a DNS label and of a label's value
