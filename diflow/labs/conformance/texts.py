"""Fact 9: a user's text reaches command, args and env byte for byte.

One pod gets every text three times, in `command`, in `args` and as an environment variable, and prints what the kernel
received.
"""

from __future__ import annotations

import base64
import binascii
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from diflow.labs.conformance import shapes
from diflow.labs.conformance.finding import FactFailedError
from diflow.labs.conformance.lab import Lab
from diflow.labs.conformance.outcome import Outcome

# Texts that a template engine, a shell, YAML, JSON or Kubernetes might interpret.
NASTY: Final[tuple[str, ...]] = (
    "{{x}}", "{{=1+1}}", "{{workflow.name}}", "{{ workflow.name }}", "{{=workflow.name}}",
    "{{inputs.parameters.index}}", "{{item}}", "{{retries}}", "{{pod.name}}", "{{workflow.parameters.granted}}",
    "{{=sprig.repeat(3, 'x')}}",
    "{{", "}}", "{", "}", "{{{", "}}}", "{{{{", "}}}}", "{{}}", "{{{}}}", "}}{{", "{ {", "} }", "{\n{", "{{\n}}", "{{ ",
    "{{={{x}}}}", "{{x}}{{y}}", "a{{x}}b{{=2*3}}c", "{{='{{'}}", "{{='{'}}{x}}", "{'{'{x}}", "{{\"}}\"}}", "{{'}}'}}",
    "{{- x -}}", "{{/* x */}}", "{% x %}", "{#x#}", "${x}", "#{x}", "<%= x %>", "\\{{x}}", "{\\{x}}",
    "\\u007b\\u007bx}}", "\\\\u007b{", "\\x7b{", "&#123;{x}}", "%7B%7Bx}}",
    "", " ", "  two  spaces  ", "\t", "\n", "line\nline", "line\r\nline", "ends with newline\n", "\nbegins with one",
    "'", '"', "''", '""', "`", "'{{x}}'", '"{{x}}"', "it's", 'say "x"', "\\", "\\\\", "\\n", "\\\"", "\\'", "a\\",
    '{"a":{"b":{}}}', '{"a":"{{x}}"}', '[{"{{":"}}"}]', "{{x}}\\", '{{x}}"', "a: b", "- a", "# no comment", "a #b", "|",
    ">", "*a", "&a", "!!str", "%a", "@a", "---", "...", "null", "~", "true", "no", "1", "1e3", "0x10", "012", "1_000",
    ".inf", "2026-01-01", "=", "<<", "? a",
    "$", "$$", "$$$", "$x", "$ x", "$()", "$(", "$)", "$(UNKNOWN)", "$$(UNKNOWN)", "$(TEXT_0)", "$$(TEXT_0)",
    "$(TEXT_0) {{x}}", "{{$(TEXT_0)}}", "$({{x}})", "$(date)", "`date`", "${HOME}", "!!", "*", "?", "~root", "a;b",
    "a&&b", "a|b", "a>b", "-n", "--", "-e {{x}}",
    "é", "日本語", "{{日本語}}", "🙂", "{{🙂}}", "e\u0301", "\u200b", "\u2028", "\u2029", "\ufeff", "\u0085", "\u00a0",
    "\u202e{{x}}", "\ufffd", "\uffff", "\U0010ffff", "\x01", "\x1b[31m", "\x7f", "\x80{{", "\x0b\x0c", "{\u200b{",
    "{{x}}" * 40, "{" * 99, "}" * 99, "x" * 2000,
)  # fmt: skip

_FRAGMENTS: Final = (
    "{", "{{", "}", "}}", "=", "1+1", "x", "workflow.name", "item", "inputs.parameters.index", "'", '"', "\\",
    "\\u007b", "\n", " ", "$", "$(", ")", "$(TEXT_1)", "é", "\u2028", "-", ":", "#", "\t",
)  # fmt: skip
_RANDOM_TEXTS: Final = 60
_SEED: Final = 1

# Linux gives a program its arguments and environment as bytes with a NUL after each. The shell runs under Argo's
# executor, so it uses its own PID, not 1; Kubernetes converts `$$$$` to `$$`. The executor writes lines in between, so
# each line is marked.
SCRIPT: Final = "base64 /proc/$$$$/cmdline | sed 's/^/arguments /'; base64 /proc/$$$$/environ | sed 's/^/environment /'"
_HEAD: Final = ("sh", "-c", SCRIPT, "probe")
_REFERENCE: Final = re.compile(r"\$\$|\$\(([^)]*)\)", re.DOTALL)


def random_texts(seed: int) -> tuple[str, ...]:
    """Texts made of fragments that are special to one of the programs involved."""
    chance = random.Random(seed)  # noqa: S311 (no secret: the same seed makes the same texts)
    return tuple("".join(chance.choices(_FRAGMENTS, k=chance.randint(1, 9))) for _ in range(_RANDOM_TEXTS))


def expand(text: str, known: Mapping[str, str]) -> str:
    """Expand a text as Kubernetes does: `$(NAME)` of a known variable is replaced, and `$$` is a dollar sign.

    This is documented behaviour of Kubernetes, so it applies to users of diflow, too.
    """

    def replace(match: re.Match[str]) -> str:
        if match.group() == "$$":
            return "$"
        return known.get(match.group(1), match.group())

    return _REFERENCE.sub(replace, text)


def variables(texts: Sequence[str]) -> dict[str, str]:
    """The expected environment variables with the texts, by name."""
    seen: dict[str, str] = {}
    for i, text in enumerate(texts):
        seen[_variable(i)] = expand(text, seen)
    return seen


def parse(lines: Sequence[str]) -> tuple[list[bytes], dict[str, bytes]]:
    """The arguments and the environment that SCRIPT printed. Raises FactFailedError if the output is invalid."""
    try:
        arguments, environment = (
            base64.b64decode("".join(line.removeprefix(mark) for line in lines if line.startswith(mark)), validate=True)
            for mark in ("arguments ", "environment ")
        )
    except binascii.Error:
        arguments = environment = b""
    if not arguments or not environment:
        raise FactFailedError(f"the pod did not print its arguments and environment, but {list(lines)[:3]}")
    pairs = [item.partition(b"=") for item in environment.split(b"\0")]
    return arguments.removesuffix(b"\0").split(b"\0"), {
        name.decode("utf-8", "replace"): v for name, _, v in pairs if name
    }


def differences(texts: Sequence[str], arguments: Sequence[bytes], environment: Mapping[str, bytes]) -> list[str]:
    """A message for each text that arrived changed."""
    env = variables(texts)
    wanted = [*_HEAD, *(expand(text, env) for text in (*texts, *texts))]
    # The script is ours, expanded by Kubernetes; the rest is the user's text.
    wanted[2] = expand(SCRIPT, env)
    wrong = []
    # Argo's executor resolves the program, so its name is a path; the rest is the user's text.
    for i, (text, given) in enumerate(zip(wanted[1:], arguments[1:], strict=False), start=1):
        if given != text.encode():
            wrong.append(f"argument {i}: {text!r} came as {given!r}")
    if len(wanted) != len(arguments):
        wrong.append(f"{len(arguments)} arguments came, not {len(wanted)}")
    for name, text in env.items():
        value = environment.get(name)
        if value != text.encode():
            wrong.append(f"variable {name}: {text!r} came as {value!r}")
    return wrong


def byte_for_byte(lab: Lab) -> Iterator[Outcome]:
    """Fact 9."""
    texts = tuple(dict.fromkeys((*NASTY, *random_texts(_SEED), *lab.texts)))
    container = {
        "command": [*_HEAD, *texts],
        "args": list(texts),
        "env": [{"name": _variable(i), "value": text} for i, text in enumerate(texts)],
    }
    job = shapes.job(lab.name("texts"), lab.image, "", container=container)
    with lab.run_job(job) as run:
        pod = run.until_ended(0)
        lines = run.logs(pod)
        run.until_succeeded()
    wrong = differences(texts, *parse(lines))
    if wrong:
        raise FactFailedError(f"{len(wrong)} of {3 * len(texts)} differ; the first: {'; '.join(wrong[:3])}")
    yield Outcome(9, f"{len(texts)} texts, each in command, args and env", {"texts": len(texts)})


def _variable(index: int) -> str:
    return f"TEXT_{index}"
