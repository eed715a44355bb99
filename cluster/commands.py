"""The commands, composed of the modules of this package. Each returns its output for stdout."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cluster import (
    argo,
    autoscaler,
    build,
    diflowimage,
    fakenodes,
    lifecycle,
    load,
    packages,
    repair,
    secondnode,
    seed,
    smallimages,
)
from cluster.errors import ClusterError, UsageError
from cluster.kube import Kubectl
from cluster.parts import (
    ARGO,
    CONTROL_PLANES,
    COREDNS,
    DEFAULT_KUBERNETES,
    ETCD,
    KUBERNETES_VERSIONS,
    KWOK,
    NODE,
    Versions,
)
from cluster.paths import DEFAULT_NAME, REPOSITORY, cluster_paths
from cluster.plan import Plan
from cluster.progress import Progress
from cluster.tarimage import Image, write_image
from diflow.common.tables import table

_ARGO_SECONDS = 300.0


def build_everything(versions: list[str], progress: Progress) -> str:
    """All programs and images."""
    lifecycle.require_root()
    packages.require(packages.RUN | packages.BUILD, progress)
    _build_programs_and_image(KUBERNETES_VERSIONS, versions, progress)
    for version in versions or ["none"]:
        _seed(version, [version] if version in ARGO else [], progress)
    progress("everything is built")
    return ""


def images(versions: list[str], folder: Path | None, progress: Progress) -> str:
    """All images; with a folder, their files' paths."""
    lifecycle.require_root()
    packages.require(packages.BUILD, progress)
    build.build([ARGO[v] for v in versions], progress)
    lines = []
    for image in _small_images(versions, progress) + _diflow_images(progress):
        if folder is None:
            lines.append(f"{image.reference} sha256:{image.digest}")
            continue
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (image.reference.rpartition("/")[2].replace(":", "-") + ".tar")
        with path.open("wb") as out:
            write_image(image, out)
        lines.append(str(path))
    return "\n".join(lines)


def up(name: str, kubernetes: str | None, argo_version: str | None, progress: Progress) -> str:
    """A running cluster with these versions, by default those that it has, or the newest; prints the path of its
    kubeconfig.
    """
    lifecycle.require_root()
    paths = cluster_paths(name)
    with lifecycle.held(name):
        now = lifecycle.health(name)
        if now.phase == "Absent":
            plan = _made(name, _chosen(Versions(), kubernetes, argo_version), progress)
        elif lifecycle.is_stopped(name):
            chosen = _kept_versions(name, kubernetes, argo_version)
            plan = repair.repair(name, lambda: _made(name, chosen, progress), progress)
        elif now.phase == "Broken":
            raise ClusterError(
                f"cluster {name!r} is there but broken: {'; '.join(now.problems)}. "
                f"python3 -m cluster down --name {name} removes it"
            )
        else:
            _kept_versions(name, kubernetes, argo_version)
            plan = lifecycle.load(name)
            if now.phase == "Starting":
                # An earlier start was interrupted, or one of its servers has just died.
                lifecycle.settle(plan, progress)
        _furnish(plan, progress)
    progress(
        f"{name}: up; KUBECONFIG={paths.kubeconfig}" + (f", Argo at {plan.argo_url}" if plan.argo != "none" else "")
    )
    progress(f"select it in your shell with: {select_line(name)}")
    return str(paths.kubeconfig)


def _made(name: str, versions: Versions, progress: Progress) -> Plan:
    """A new cluster, without images and Argo."""
    packages.require(packages.RUN | packages.BUILD, progress)
    argos = [] if versions.argo == "none" else [versions.argo]
    _build_programs_and_image([versions.kubernetes], argos, progress)
    return lifecycle.start(name, versions, _seed(versions.argo, argos, progress), progress)


def _kept_versions(name: str, kubernetes: str | None, argo_version: str | None) -> Versions:
    """The versions of a cluster that is there, or was begun. Raises UsageError if others are wanted."""
    if not cluster_paths(name).state.exists():
        return _chosen(Versions(), kubernetes, argo_version)
    plan = lifecycle.load(name)
    kept = Versions(plan.kubernetes, plan.argo)
    wanted = _chosen(kept, kubernetes, argo_version)
    if wanted != kept:
        raise UsageError(f"cluster {name!r} runs {kept}, not {wanted}: take another --name, or this one down first")
    return kept


def _chosen(default: Versions, kubernetes: str | None, argo_version: str | None) -> Versions:
    return Versions(kubernetes or default.kubernetes, argo_version or default.argo)


def select_line(name: str) -> str:
    """The line that selects a cluster in a shell."""
    named = "" if name == DEFAULT_NAME else f" --name {name}"
    return f'eval "$(python3 -m cluster env{named})"'


def _furnish(plan: Plan, progress: Progress) -> None:
    """Images and Argo. An earlier attempt may have failed halfway, and the code may have changed since."""
    done = plan.paths.root / "furnished"
    if not done.exists():
        versions = [] if plan.argo == "none" else [plan.argo]
        _build_programs([plan.kubernetes], versions, progress)
        kubectl = lifecycle.kubectl(plan)
        # Both take long and are independent: one loads the API server, the other containerd.
        with ThreadPoolExecutor(max_workers=1) as pool:
            applied = [pool.submit(argo.apply, kubectl, version, progress, ours=True) for version in versions]
            load.load(plan, _small_images(versions, progress) + _diflow_images(progress), progress)
            for future in applied:
                future.result()
        for version in versions:
            argo.await_ready(kubectl, version, progress, timeout_seconds=_ARGO_SECONDS)
        done.touch()
        return
    if plan.argo != "none" and not argo.is_ready(lifecycle.kubectl(plan)):
        # A changed setting may just be restarting it, which is not an error.
        try:
            argo.await_ready(lifecycle.kubectl(plan), plan.argo, progress, timeout_seconds=_ARGO_SECONDS)
        except ClusterError as error:
            raise ClusterError(
                f"cluster {plan.name!r} is up, but its Argo is not: {error}; look at it with "
                f"KUBECONFIG={plan.paths.kubeconfig} kubectl -n {argo.NAMESPACE} get pods"
            ) from error
    load.load(plan, _diflow_images(progress), progress)


def down(names: list[str], progress: Progress) -> str:
    """Takes each down; a missing one is not an error."""
    lifecycle.require_root()
    for name in names:
        if not cluster_paths(name).root.exists():
            progress(f"{name}: there is no such cluster")
            continue
        with lifecycle.held(name):
            lifecycle.stop(name, progress)
    return ""


def status(name: str | None) -> list[dict[str, Any]]:
    """A row for each cluster."""
    if name is not None:
        lifecycle.load(name)
    rows: list[dict[str, Any]] = []
    for each in [name] if name else lifecycle.names():
        paths, now = cluster_paths(each), lifecycle.health(each)
        row: dict[str, Any] = {"name": each, "phase": now.phase, "problems": list(now.problems)}
        row |= dict.fromkeys(("kubernetes", "argo", "kubeconfig", "api", "argoServer", "block")) | {"programs": {}}
        if paths.state.exists():
            plan = lifecycle.load(each)
            row |= {"kubernetes": plan.kubernetes, "argo": plan.argo, "kubeconfig": str(paths.kubeconfig)}
            row |= {"api": plan.api_url, "argoServer": plan.argo_url if plan.argo != "none" else None}
            row |= {"programs": plan.programs, "block": plan.block}
        row |= {"logs": str(paths.logs), "components": lifecycle.component_status(each)}
        rows.append(row)
    return rows


def as_table(rows: list[dict[str, Any]]) -> str:
    """The rows as a text table."""
    if not rows:
        return "no clusters"
    keys = ("name", "phase", "kubernetes", "argo", "kubeconfig")
    cells = [[row[key] or "" for key in keys] for row in rows]
    head, *lines = table([key.upper() for key in keys], cells).splitlines()
    problems = ["".join(f"\n  {problem}" for problem in row["problems"]) for row in rows]
    return "\n".join([head, *map("".join, zip(lines, problems, strict=True))])


def kubeconfig(name: str) -> Path:
    """The path of an existing cluster's kubeconfig."""
    return lifecycle.load(name).paths.kubeconfig


def environment(name: str) -> str:
    """For `eval "$(python3 -m cluster env)"`."""
    plan = lifecycle.load(name)
    folders = sorted({str(Path(plan.programs[p]).parent) for p in ("kubectl", "argo") if p in plan.programs})
    return f"export KUBECONFIG={plan.paths.kubeconfig}\nexport PATH={':'.join(folders)}:$PATH"


def load_images(name: str, files: list[Path], progress: Progress, *, training: bool = False) -> str:
    """Loads the given files, or by default the image of this checkout's code, or that of examples/ddp."""
    lifecycle.require_root()
    plan = lifecycle.load(name)
    with lifecycle.held(name):
        for file in files:
            load.load_file(plan, file, progress)
        if training:
            load.load(plan, [diflowimage.training_image(progress)], progress)
        elif not files:
            load.load(plan, _diflow_images(progress), progress)
    return ""


def fake_nodes(name: str, count: int, size: fakenodes.Size, progress: Progress) -> str:
    """Exactly that many fake nodes."""
    lifecycle.require_root()
    if count < 0:
        raise UsageError(f"--count {count}: give 0 or more")
    plan = lifecycle.load(name)
    with lifecycle.held(name):
        fakenodes.scale(plan, lifecycle.kubectl(plan), count, size, progress)
    return ""


def add_autoscaler(name: str, progress: Progress) -> str:
    """Karpenter, with a pool of fake nodes."""
    lifecycle.require_root()
    plan = lifecycle.load(name)
    with lifecycle.held(name):
        autoscaler.add(plan, lifecycle.kubectl(plan), progress)
    return ""


def second_node(name: str, progress: Progress, *, disk_mib: int = 0) -> str:
    """A second real node with the images of the first one but those that were loaded from files. Prints its name."""
    lifecycle.require_root()
    if disk_mib and not secondnode.LEAST_DISK_MIB <= disk_mib <= secondnode.MOST_DISK_MIB:
        raise UsageError(f"--disk-mib {disk_mib}: give {secondnode.LEAST_DISK_MIB} to {secondnode.MOST_DISK_MIB}")
    plan = lifecycle.load(name)
    versions = [] if plan.argo == "none" else [plan.argo]
    with lifecycle.held(name):
        seed = _seed(plan.argo, versions, progress)
        secondnode.add(plan, lifecycle.kubectl(plan), seed, progress, disk_mib=disk_mib)
        load.load(plan, _small_images(versions, progress) + _diflow_images(progress), progress)
    return plan.second_node


def argo_install(kubeconfig_file: Path, version: str, timeout_seconds: float, progress: Progress) -> str:
    """Installs Argo on any cluster, ours or not."""
    if not kubeconfig_file.is_file():
        raise UsageError(f"no kubeconfig at {kubeconfig_file}")
    kubectl = Kubectl(build.build_one(CONTROL_PLANES[DEFAULT_KUBERNETES], "kubectl", progress), kubeconfig_file)
    ours = any(kubeconfig_file.resolve() == cluster_paths(n).kubeconfig.resolve() for n in lifecycle.names())
    argo.apply(kubectl, version, progress, ours=ours)
    argo.await_ready(kubectl, version, progress, timeout_seconds=timeout_seconds)
    return ""


def _build_programs(kubernetes: Iterable[str], argos: Iterable[str], progress: Progress) -> None:
    servers = dict.fromkeys((NODE, *(CONTROL_PLANES[version] for version in kubernetes)))
    build.build([ETCD, *servers, *(ARGO[version] for version in argos), COREDNS, KWOK], progress)


def _build_programs_and_image(kubernetes: Iterable[str], argos: Iterable[str], progress: Progress) -> None:
    """The image's packages are downloaded while the programs are compiled."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        image = pool.submit(diflowimage.base_image, progress) if _has_project() else None
        _build_programs(kubernetes, argos, progress)
        if image is not None:
            image.result()


def _small_images(versions: list[str], progress: Progress) -> list[Image]:
    found = [smallimages.pause_image(progress), *smallimages.busybox_images(progress)]
    for version in versions:
        found += smallimages.argo_images(version, progress)
    return found


def _seed(kind: str, versions: list[str], progress: Progress) -> Path:
    images = _small_images(versions, progress)
    if _has_project():
        # Without the code, which changes far more often than the rest.
        images.append(diflowimage.base_image(progress))
    return seed.seed(kind, images, progress)


def _has_project() -> bool:
    return (REPOSITORY / "pyproject.toml").exists()


def _diflow_images(progress: Progress) -> list[Image]:
    return [diflowimage.diflow_image(progress)] if _has_project() else []
