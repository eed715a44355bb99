"""How large a job may be: the numbers that the model, the CLI, the allocator and the server share.

What exceeds a bound is refused or held with one sentence, and nothing of it is built. docs/limits.md lists them all.
"""

from __future__ import annotations

from typing import Final

MOST_REPLICAS: Final = 2_000
"""Of a job in all: the sum over its tasks, each with its `maxReplicas` where it has some. The five nodes of a replica
take about 260 bytes of a Workflow's compressed status, and Argo ends a Workflow of more than 1 MiB with an error: half
of that is for the replicas, half for what is rendered."""

MOST_HOST_BYTES: Final = 131_000
"""Of the names of all hosts of a job, comma-joined: Linux starts no program with an environment variable (DI_NODES) of
more than 131,072 bytes, its name included."""

MOST_POD_BYTES: Final = 768 * 1024
"""Of the lists of hosts in a pod, which each of its containers is given twice: etcd takes no object above 1.5 MiB, and
Argo keeps the pod's template in a ConfigMap of at most 1 MiB."""

MOST_TASKS: Final = 40
"""Each adds about 7 kB to the Workflow (tests/workflows/test_render.py)."""

MOST_CONTAINERS: Final = 16
"""Of one task, init containers included."""

MOST_RESOURCES: Final = 16
"""Distinct resource names that a job's containers ask for: each is a column of the allocator's tables."""

MOST_PORTS: Final = 128
"""Of all containers of a job: each host port is a column of the allocator's tables."""

MOST_POD_RESOURCES: Final = 64
"""Distinct resource names that the allocator counts of any pod, of a job or not: cpu, memory and storage first. A pod
is only ever bound to a node that has all that it asks for, and no node has so many."""

MOST_CONDITIONS: Final = 128
"""Labels, values and tolerations that one task's pods name to choose nodes: each is compared with every node."""

MOST_PORT_COLUMNS: Final = 64
"""Distinct host ports of all jobs together that have a column each in the allocator's tables. With more of them, ports
share columns: two ports of one column are not put on one node."""

MOST_MOVES: Final = 10**9
"""How often a job was moved: a number that its own record cannot pass, and that no array is too narrow for."""

MOST_COUNT: Final = 10**6
"""Replicas of one task in the allocator's arrays, whatever the limits of its job are: sums of them stay exact."""

MOST_MANIFEST_BYTES: Final = 64 * 1024
"""Of the DIJob as JSON, which the Workflow carries as an annotation: all annotations of an object may have 256 KiB
together, and what the allocator writes needs room beside it."""

MOST_METADATA_BYTES: Final = 32 * 1024
"""Of the user's own labels and annotations of a job, names and values."""

MOST_WORKFLOW_BYTES: Final = 512 * 1024
"""Of a rendered Workflow as JSON. Argo ends a Workflow with an error when it is larger than 1 MiB with its status."""

MOST_BACKOFF_LIMIT: Final = 2**31 - 1
"""An int32, as in DI-orchestrator's own schema."""

MOST_PARTS: Final = 999_999
"""Workflows that a job may go on in, one after the other: a new one each half minute for a year."""

MOST_FILE_BYTES: Final = 4 * 1024 * 1024
"""Of a file of manifests. An object in etcd has at most 1.5 MiB; a List of some hundred jobs is about 1 MiB."""

MOST_FILE_VALUES: Final = 100_000
"""In a file of manifests, aliases counted as often as they are used. A DIJob has a few hundred; these take a second."""

MOST_FILE_DEPTH: Final = 64
"""Lists and mappings inside each other in a file. The deepest field of a pod template is on level 16; the YAML library
builds by recursion in C, and 100,000 levels end the process."""
