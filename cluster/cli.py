"""The commands of `python3 -m cluster`. Data goes to stdout, progress to stderr."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster import argo, commands, lifecycle
from cluster.errors import ClusterError
from cluster.fakenodes import Size
from cluster.parts import ARGO_VERSIONS, DEFAULT_ARGO, DEFAULT_KUBERNETES, KUBERNETES_VERSIONS
from cluster.paths import DEFAULT_NAME
from cluster.progress import reporter

_FAILS = "false"
"""What `env` prints on failure: its `eval` then fails, too, instead of leaving another cluster selected in silence."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(given)
    except SystemExit as ends:
        if ends.code and given[0:1] == ["env"]:
            print(_FAILS)
        raise
    try:
        result = _run(options)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        if options.command == "env":
            print(_FAILS)
        return error.exit_code
    except KeyboardInterrupt:
        print(
            "interrupted; the same command continues, `python3 -m cluster down` removes what was created",
            file=sys.stderr,
        )
        return 130
    try:
        if result:
            print(result, flush=True)
    except BrokenPipeError:
        # The reader, such as `head`, has exited; Python must not flush again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _run(options: argparse.Namespace) -> str:  # noqa: PLR0911 - one return for each command
    progress = reporter()
    match options.command:
        case "build":
            return commands.build_everything(_versions(options.argo), progress)
        case "images":
            return commands.images(_versions(options.argo), Path(options.output) if options.output else None, progress)
        case "up":
            return commands.up(options.name, options.kubernetes, options.argo, progress)
        case "down":
            return commands.down(lifecycle.names() if options.all else [options.name], progress)
        case "status":
            found = commands.status(options.name)
            return json.dumps(found, indent=2) if options.output == "json" else commands.as_table(found)
        case "kubeconfig":
            return str(commands.kubeconfig(options.name))
        case "env":
            return commands.environment(options.name)
        case "load-image":
            return commands.load_images(
                options.name, [Path(f) for f in options.file], progress, training=options.training
            )
        case "fake-nodes":
            return commands.fake_nodes(
                options.name, options.count, Size(options.cpu, options.memory, options.gpus), progress
            )
        case "autoscaler":
            return commands.add_autoscaler(options.name, progress)
        case "second-node":
            return commands.second_node(options.name, progress, disk_mib=options.disk_mib)
        case _:
            return commands.argo_install(Path(options.kubeconfig), options.version, options.timeout, progress)


def _versions(chosen: str) -> list[str]:
    return list(ARGO_VERSIONS) if chosen == "all" else [] if chosen == "none" else [chosen]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m cluster", description="A real Kubernetes cluster on this machine, with Argo Workflows."
    )
    sub = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    versions = [*ARGO_VERSIONS, "all", "none"]

    build = sub.add_parser("build", help="build all programs and images into the cache")
    build.add_argument("--argo", choices=versions, default="all", help="which versions of Argo (default: all)")
    images = sub.add_parser("images", help="make the images, and write them as files where asked to")
    images.add_argument("--argo", choices=versions, default="all", help="which versions of Argo (default: all)")
    images.add_argument("--output", metavar="FOLDER", help="write each as a file that `docker load` takes")

    up = _named(sub.add_parser("up", help="bring a cluster up, or say that it is up already"))
    up.add_argument("--kubernetes", choices=KUBERNETES_VERSIONS, help=f"default: {DEFAULT_KUBERNETES}")
    up.add_argument("--argo", choices=[*ARGO_VERSIONS, "none"], help=f"default: {DEFAULT_ARGO}")
    down = _named(sub.add_parser("down", help="take a cluster down and remove every trace of it"))
    down.add_argument("--all", action="store_true", help="every cluster of this machine")
    status = sub.add_parser("status", help="how the clusters are")
    status.add_argument("--name", help="only this one")
    status.add_argument("-o", "--output", choices=["table", "json"], default="table")
    _named(sub.add_parser("kubeconfig", help="print the path of a cluster's kubeconfig"))
    _named(sub.add_parser("env", help="print shell lines that set KUBECONFIG and put kubectl and argo on the PATH"))
    load = _named(
        sub.add_parser("load-image", help="load this checkout's diflow image, or image files, into a cluster")
    )
    load.add_argument("file", nargs="*", help="files written by `docker save`; none: the diflow image")
    load.add_argument("--training", action="store_true", help="load the image of examples/ddp, with torch (1.1 GB)")
    fake = _named(sub.add_parser("fake-nodes", help="give a cluster that many fake nodes, for tests of scale"))
    fake.add_argument("--count", type=int, required=True, help="how many in all; fewer than now removes some")
    fake.add_argument("--cpu", default="32")
    fake.add_argument("--memory", default="256Gi")
    fake.add_argument("--gpus", type=int, default=0, help="nvidia.com/gpu on each (default: 0)")
    _named(sub.add_parser("autoscaler", help="run Karpenter in a cluster, which adds fake nodes for pending pods"))
    second = _named(sub.add_parser("second-node", help="give a cluster a second real node, with the same processors"))
    second.add_argument(
        "--disk-mib", type=int, default=0, help="a disk of its own for the volumes of its pods, in memory, of this size"
    )
    install = sub.add_parser("argo-install", help=f"install Argo into namespace {argo.NAMESPACE} of any cluster")
    install.add_argument("--kubeconfig", required=True)
    install.add_argument("--version", choices=ARGO_VERSIONS, default=DEFAULT_ARGO)
    install.add_argument("--timeout", type=float, default=300, help="seconds to wait for it (default: 300)")
    return parser


def _named(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--name", default=DEFAULT_NAME, help=f"the cluster's name (default: {DEFAULT_NAME})")
    return parser
