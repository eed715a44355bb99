"""Writes docs/api.md from the OpenAPI document: `python -m diflow.server.api.reference > docs/api.md`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from diflow.server.api.openapi import ERRORS, document

Json = Mapping[str, Any]

_HEAD: Final = """\
# The REST API

Written by `python -m diflow.server.api.reference`; change the models and routes, not this page. The same for
machines is [server/openapi.json](../server/openapi.json), which the server gives at `/openapi.json`.
"""
_LIMITS: Final = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
}


def reference() -> str:
    """The page, as Markdown."""
    made = document()
    parts = [_HEAD, made["info"]["description"].strip(), "", "## Routes", "", *_overview(made)]
    for path, item in made["paths"].items():
        if path.startswith("/v2alpha1/{id}"):
            continue  # the same as with /job
        for method, operation in item.items():
            if method != "parameters":
                parts += _operation(made, path, method, operation, item.get("parameters", []))
    parts += [*_refusals(), "", "## Bodies"]
    for name in ("ReplicasRequest", "Profiling", "Hints", "GradParams", "PerfParams"):
        parts += _model(made, name)
    return "\n".join(parts) + "\n"


def _overview(made: Json) -> list[str]:
    lines = ["| route | what for |", "|---|---|"]
    for path, item in made["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                lines.append(f"| `{method.upper()} {path}` | {operation['summary']} |")
    return [*lines, "", "`/v2alpha1/{id}/...` and `/v2alpha1/job/{id}/...` are the same."]


def _operation(made: Json, path: str, method: str, operation: Json, shared: list[Json]) -> list[str]:
    lines = [
        "",
        f"### {method.upper()} {path}",
        "",
        f"{operation['summary']}. {operation.get('description', '')}".strip(),
    ]
    parameters = [*shared, *operation.get("parameters", [])]
    if parameters:
        lines += ["", "| parameter | in | |", "|---|---|---|"]
        lines += [f"| `{p['name']}` | {p['in']} | {_cell(p.get('description', ''))} |" for p in parameters]
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        names = [_name(option) for option in schema.get("anyOf", [schema])]
        # The wrapped form is said in words: under `data` or bare.
        lines += ["", f"Body: {', '.join(f'[{n}](#{n.lower()})' for n in names if not n.startswith('Wrapped'))}."]
    done = operation["responses"]["200"]
    refusals = [code for code in operation["responses"] if code != "200"]
    lines += ["", f"200: {_cell(done['description'])}{_data(made, done)} Else {', '.join(refusals)}."]
    return lines


def _refusals() -> list[str]:
    lines = ["", "## Refusals", "", "| status | when |", "|---|---|"]
    return [*lines, *(f"| {status} | {_cell(text)} |" for status, text in ERRORS.items())]


def _data(made: Json, answer: Json) -> str:
    """What `data` is, where it says more than nothing."""
    schema = ((answer.get("content") or {}).get("application/json") or {}).get("schema") or {}
    if _name(schema) == "Replicas":
        return " " + _cell(made["components"]["schemas"]["Replicas"]["properties"]["data"]["description"])
    return ""


def _model(made: Json, name: str) -> list[str]:
    schema = made["components"]["schemas"][name]
    lines = ["", f"### {name}", "", _flat(schema.get("description", "")), "", "| field | type | |", "|---|---|---|"]
    required = schema.get("required", [])
    for field, value in schema["properties"].items():
        star = " (required)" if field in required else ""
        lines.append(f"| `{field}`{star} | {_type(value)} | {_cell(value.get('description', ''))} |")
    return lines


def _type(schema: Json) -> str:
    if "$ref" in schema:
        return f"[{_name(schema)}](#{_name(schema).lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"] if option.get("type") != "null")
    limits = [text.format(_number(schema[key])) for key, text in _LIMITS.items() if key in schema]
    inner = f" of {_type(schema['items'])}" if "items" in schema else ""
    return f"{schema.get('type', 'any')}{inner}" + (f", {', '.join(limits)}" if limits else "")


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _name(schema: Json) -> str:
    return str(schema.get("$ref", "")).rsplit("/", maxsplit=1)[-1]


def _flat(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines()).strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """Print the page."""
    sys.stdout.write(reference())


if __name__ == "__main__":
    main()
