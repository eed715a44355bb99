"""The texts that options of the simulator take, and which of them go together."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated

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
