"""The internals of uvicorn that `server/http` relies on: they exist, and the lists here are complete.

uvicorn promises none of them, so `pyproject.toml` allows one minor version of it. To raise that version, run this
test first, and then compare `uvicorn/protocols/http/httptools_impl.py` of both versions.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import uvicorn
from uvicorn.lifespan.on import LifespanOn
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from diflow.server.http import connection, serving
from diflow.server.http.transport import DrainingTransport

OVERRIDDEN = {
    "__init__", "_start_asgi_task", "connection_lost", "connection_made", "data_received", "on_body", "on_header",
    "on_headers_complete", "on_message_begin", "on_message_complete", "on_response_complete", "on_url",
}  # fmt: skip
INHERITED = {
    "client", "connections", "cycle", "flow", "headers", "loop", "parser", "pipeline", "scheme", "server",
    "server_state", "tasks", "transport",
}  # fmt: skip
CYCLE = {
    "disconnected", "keep_alive", "message_event", "more_body", "on_response", "receive", "response_complete",
    "response_started", "scope", "send",
}  # fmt: skip
FLOW = {"read_paused", "resume_reading", "resume_writing"}
STATE = {"default_headers", "total_requests"}
LIFESPAN = {"should_exit", "shutdown", "shutdown_failed", "startup", "state"}
PARAMETERS: dict[Callable[..., Any], set[str]] = {
    HttpToolsProtocol.__init__: {"config", "server_state", "app_state", "_loop"},
    HttpToolsProtocol._start_asgi_task: {"cycle", "app"},
    FlowControl.__init__: {"transport"},
    LifespanOn.__init__: {"config"},
    uvicorn.Config.__init__: {
        "app", "http", "ws", "lifespan", "interface", "log_config", "access_log", "proxy_headers", "server_header",
    },
}  # fmt: skip
TRANSPORT = {"close", "is_closing", "write"}
"""What uvicorn's code calls of the transport, so what `DrainingTransport` must have."""
UNREACHED = {"handle_websocket_upgrade"}
"""Methods of uvicorn's protocol that `ws="none"` rules out."""


def made() -> dict[str, Any]:
    """An object of each class of uvicorn that the code uses."""

    async def inside() -> dict[str, Any]:
        config = uvicorn.Config(lambda: None, http="httptools", ws="none", interface="asgi3", log_config=None)
        base = HttpToolsProtocol(config, ServerState(), {}, asyncio.get_running_loop())
        flow: Any = FlowControl(asyncio.Transport())
        cycle = RequestResponseCycle(
            scope={"headers": []},  # type: ignore[typeddict-item]
            transport=asyncio.Transport(),
            flow=flow,
            logger=base.logger,
            access_logger=base.access_logger,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=lambda: None,
        )
        return {
            "HttpToolsProtocol": base,
            "RequestResponseCycle": cycle,
            "FlowControl": flow,
            "ServerState": ServerState(),
            "LifespanOn": LifespanOn(base.config),
        }

    return asyncio.run(inside())


def test_uvicorn_has_all_internals_that_the_server_relies_on() -> None:
    relied_on = {
        "HttpToolsProtocol": OVERRIDDEN | INHERITED,
        "RequestResponseCycle": CYCLE,
        "FlowControl": FLOW,
        "ServerState": STATE,
        "LifespanOn": LIFESPAN,
    }
    objects = made()
    missing = [
        f"{owner}.{name}" for owner, names in relied_on.items() for name in names if not hasattr(objects[owner], name)
    ]
    missing += [
        f"{function.__qualname__}({name}=)"
        for function, names in PARAMETERS.items()
        for name in names - inspect.signature(function).parameters.keys()
    ]
    assert not missing, (
        f"uvicorn {version('uvicorn')} lacks what diflow/server/http relies on: {', '.join(sorted(missing))}. Adapt "
        "connection.py and serving.py to this version, or pin an older one in pyproject.toml"
    )


def test_the_lists_are_complete() -> None:
    base = made()["HttpToolsProtocol"]
    tree = class_in(connection, "Connection")
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert {name for name in defined if hasattr(HttpToolsProtocol, name)} == OVERRIDDEN
    used = attributes(tree, {"self"}) - defined
    assert {name for name in used if hasattr(base, name)} == INHERITED
    whole = ast.parse(source(connection))
    assert attributes(whole, {"cycle", "request", "last"}) == CYCLE
    assert attributes(whole, {"flow"}) == FLOW
    both = ast.Module([*whole.body, *ast.parse(source(serving)).body], [])
    assert attributes(both, {"server_state", "_state"}) == STATE
    assert attributes(both, {"lifespan"}) == LIFESPAN


def test_uvicorn_calls_of_the_transport_only_what_it_is_given() -> None:
    tree = class_in(httptools_impl, "HttpToolsProtocol")
    inherited = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name not in OVERRIDDEN - {"on_headers_complete"} | UNREACHED
    ]
    cycle = class_in(httptools_impl, "RequestResponseCycle")
    assert attributes(ast.Module([*inherited, cycle], []), {"transport"}) == TRANSPORT
    assert all(hasattr(DrainingTransport, name) for name in TRANSPORT)


def test_the_connection_adds_no_name_that_uvicorn_has_for_something_else() -> None:
    base = made()["HttpToolsProtocol"]
    own = attributes(class_in(connection, "Connection"), {"self"}) - INHERITED - OVERRIDDEN
    assert not [name for name in own if hasattr(base, name)]


def test_one_minor_version_of_uvicorn_is_allowed() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (pin,) = (line for line in project["optional-dependencies"]["server"] if line.startswith("uvicorn"))
    major, minor = version("uvicorn").split(".")[:2]
    assert pin == f"uvicorn>={major}.{minor},<{major}.{int(minor) + 1}"


def source(module: ModuleType) -> str:
    assert module.__file__ is not None
    return Path(module.__file__).read_text(encoding="utf-8")


def class_in(module: ModuleType, name: str) -> ast.ClassDef:
    (found,) = (n for n in ast.parse(source(module)).body if isinstance(n, ast.ClassDef) and n.name == name)
    return found


def attributes(tree: ast.AST, owners: set[str]) -> set[str]:
    """The names after the dot of `owner.name` and `anything.owner.name`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            value = node.value
            owner = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
            if owner in owners:
                found.add(node.attr)
    return found
