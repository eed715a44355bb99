"""The texts that options of the simulator take, and which of them go together."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from diflow.allocator.policies.settings import PolicySettings, policy_settings
from diflow.common.errors import InvalidError
from diflow.labs.simulator.replay import Pool
from diflow.record import untrusted

_POOL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""The values of labels."""
Output = Annotated[str, typer.Option("--output", "-o", help="The output format: text or json.")]
MOST_SECONDS = 86400.0
"""Longest period and restart."""


def number(low: float, high: float = math.inf) -> Callable[[str | float], float]:
    """A parser of an option: a number from `low` to `high`."""

    def parse(text: str | float) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:  # false for NaN
            span = f"of at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
            raise typer.BadParameter(f"must be a number {span}, not {str(text)[:40]!r}")
        return value

    return parse


_ANY, _PART = number(0), number(0, 0.9)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is replayed, and under which policies."""

    workload: Annotated[
        Path | None,
        typer.Option(
            help="The workload, a CSV file with the columns name, time, application, num_replicas and batch_size."
        ),
    ] = None
    profiles: Annotated[Path | None, typer.Option(help="The folder with the measured applications.")] = None
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="The policy, such as fit or goodput (default: goodput); repeatable, to compare policies side by side.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The nodes."""

    nodes: Annotated[int, typer.Option(min=1, help="The number of nodes in the cluster.")] = 16
    gpus: Annotated[int, typer.Option(min=1, help="The number of GPUs of each node.")] = 4
    pool: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NODESxGPUS",
            help="A pool of nodes with so many GPUs each, such as a100=2x8, instead of --nodes and --gpus; repeatable. "
            "--profiles then has a folder with the measured applications for each pool.",
        ),
    ] = None
    pool_speed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SPEED", help="The relative speed that the policy assumes of a pool (default: 1); repeatable."
        ),
    ] = None
    rack_nodes: Annotated[int, typer.Option(min=0, help="The number of nodes in a rack; 0 for no topology.")] = 0
    block_racks: Annotated[int, typer.Option(min=0, help="The number of racks in a block; 0 for no blocks.")] = 0
    required: Annotated[
        str,
        typer.Option(
            help="The level of which each job requires one domain: rack or block (default: none).", show_default=False
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How the jobs behave, and what they report."""

    profiled: Annotated[
        bool, typer.Option("--profiled", help="Give each job its step times on one GPU of each pool at its start.")
    ] = False
    most_local: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POOL/APP=SAMPLES",
            help="The largest batch, in samples, of a replica of an application in a pool; repeatable.",
        ),
    ] = None
    restart_of: Annotated[
        list[str] | None,
        typer.Option(metavar="APP=SECONDS", help="The --restart-seconds of an application; repeatable."),
    ] = None
    restart_seconds: Annotated[
        float,
        typer.Option(
            parser=_ANY, metavar="SECONDS", help="Seconds for which a job stands still after a move or a resize."
        ),
    ] = 30.0
    period_seconds: Annotated[
        float,
        typer.Option(parser=number(1), metavar="SECONDS", help="Seconds from one call of the policy to the next."),
    ] = 60.0
    load_factor: Annotated[
        float,
        typer.Option(
            "--load",
            parser=number(0.01),
            metavar="FACTOR",
            help="The factor of the rate at which jobs arrive: 2 is twice as many an hour.",
        ),
    ] = 1.0
    noise: Annotated[
        float,
        typer.Option(
            parser=_PART, metavar="PART", help="The largest relative error of the reported times, from 0 to 0.9."
        ),
    ] = 0.0
    interference: Annotated[
        float,
        typer.Option(
            parser=_PART,
            metavar="PART",
            help="The part of its speed that a job on several nodes loses while another one shares a node of it, "
            "from 0 to 0.9.",
        ),
    ] = 0.0
    report_progress: Annotated[
        bool, typer.Option("--progress/--no-progress", help="Let the jobs report their progress.")
    ] = True
    progress_share: Annotated[
        float,
        typer.Option(
            parser=number(0, 1), metavar="PART", help="The part of the jobs that report their progress, from 0 to 1."
        ),
    ] = 1.0
    seed: Annotated[
        int, typer.Option(min=0, help="The seed of the random numbers: the same seed gives the same result.")
    ] = 0


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """What the policy assumes, and what earlier jobs have left."""

    assumed_restart_seconds: Annotated[
        float | None,
        typer.Option(
            parser=_ANY,
            metavar="SECONDS",
            help="Seconds for which the policy assumes that a job stands still (default: --restart-seconds).",
            show_default=False,
        ),
    ] = None
    past: Annotated[
        Path | None,
        typer.Option(
            help="A workload that is replayed first. The jobs of --workload start from the memory that it leaves."
        ),
    ] = None
    memory: Annotated[
        bool,
        typer.Option(
            "--memory/--no-memory", help="Let jobs start from what earlier jobs of their application have shown."
        ),
    ] = False
    poison: Annotated[
        float,
        typer.Option(
            parser=number(0, 3),
            metavar="SIGMA",
            help="The sigma of the lognormal factors by which the memory of --past is multiplied, from 0 to 3.",
        ),
    ] = 0.0
    growth: Annotated[
        float | None,
        typer.Option(
            parser=number(1),
            metavar="FACTOR",
            help="The policy setting largest_growth: a job may grow to so many times the most replicas that it has "
            "reported (default: 2).",
        ),
    ] = None
    start: Annotated[
        int | None,
        typer.Option(
            min=1, help="The policy setting largest_start: the most replicas of a job without reports (default: 4)."
        ),
    ] = None
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A policy setting, such as queue_ahead=2, with lists in JSON; repeatable.",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What is shown, and where."""

    out: Annotated[Path | None, typer.Option(help="The folder for tables (CSV, JSON) and pictures.")] = None
    pictures: Annotated[bool, typer.Option(help="Draw pictures into --out, too.")] = True
    output: Output = "text"
    journal: Annotated[
        Path | None,
        typer.Option(
            help="A journal of the allocator, instead of a workload: show where the policies decide differently."
        ),
    ] = None


def with_option_groups(run: Callable[..., None]) -> Callable[..., None]:
    """A command for typer whose options are the fields of the dataclasses that `run` takes."""
    groups = {name: kind for name, kind in get_type_hints(run).items() if name != "return"}
    hints = {name: hint for kind in groups.values() for name, hint in get_type_hints(kind, include_extras=True).items()}

    @wraps(run)
    def command(**given: Any) -> None:
        names = {group: [field.name for field in fields(kind)] for group, kind in groups.items()}
        run(**{group: kind(**{name: given[name] for name in names[group]}) for group, kind in groups.items()})

    options = (
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name])
        for kind in groups.values()
        for one in fields(kind)
    )
    command.__signature__ = inspect.Signature(list(options))  # type: ignore[attr-defined]
    command.__annotations__ = hints
    return command


def pools_of(texts: list[str]) -> tuple[Pool, ...]:
    """The pools that the options name, each as `NAME=NODESxGPUS`."""
    out: dict[str, Pool] = {}
    for text in texts:
        name, equals, size = text.partition("=")
        nodes, _, gpus = size.partition("x")
        counts = [untrusted.whole(part, digits=6) for part in (nodes, gpus)]
        if not equals or not _POOL.fullmatch(name) or not all(counts):
            raise InvalidError(f"--pool takes NAME=NODESxGPUS, such as a100=2x8, not {text[:60]!r}")
        if name in out:
            raise InvalidError(f"--pool names the pool {name!r} twice")
        out[name] = Pool(name, *(count or 0 for count in counts))
    return tuple(out.values())


def check_pools(pools: tuple[Pool, ...], speeds: Mapping[str, float], *, only_with_pools: bool, topology: bool) -> None:
    if not pools and (only_with_pools or speeds):
        raise InvalidError("--profiled, --most-local and --pool-speed are about pools: give them with --pool")
    if strange := speeds.keys() - {pool.name for pool in pools}:
        raise InvalidError(f"--pool-speed names the pool {min(strange)!r}, which no --pool has")
    if pools and topology:
        raise InvalidError("--rack-nodes and --required do not go with --pool: its nodes have no topology here")


def numbers_of(option: str, texts: list[str] | None) -> dict[str, float]:
    """The numbers above 0 that the options give, each as `NAME=NUMBER`, by the name."""
    out: dict[str, float] = {}
    for text in texts or []:
        name, _, amount = text.rpartition("=")
        try:
            value = float(amount)
        except ValueError:
            value = math.nan
        if not name or not 0 < value <= MOST_SECONDS:
            raise InvalidError(f"{option} takes NAME=NUMBER, above 0 and at most {MOST_SECONDS:g}, not {text[:60]!r}")
        out[name] = value
    return out


def local_batches_of(texts: list[str] | None) -> dict[tuple[str, str], int]:
    """The largest batches of a replica that the options give, each as `POOL/APP=SAMPLES`."""
    out: dict[tuple[str, str], int] = {}
    for text in texts or []:
        name, _, amount = text.rpartition("=")
        pool, _, application = name.partition("/")
        value = untrusted.whole(amount, digits=9)
        if not pool or not application or not value:
            raise InvalidError(f"--most-local takes POOL/APP=SAMPLES, not {text[:60]!r}")
        out[pool, application] = value
    return out


def settings_of(pairs: list[str], **given: object) -> PolicySettings:
    """The settings of the policies: from the environment, from the options, and last from `NAME=VALUE`."""
    values = {name: value for name, value in given.items() if value is not None}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in PolicySettings.model_fields:
            known = ", ".join(sorted(PolicySettings.model_fields))
            raise InvalidError(f"--set takes NAME=VALUE with a setting of the policies ({known}), not {pair[:60]!r}")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return policy_settings(**values)


def check_output(output: str) -> None:
    if output not in ("text", "json"):
        raise InvalidError(f"--output is text or json, not {output!r}")


def check_times(**seconds: float) -> None:
    """Raise InvalidError for a time that is too long, by its option."""
    for option, value in seconds.items():
        if not value <= MOST_SECONDS:
            raise InvalidError(f"--{option.replace('_', '-')} must be at most {MOST_SECONDS:g}, not {value:g}")
