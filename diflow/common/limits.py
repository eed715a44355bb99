"""The limits of a job, shared by the model, the CLI, the allocator and the server.

A job beyond a limit is rejected or held with one sentence, before anything is built of it. docs/limits.md lists all.
"""

from __future__ import annotations

from typing import Final

MOST_REPLICAS: Final = 2_000
"""Of a job: the sum over its tasks, each with its `maxReplicas` if set. The five nodes of a replica take about 260
bytes of a Workflow's compressed status, and Argo ends a Workflow of more than 1 MiB with an error: half of that is for
the replicas, half for the rendered spec."""

MOST_HOST_BYTES: Final = 131_000
"""Of the names of all hosts of a job, comma-joined: Linux limits an environment variable (DI_NODES) to 131,072 bytes,
including its name."""

MOST_POD_BYTES: Final = 768 * 1024
"""Of the lists of each task's hosts in a pod, which each of its containers has twice: etcd limits an object to 1.5 MiB,
and Argo keeps the pod's template in a ConfigMap of at most 1 MiB."""

MOST_FULL_HOSTS: Final = 256
"""Replicas of a job whose hosts are listed with their domain, and for each task as well: each pod has the list twice,
as Argo keeps a copy of the pod's template in it."""

MOST_TASKS: Final = 40
"""Each adds about 7 kB to the Workflow (tests/workflows/test_render.py)."""

MOST_CONTAINERS: Final = 16
"""Of one task, init containers included."""

MOST_RESOURCES: Final = 16
"""Distinct resources that a job's containers request: each is a column of the allocator's tables."""

MOST_PORTS: Final = 128
"""Of all containers of a job: each host port is a column of the allocator's tables."""

MOST_PARALLEL_WORKERS: Final = 128
"""Of `engineFields`: each worker of a replica has a port and an id of its own in the variables of `ditask`."""

MOST_POD_RESOURCES: Final = 64
"""Distinct resources that the allocator counts of any pod, of a job or not: cpu, memory and storage first. A pod is
bound only to a node that has all resources that it requests, and no node has so many."""

MOST_CONDITIONS: Final = 128
"""Labels, values and tolerations in one task's node selection: each is compared with every node."""

MOST_PORT_COLUMNS: Final = 64
"""Distinct host ports of all jobs with their own column in the allocator's tables. With more, ports share columns: two
ports of one column are never placed on one node."""

MOST_MOVES: Final = 10**9
"""Of a job's reallocations, as read from its annotation: fits every array."""

MOST_COUNT: Final = 10**6
"""Replicas of one task in the allocator's arrays, regardless of its job's limits: their sums stay exact."""

MOST_MANIFEST_BYTES: Final = 64 * 1024
"""Of the DIJob as JSON, which is an annotation of the Workflow: all annotations of an object are limited to 256 KiB,
including the allocator's."""

MOST_METADATA_BYTES: Final = 32 * 1024
"""Of the user's own labels and annotations of a job, names and values."""

MOST_WORKFLOW_BYTES: Final = 512 * 1024
"""Of a rendered Workflow as JSON. Argo ends a Workflow with an error when it is larger than 1 MiB with its status."""

MOST_BACKOFF_LIMIT: Final = 2**31 - 1
"""An int32, as in DI-orchestrator's own schema."""

LEAST_TTL_SECONDS: Final = 60
"""From a job's end to its deletion: `diflow wait` and the allocator's caches see the end before, and a watch that has
broken is resumed within 30 s."""

MOST_TTL_SECONDS: Final = 2**31 - 1
"""An int32, as in Argo's schema (68 years)."""

MOST_START_SECONDS: Final = 2**31 - 1
"""An int32, as the other times of a job."""

MOST_RUN_SECONDS: Final = 2**31 - 1
"""An int32, as the other times of a job."""

LEAST_PENDING_SECONDS: Final = 60
"""For which the pods of an admitted job may be pending: a large image takes as long."""
LONGEST_IMAGE: Final = 512
"""Characters of the image of a node check: a registry's name has 255 at most, a digest 71."""

MOST_COMMAND: Final = 64
"""Words of the command of a node check."""

MOST_CHECK_SECONDS: Final = 3600
"""Of a node check: longer than that, the check is the work."""

MOST_CHECK_MOVES: Final = 16
"""Times that a gang is placed again because of its node check: as many nodes can be left out for a job."""

MOST_RULES: Final = 20
"""Rules of a failure policy."""

MOST_CODES: Final = 255
"""Exit codes of such a rule."""

MOST_CODE: Final = 255
"""Linux has no larger exit codes."""

MOST_POD_CONDITIONS: Final = 20
"""Conditions of such a rule."""

LONGEST_QUANTITY: Final = 64
"""Characters of an amount, such as a task's `maxMemory`."""

LEAST_HEALTH_SECONDS: Final = 60
"""Of the deadlines in `health`: a server that was away for less than half of it is not noticed, and the clients' next
attempt follows within as long again."""

MOST_HEALTH_SECONDS: Final = 30 * 86_400
"""Of the deadlines in `health`: thirty days."""

MOST_HEALTH_RESTARTS: Final = 1_000
"""Restarts of a job by its `health`."""

LONGEST_CHECKPOINT_PATH: Final = 256
"""Characters of the folder of a monitor's checkpoints."""

MOST_ENDED_JOBS: Final = 1_000
"""Ended jobs in the record of a namespace, the last ones."""

MOST_ENDED_BYTES: Final = 384 * 1024
"""Of that record: a line has about 300 bytes. A ConfigMap has at most 1 MiB, and is written as a whole."""

MOST_APPLICATION_NAME: Final = 100
"""Characters of the name of an application."""

MOST_APPLICATIONS: Final = 100
"""Applications in the memory of a namespace, on each pool of nodes: those that were used last."""

MOST_APPLICATIONS_BYTES: Final = 256 * 1024
"""Of that memory: a line has at most about 3 kB. The allocator holds the memories of all namespaces."""

MOST_APPLICATION_SHAPES: Final = 48
"""Times of steps of an application: as many as its model is fitted to."""

MOST_APPLICATION_WORKS: Final = 16
"""Finished jobs of an application whose work is kept, the last ones: enough for a distribution."""

MOST_PARTS: Final = 999_999
"""Successive Workflows of a job: a new one each half minute for a year."""

MOST_FILE_BYTES: Final = 4 * 1024 * 1024
"""Of a file of manifests. An object in etcd has at most 1.5 MiB; a List of some hundred jobs is about 1 MiB."""

MOST_FILE_VALUES: Final = 100_000
"""In a file of manifests, counting each use of an alias. A DIJob has a few hundred; this many take a second."""

MOST_FILE_DEPTH: Final = 64
"""Nested lists and mappings in a file. The deepest field of a pod template is at level 16; the YAML library recurses in
C, and 100,000 levels would crash the process."""

# Of a node check.
MOST_PEERS: Final = 16
"""Peers of one replica in its list of those that it has not met, as many as it meets in a large gang."""
LONGEST_FAILURE: Final = 200
"""Characters of what a check of a node has found wrong."""
