"""Generates docs/cli.md from the commands: `python -m diflow.cli.reference > docs/cli.md`."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any

import typer
from typer.models import OptionInfo

_HEAD = """\
# The `diflow` command

Written by `python -m diflow.cli.reference`; change the commands, not this page.

Data goes to stdout and everything else to stderr. Colours are written to a terminal only, and never with `NO_COLOR`.
Wherever a job is named, `@latest` is the newest one of the namespace. Ctrl-C detaches and never stops a job.
With `DIFLOW_DEBUG=1` an error is shown with its traceback.

| exit code | when |
|---|---|
| 0 | done |
| 1 | the job failed (or an unexpected error) |
| 2 | wrong usage or input |
| 3 | there is no such job |
| 4 | conflict: the name is taken, or the job has ended already |
| 5 | the cluster is unavailable, lacks something, or refuses |
| 124 | `--timeout` has passed |
| 130 | Ctrl-C; the job continues |
"""


def reference() -> str:
    """The page, as Markdown."""
    from diflow.cli.app import COMMANDS, GROUPS  # noqa: PLC0415

    pages = [_command(command) for command in COMMANDS]
    pages += [_command(command, group=group) for group, (_, commands) in GROUPS.items() for command in commands]
    return "\n".join([_HEAD, *pages])


def _command(command: Callable[..., Any], *, group: str = "") -> str:
    """One command, from its function and the annotations of its parameters."""
    hints = typing.get_type_hints(command, include_extras=True)
    hints.pop("return", None)
    arguments, options = [], []
    for name, hint in hints.items():
        if hint is typer.Context:
            options.append(("`...`", "options of its own"))
            continue
        kind, info = typing.get_args(hint)[:2]
        if isinstance(info, OptionInfo):
            options.append((_flags(name, info, kind), info.help or ""))
        else:
            arguments.append((info.metavar or name.upper(), info.help or ""))
    name = f"{group} {command.__name__.rstrip('_')}".strip()
    usage = " ".join(["diflow", name, *(place for place, _ in arguments), *(["[options]"] if options else [])])
    rows = [(f"`{place}`", text) for place, text in arguments] + options
    table = ["| | |", "|---|---|", *(f"| {_cell(left)} | {_cell(right)} |" for left, right in rows), ""] if rows else []
    return "\n".join([f"## diflow {name}", "", f"    {usage}", "", inspect.cleandoc(command.__doc__ or ""), "", *table])


def _flags(name: str, info: OptionInfo, kind: Any) -> str:
    given = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str)]
    flags = ", ".join(f"`{flag}`" for flag in sorted(given or [f"--{name}"], key=len))
    kinds = typing.get_args(kind) or (kind,)
    for one in kinds:
        if one is bool:
            return flags
        if isinstance(one, type) and issubclass(one, Enum):
            return f"{flags} {' | '.join(str(choice.value) for choice in one)}"
    return f"{flags} {info.metavar or ('N' if int in kinds else name.upper())}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
