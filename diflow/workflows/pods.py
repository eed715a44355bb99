"""Task → the Argo template of its pods: the user's pod template and diflow's additions.

Fields that an Argo template has are set there; the others, and all text with braces in it, go into `podSpecPatch` (see
`escape`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

from diflow.common import contribs, keys, names
from diflow.common.errors import InvalidError
from diflow.common.jsontext import canonical_json
from diflow.dijob import memory
from diflow.dijob.model import DIJob, Task
from diflow.dijob.pods import volumes_of, work_container
from diflow.dijob.rules import ditask
from diflow.dijob.settings import RenderSettings
from diflow.record.argo.failures import Rules, rules_of
from diflow.workflows import expressions as expr
from diflow.workflows.beside import monitored, node_check
from diflow.workflows.escape import Template, has_template, patch_json

# Pod fields that an Argo template has under the same name.
_NATIVE = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "hostAliases",
    "schedulerName",
    "priorityClassName",
    "automountServiceAccountToken",
)
# Pod fields that diflow or Argo sets: the kubelet never restarts a pod of a job in place (`rules.fields` says so), and
# DI_NODES has its host name.
_OURS = ("restartPolicy", "hostname", "subdomain")
CONFINED: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""The container settings that the `restricted` pod-security standard requires, beside the pod's settings."""
_MAY_ADD = frozenset({"NET_BIND_SERVICE"})
"""The capabilities that a container may add under that standard."""
_ESCALATES = frozenset({"SYS_ADMIN", "CAP_SYS_ADMIN", "ALL"})
"""Capabilities with which Kubernetes refuses `allowPrivilegeEscalation: false`."""
ARGO_INIT, ARGO_WAIT = ({"name": name, "securityContext": CONFINED} for name in ("init", "wait"))
"""Patches of Argo's own containers in a pod: without them, or settings of the controller, such a namespace would reject
the pod."""
_IN_ANNOTATIONS = frozenset((keys.RANK, keys.NODES))
_GATE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*", re.ASCII)
_HANDLED = frozenset(
    (*_NATIVE, *_OURS, "containers", "initContainers", "volumes", "securityContext", "serviceAccount",
     "serviceAccountName", "activeDeadlineSeconds", "schedulingGates")
)  # fmt: skip


Variable = dict[str, Any]
"""An environment variable of a container, as in Kubernetes."""
Variables = Callable[[DIJob], Mapping[str, str]]
"""Environment variables of each container of a job, if it requests them."""


@dataclass(frozen=True, slots=True)
class _Mount:
    """A volume of diflow's that is mounted at `folder`; the environment variable has the path of its file."""

    volume: str
    folder: str
    variable: str
    file: str

    @property
    def env(self) -> Variable:
        return {"name": self.variable, "value": f"{self.folder}/{self.file}"}

    def is_blocked_by(self, own: dict[str, Any]) -> bool:
        """Whether a mount of the user overlaps the folder."""
        path, folder = str(own.get("mountPath")).rstrip("/") + "/", f"{self.folder}/"
        return path.startswith(folder) or folder.startswith(path)


@dataclass(frozen=True, slots=True)
class Common:
    """What the pods of all tasks of a job have in common.

    `mounts`, `env` and `lists` are added to each container; the last two not to the main one if `is_shared`: it has
    them from the Workflow's own patch (`job_patch`). So do all main containers with the variables of the mounts if
    `shares_paths`, and with their security context if `is_confined`. `listed`: the names of the variables in `lists`.
    `has_root`: the pods of some task run as root.
    """

    job: DIJob
    settings: RenderSettings
    env: Sequence[Variable]
    lists: Sequence[Variable]
    listed: Set[str]
    mounts: Sequence[_Mount]
    is_shared: bool
    shares_paths: bool
    is_confined: bool
    has_root: bool

    @classmethod
    def of(cls, job: DIJob, settings: RenderSettings) -> Self:
        env, mounts = job_env(job, settings), _mounts(job)
        is_shared = _shares_variables(job, env)
        works = [task.work_container for task in job.tasks]
        has_root = any(_runs_as_root(task.template["spec"]) for task in job.tasks)
        return cls(
            job=job,
            settings=settings,
            env=env,
            lists=_lists_of_hosts(job),
            listed={names.nodes_variable(task.name) for task in job.tasks},
            mounts=mounts,
            is_shared=is_shared,
            shares_paths=is_shared and not any(_blocked(work, mounts) for work in works),
            is_confined=is_shared and not has_root and all(work.get("securityContext") is None for work in works),
            has_root=has_root,
        )

    @classmethod
    def with_env(cls, job: DIJob, settings: RenderSettings, env: Sequence[Variable]) -> Self:
        """With these variables alone, of pods that do not share them, and the token."""
        return cls(
            job=job,
            settings=settings,
            env=env,
            lists=(),
            listed=frozenset(),
            mounts=(_token_mount(job),),
            is_shared=False,
            shares_paths=False,
            is_confined=False,
            has_root=any(_runs_as_root(task.template["spec"]) for task in job.tasks),
        )


@dataclass
class _Parts:
    """A pod template under construction: Argo's own fields, and the user's part of the patch."""

    common: Common
    root: bool
    native: dict[str, Any] = field(default_factory=dict)
    patch: dict[str, Any] = field(default_factory=dict)

    def put(self, name: str, value: Any) -> None:
        (self.patch if has_template(value) else self.native)[name] = value


def pod_template(common: Common, index: int) -> dict[str, Any]:
    """The Argo template for the pods of the job's task `index`, without its inputs and retries, as plain data."""
    job = common.job
    task = job.tasks[index]
    spec: dict[str, Any] = task.template["spec"]
    path = f"spec.tasks[{index}].template"
    hostname = names.hostname("{{workflow.name}}", task.name, "{{inputs.parameters.index}}")
    ours: dict[str, Any] = {"hostname": hostname}
    gates = list(spec.get("schedulingGates", []))
    if job.scheduling == "gang":
        if spec.get("nodeName"):
            raise InvalidError(
                "cannot be set for a job that the allocator places: use nodeSelector, or scheduling: none",
                path=f"{path}.spec.nodeName",
            )
        ours[expr.template(_gate_or_node(job, task, gates, f"{path}.spec.schedulingGates"))] = None
        gates = []
    metadata = _metadata(job, task, path, hostname)
    fields: dict[str, Any] = {}
    if task_rules(job, index, common.settings).asks_for_memory:
        metadata["annotations"][keys.MEMORY] = "{{inputs.parameters.memory}}"
        fields = _raised(_resources(task, common.settings))
    return template_of(common, index, metadata=metadata, ours=ours, gates=gates, fields=fields)


def task_rules(job: DIJob, index: int, settings: RenderSettings) -> Rules:
    """What follows when a replica of a task fails."""
    checks_nodes = job.node_check is not None and job.node_check.command is not None
    if job.failure_policy is None and not checks_nodes:
        return rules_of(None)
    task = job.tasks[index]
    return rules_of(
        job.failure_policy.stored() if job.failure_policy is not None else None,
        checks_nodes=checks_nodes,
        has_allocator=job.scheduling == "gang",
        has_memory=memory_of(task, settings) > 0,
        main=task.work_container.get("name") or "",
    )


def memory_of(task: Task, settings: RenderSettings) -> int:
    """The MiB of memory of which a replica may get more, 0 if its main container names none."""
    return memory.of_container(_resources(task, settings))[0]


def _resources(task: Task, settings: RenderSettings) -> Mapping[str, Any]:
    return task.work_container.get("resources") or settings.default_resources


def _raised(resources: Mapping[str, Any]) -> dict[str, Any]:
    """The patch of the main container with the memory of its attempt, as `memory.with_memory` has it."""
    _, less = memory.of_container(resources)
    amount = "{{inputs.parameters.memory}}"
    lower = expr.template(f"int(inputs.parameters.memory) - {less}") if less else amount
    parts = {
        kind: {"memory": Template(f"{lower if kind == 'requests' else amount}Mi")}
        for kind in ("limits", "requests")
        if "memory" in (resources.get(kind) or {})
    }
    return {"resources": parts}


def template_of(
    common: Common,
    index: int,
    *,
    metadata: dict[str, Any],
    ours: dict[str, Any],
    gates: Sequence[dict[str, str]] = (),
    fields: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The same with this metadata. `ours` is the part of the pod's patch that may hold templates, `gates` are the
    user's; `fields` are those of diflow's for the patch of the main container."""
    job, settings = common.job, common.settings
    task = job.tasks[index]
    spec: dict[str, Any] = task.template["spec"]
    path = f"spec.tasks[{index}].template"
    parts = _Parts(common, root=_runs_as_root(spec))

    spec = monitored(job, spec, settings)
    spec = _with_argos_name(spec, spec["containers"][work_container(spec["containers"])].get("name"))
    containers = list(spec["containers"])
    work = containers.pop(work_container(containers))
    if not work.get("resources"):
        work = {**work, "resources": settings.default_resources}
    patched = [_container(work, parts, "container", name="main")]
    if fields:
        patched = [{"name": "main", **patched[0], **fields}]
    patched += [_container(c, parts, "sidecars", name=c.get("name")) for c in containers]
    before = [node_check(job.node_check, work, settings)] if job.node_check is not None else []
    inits = [
        _container(c, parts, "initContainers", name=c.get("name")) for c in (*before, *spec.get("initContainers", []))
    ]
    # As root they may need root's capabilities to read files of other users.
    wait, init = (ARGO_WAIT, ARGO_INIT) if common.has_root and not parts.root else ({}, {})
    _patch_containers(parts, "containers", [*patched, wait])
    _patch_containers(parts, "initContainers", [*inits, init])

    for name in _NATIVE:
        if name in spec:
            parts.put(name, spec[name])
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        parts.native["serviceAccountName"] = account
    if "activeDeadlineSeconds" in spec:
        parts.native["activeDeadlineSeconds"] = spec["activeDeadlineSeconds"]
    _add_volumes(job, spec, parts, path)
    if "securityContext" in spec:  # else the Workflow's default applies
        parts.native["securityContext"] = pod_security(spec["securityContext"], settings)
    for name, value in spec.items():
        if name not in _HANDLED:
            parts.patch[name] = value
    if spec.get("hostNetwork"):  # else the pod would ask the node's DNS, which has no names of pods
        parts.patch.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    if gates:
        parts.patch["schedulingGates"] = list(gates)
    return {"metadata": metadata, **parts.native, "podSpecPatch": patch_json(ours, parts.patch)}


def _gate_or_node(job: DIJob, task: Task, gates: Sequence[dict[str, str]], path: str) -> str:
    for gate in gates:
        # Kubernetes allows nothing else in a name, and here it becomes a part of an expression.
        if not _GATE.fullmatch(str(gate.get("name"))):
            raise InvalidError("is not a valid name of a scheduling gate", path=path)
    return expr.gate_or_node(task.name, [gate["name"] for gate in gates], attempt=_attempt(job))


def _attempt(job: DIJob) -> str:
    """The expression of a pod's counted attempt."""
    return "inputs.parameters.attempt" if job.backoff_limit else "'0'"


def job_patch(common: Common) -> str:
    """The patch of all pods of a job: the subdomain, and the variables of the main container.

    Argo keeps a copy of each pod's template in the pod, but not of this patch.
    """
    containers: list[dict[str, Any]] = []
    patch: dict[str, Any] = {"subdomain": keys.SERVICE}
    if common.is_shared:
        paths = [mount.env for mount in common.mounts] if common.shares_paths else []
        main: dict[str, Any] = {"name": "main", "env": [*common.env, *paths, *common.lists]}
        containers.append({**main, "securityContext": CONFINED} if common.is_confined else main)
    if common.job.has_short_hosts:
        patch["dnsConfig"] = {"searches": [names.domain("{{workflow.namespace}}")]}
    if not common.has_root:
        # The step that stops the Workflow has no container `wait`, and its main container has these settings already.
        containers.append({**ARGO_WAIT, "name": expr.WAIT_OR_MAIN})
        patch["initContainers"] = [ARGO_INIT]
    if containers:
        patch["containers"] = containers
    return patch_json(patch, {})


def _shares_variables(job: DIJob, env: Sequence[Variable]) -> bool:
    """Whether the main containers have their variables from the Workflow's patch.

    Not if a user overrides one of them: the patch would overwrite it, or come after variables that refer to it.
    """
    own = {item.get("name") for task in job.tasks for item in task.work_container.get("env", [])}
    return not any(item["name"] in own for item in env if not item["name"].startswith("DI_"))


def _blocked(container: dict[str, Any], mounts: Iterable[_Mount]) -> bool:
    """Whether the container mounts something over a folder of diflow's."""
    return any(mount.is_blocked_by(own) for mount in mounts for own in container.get("volumeMounts", []))


def shared_annotations(job: DIJob) -> dict[str, str]:
    """The annotations that all templates of a job share: those of its pods, unless their list of hosts is long.

    Argo copies them into every template, and evaluates them there for each node, also of a DAG or a skipped step.
    """
    return {} if job.has_short_hosts else _pod_annotations(job)


def _pod_annotations(job: DIJob) -> dict[str, str]:
    """The annotations that all pods of a job share."""
    hosts = expr.hosts(short=job.has_short_hosts)
    if job.has_short_hosts:
        hosts = expr.at_creation(hosts)
    return {keys.REPLICAS: expr.template(expr.replicas()), keys.NODES: expr.template(hosts)}


def job_env(job: DIJob, settings: RenderSettings) -> list[Variable]:
    """The environment variables of every container of a job: DI_*, torchrun's and, if requested, those of others.

    Without the lists of the hosts of several tasks (`_lists_of_hosts`). What depends on the replica is in the pod's
    annotations.
    """
    world = expr.template(expr.replicas())
    master = names.host("{{workflow.name}}", "{{workflow.namespace}}", job.tasks[0].name, 0)
    values = {
        "DI_JOB_ID": "{{workflow.namespace}}/{{workflow.name}}",
        "DI_SERVER_URL": settings.server_url,
        "DI_RANK": keys.RANK,
        "DI_TASK_RANK": "{{inputs.parameters.index}}",  # unlike the rank, it stays valid when other tasks are resized
        "DI_NODES": keys.NODES,
        "MASTER_ADDR": master,
        "MASTER_PORT": str(keys.MASTER_PORT),
        "WORLD_SIZE": world,
        "RANK": "$(DI_RANK)",
        "PET_NNODES": world,
        "PET_NODE_RANK": "$(DI_RANK)",
        "PET_RDZV_ENDPOINT": f"{master}:{keys.MASTER_PORT}",
    }
    if len(job.tasks) == 1:
        values[names.nodes_variable(job.tasks[0].name)] = "$(DI_NODES)"
    more: tuple[Variables, ...] = contribs.found("workflows.variables")
    for variables in more:
        values |= variables(job)
    return _variables(values)


def _variables(values: Mapping[str, str]) -> list[Variable]:
    """Variables with these values; the name of an annotation of the pods stands for its value."""
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{value}']"}}}
        if value in _IN_ANNOTATIONS
        else {"name": name, "value": value}
        for name, value in values.items()
    ]


def _asked_env(job: DIJob) -> list[Variable]:
    """The environment variables of torchrun's rendezvous, of DLRover's trainers and of heartbeats, for jobs that
    request them.

    The run id is another one for each round and each restart of all replicas, so that no agent meets one of before.
    They are in the templates of the tasks: the step that stops a Workflow shares its patch, and has no attempt.
    """
    values: dict[str, str] = {}
    if job.health is not None:
        values["DI_HEARTBEAT_SECONDS"] = str(min(60, max(5, job.health.heartbeat_seconds // 10)))
    if job.annotations.get(keys.RENDEZVOUS) == "c10d":
        attempt = "-{{inputs.parameters.attempt}}" if job.preemptible and job.backoff_limit else ""
        run = f"{{{{workflow.uid}}}}-{{{{inputs.parameters.round}}}}{attempt}"
        values |= {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": run}
    if job.annotations.get(keys.DLROVER) == "true":
        values |= {"ELASTIC_JOB_NAME": "{{workflow.name}}", "JOB_UID": "{{workflow.uid}}"}
        for kind in ("NODE", "WORKER"):
            values |= {f"{kind}_TYPE": "worker", f"{kind}_NUM": expr.template(expr.replicas())}
            values |= dict.fromkeys((f"{kind}_ID", f"{kind}_RANK"), keys.RANK)
    return _variables(values)


def _ditask_env(job: DIJob) -> list[Variable]:
    """The arguments of DI-engine's `ditask`, as manifests of DI-orchestrator v1.0 have them in their commands.

    Such a job has one task, so the rank is the index of the replica.
    """
    engine = ditask.of_annotations(job.annotations)
    if engine is None:
        return []
    task = job.tasks[0].name
    values = {
        "DI_PARALLEL_WORKERS_ARG": f"--parallel-workers={engine.workers}",
        "DI_PORTS_ARG": f"--ports={','.join(map(str, engine.ports))}",
        "DI_NODE_IDS_ARG": f"--node-ids={expr.template(expr.worker_ids(engine.workers))}",
        "DI_ATTACHED_NODES_ARG": {
            "alone": "",
            "star": expr.template(expr.attached_to_first(task, engine.addresses("?").partition(",")[0])),
            "mesh": expr.template(expr.attached_to_earlier(task, engine.addresses("?"))),
        }[engine.topology],
    }
    return [{"name": name, "value": value} for name, value in values.items()]


def roster_volume(job: DIJob) -> dict[str, Any]:
    """The downward API volume with the current ranks and hosts of a job, which change when it grows.

    The kubelet rewrites the files when the pod's annotations change.
    """
    files = {
        keys.ROSTER_FILE: f"annotations['{keys.NODES}']",
        "replicas": f"annotations['{keys.REPLICAS}']",
        "rank": f"annotations['{keys.RANK}']",
        "round": f"labels['{keys.ROUND}']",
    }
    items = [{"path": path, "fieldRef": {"fieldPath": f"metadata.{field}"}} for path, field in files.items()]
    return {"name": _free_name(job, keys.ROSTER_VOLUME), "downwardAPI": {"items": items}}


def token_volume(job: DIJob) -> dict[str, Any]:
    """The volume with the token that authenticates a pod and its job to the REST API.

    The audience is a template that Argo fills in, as the namespace may be unknown when the job is rendered, and `argo
    resubmit` changes the name. The token is valid for this job only.
    """
    token = {
        "audience": names.audience("{{workflow.namespace}}", "{{workflow.name}}"),
        "expirationSeconds": keys.IDENTITY_SECONDS,
        "path": keys.IDENTITY_FILE,
    }
    return {"name": _free_name(job, keys.IDENTITY_VOLUME), "projected": {"sources": [{"serviceAccountToken": token}]}}


def _free_name(job: DIJob, wanted: str) -> str:
    """A volume name that the job's own volumes do not use."""
    own = (volume for task in job.tasks for volume in task.template["spec"].get("volumes", []))
    taken = {volume.get("name") for volume in (*job.volumes, *own)}
    return next(name for i in count() if (name := f"{wanted}{f'-{i}' if i else ''}") not in taken)


def _mounts(job: DIJob) -> tuple[_Mount, ...]:
    roster = _Mount(_free_name(job, keys.ROSTER_VOLUME), keys.ROSTER_FOLDER, "DI_NODES_FILE", keys.ROSTER_FILE)
    return (roster, _token_mount(job))


def _token_mount(job: DIJob) -> _Mount:
    return _Mount(_free_name(job, keys.IDENTITY_VOLUME), keys.IDENTITY_FOLDER, "DI_TOKEN_FILE", keys.IDENTITY_FILE)


def _rank(job: DIJob, task: Task) -> str:
    return expr.template(expr.rank([one.name for one in job.tasks].index(task.name)))


def _lists_of_hosts(job: DIJob) -> list[Variable]:
    """The variables with the hosts of each of several tasks, for the patch of a container: one expression makes all.

    Kubernetes puts variables that only the patch has before those of the container, so that `$(NAME)` resolves them.
    """
    if job.has_short_hosts or len(job.tasks) == 1:
        return []
    return [{"name": Template(expr.template(expr.hosts_by_task()))}]


def pod_security(given: dict[str, Any], settings: RenderSettings) -> dict[str, Any]:
    """The pod's security context: the user's, and non-root by default."""
    user = {"runAsUser": settings.run_as_user, "runAsGroup": settings.run_as_user, "fsGroup": settings.run_as_user}
    defaults: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if given.get("runAsUser") != 0 and given.get("runAsNonRoot") is not False:
        defaults["runAsNonRoot"] = True
        if "runAsUser" not in given:
            defaults |= user
    return {**defaults, **given}


def _runs_as_root(spec: dict[str, Any]) -> bool:
    given = spec.get("securityContext", {})
    return given.get("runAsUser") == 0 or given.get("runAsNonRoot") is False


def _container(given: dict[str, Any], parts: _Parts, where: str, *, name: str | None) -> dict[str, Any]:
    """Add a container to Argo's fields. Returns the part of it that must go into the patch, with its name."""
    container = {**given, "name": name}
    taken_by = given.get("volumeMounts", [])
    mounts = [mount for mount in parts.common.mounts if not any(mount.is_blocked_by(own) for own in taken_by)]
    env = [
        *parts.common.env,
        *_asked_env(parts.common.job),
        *_ditask_env(parts.common.job),
        *(mount.env for mount in mounts),
    ]
    own = container.pop("env", [])
    taken = {item.get("name") for item in own}
    # The variables DI_* cannot be overridden, as clients rely on them; torchrun's variables can.
    ours = [item for item in env if item["name"] not in taken or item["name"].startswith("DI_")]
    mine = {item["name"] for item in ours} | parts.common.listed
    rest = _last_of_each(item for item in own if item.get("name") not in mine)
    patch: dict[str, Any] = _named_ports(container)
    variables = [*parts.common.lists]
    if where == "container" and parts.common.is_shared:
        shared = [*parts.common.env, *(mount.env for mount in mounts if parts.common.shares_paths)]
        variables, ours = [], [item for item in ours if item not in shared]
    container["env"] = ours + rest
    if has_template(given):
        braced = [item for item in rest if has_template(item)]
        if braced:
            # Each keeps its position in the list, for $(NAME) references, and gets its value from the patch.
            container["env"] = ours + [
                ({"name": item["name"], "value": ""}) if item in braced else item for item in rest
            ]
            variables += braced
        for key, value in given.items():
            if key not in ("env", "name", *patch) and has_template(value):
                patch[key] = container.pop(key)
    if variables:
        patch["env"] = variables
    if mounts:
        ours_mounted = [{"name": mount.volume, "mountPath": mount.folder, "readOnly": True} for mount in mounts]
        container["volumeMounts"] = [*container.get("volumeMounts", []), *ours_mounted]
    if where != "container" or not parts.common.is_confined:
        container["securityContext"] = container_security(given.get("securityContext"), root=parts.root)
    if where == "container":
        container.pop("name")  # Argo names it `main`
        if not container["env"]:
            del container["env"]  # all its variables are in the Workflow's patch
        parts.native[where] = container
    else:
        parts.native.setdefault(where, []).append(container)
    return {"name": name, **patch} if patch else {}


def _last_of_each(env: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last variable of each name: it wins in a pod, and Argo rejects duplicates."""
    given = list(env)
    last = {item["name"]: item for item in given}
    return [item for item in given if last[item["name"]] is item]


def _named_ports(container: dict[str, Any]) -> dict[str, Any]:
    """Remove the references to ports by name, which Hera's models do not have, for the patch."""
    patch = {}
    for key in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
        handlers = [container.get(key, {})] if key != "lifecycle" else list(container.get(key, {}).values())
        if any(isinstance(h, dict) and isinstance(h.get("httpGet", {}).get("port"), str) for h in handlers):
            patch[key] = container.pop(key)
    return patch


def container_security(given: Mapping[str, Any] | None, *, root: bool) -> dict[str, Any]:
    """A container's security context: the user's, with each field of `CONFINED` that it says nothing about.

    `root`: the pod runs as root, and keeps root's rights. A container that is privileged, or adds a capability that the
    standard forbids, asks for more than it allows: what it says decides.
    """
    own = dict(given or {})
    is_root = own["runAsUser"] == 0 if "runAsUser" in own else root and own.get("runAsNonRoot") is not True
    if is_root or own.get("runAsNonRoot") is False:
        # The kubelet would reject an explicit root container in a pod that is non-root by default.
        return {"runAsNonRoot": False, **own} if own.get("runAsUser") == 0 else own
    capabilities = own.get("capabilities") or {}
    added = set(capabilities.get("add") or ())
    if own.get("privileged"):
        return own
    if not added & _ESCALATES:
        own.setdefault("allowPrivilegeEscalation", False)
    if added <= _MAY_ADD and "drop" not in capabilities:
        own["capabilities"] = {**capabilities, **CONFINED["capabilities"]}
    return own


def _patch_containers(parts: _Parts, key: str, containers: Sequence[dict[str, Any]]) -> None:
    patches = [container for container in containers if container]
    if patches:
        parts.patch[key] = patches


def _with_argos_name(value: Any, name: str | None) -> Any:
    """The same data, with Argo's name of the main container in each `resourceFieldRef`."""
    return _renamed(value, name) if name and "containerName" in repr(value) else value


def _renamed(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_renamed(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: "main" if key == "containerName" and item == name else _renamed(item, name) for key, item in value.items()
    }


def _add_volumes(job: DIJob, spec: dict[str, Any], parts: _Parts, path: str) -> None:
    """Add the volumes to Argo's fields, and those that Argo would leave out also to the patch.

    Argo adds to a pod only the volumes that its own fields mount, without block devices and mounts in the patch.
    """
    work = spec["containers"][work_container(spec["containers"])].get("name")
    volumes = _with_argos_name(volumes_of(spec.get("volumes", []), job.volumes), work)
    if not volumes:
        return
    if has_template(volumes):
        raise InvalidError("a volume cannot hold {{: Argo would read it as a template", path=f"{path}.spec.volumes")
    parts.native["volumes"] = volumes
    containers = [*spec["containers"], *spec.get("initContainers", [])]
    patched = [*parts.patch.get("containers", []), *parts.patch.get("initContainers", [])]
    used = [device for container in containers for device in container.get("volumeDevices", [])]
    used += [mount for container in patched for mount in container.get("volumeMounts", [])]
    names_used = {item["name"] for item in used}
    hidden = [volume for volume in volumes if volume["name"] in names_used]
    if hidden:
        parts.patch["volumes"] = hidden


def own_metadata(task: Task, path: str) -> dict[str, Any]:
    """The user's metadata of a task's pods. Raises InvalidError if Argo would read it as a template."""
    given = task.template.get("metadata") or {}
    for kind in ("labels", "annotations"):
        for key, value in (given.get(kind) or {}).items():
            if has_template([key, value]):
                raise InvalidError(
                    "cannot hold {{: Argo would read it as a template", path=f"{path}.metadata.{kind}.{key}"
                )
    return given


def _metadata(job: DIJob, task: Task, path: str, hostname: str) -> dict[str, Any]:
    given = own_metadata(task, path)
    annotations = {**(given.get("annotations") or {}), keys.RANK: _rank(job, task)}
    if job.has_short_hosts:
        annotations |= _pod_annotations(job)
    if job.scheduling == "gang":
        annotations[keys.NODE] = expr.template(expr.node(task.name, attempt=_attempt(job)))
    return {
        "labels": {
            **(given.get("labels") or {}),
            keys.JOB: "{{workflow.name}}",
            keys.OPERATOR: keys.OPERATOR_VALUE,
            keys.POD: hostname,
            keys.TASK_TYPE: task.type,
            keys.TASK_NAME: task.name,
            keys.ROUND: "{{inputs.parameters.round}}",
        },
        "annotations": {**annotations, keys.TASK_RANK: "{{inputs.parameters.index}}"},
    }


def dijob_annotation(job: DIJob) -> str:
    """The job as submitted, for all later readers of the Workflow."""
    return canonical_json(job.to_manifest())
