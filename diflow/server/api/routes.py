"""Routes: handlers, each with the `operation` that it answers. The server and its OpenAPI document are made of these.

    class Greetings(Routes):
        tag, about = "greetings", "What visitors are told."

        @operation("GET", "/hello/{name}", answer=Answer(str, "Greeting"))
        async def say_hello(self, exchange: Exchange) -> None:
            '''Greet somebody.

            The document has both parts of this text, and the name sayHello.
            '''

`openapi.tags` lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any, ClassVar, Final, Literal, TypeVar

from pydantic.alias_generators import to_camel
from starlette.types import Receive, Scope, Send

from diflow.server.api.core import Core
from diflow.server.http.errors import ApiError
from diflow.server.http.exchange import Exchange, Handler

_OPERATION: Final = "operation"

Described = TypeVar("Described", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a path, a query or a header. `kind`: its type, with its bounds."""

    name: str
    where: Literal["path", "query", "header"]
    kind: Any
    description: str = ""
    example: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A success. `kind`: the type of its data, `...` for an empty body. `name`: the schema of these data in the
    envelope; "" if there is no envelope."""

    kind: Any
    name: str = ""
    description: str = "Done."


READS: Final = (400, 401, 403, 404, 405, 409, 410, 429, 500, 503)
WRITES: Final = (400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 429, 500, 503)
DONE: Final = Answer(None, "Done")


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of a path. `errors`: the statuses of refusals; `body`: the type of what is sent; `is_report`: a
    frequent request that changes no wanted state."""

    method: str
    path: str
    name: str
    summary: str
    description: str
    body: Any
    parameters: tuple[Parameter, ...]
    answer: Answer
    errors: tuple[int, ...]
    is_report: bool

    @property
    def shown(self) -> str:
        """The path as documents and metrics have it: without the kinds of Starlette's parameters."""
        return self.path.replace(":path}", "}")


def operation(
    method: str,
    path: str,
    *,
    body: Any = None,
    parameters: tuple[Parameter, ...] = (),
    answer: Answer = DONE,
    errors: tuple[int, ...] = (),
    is_report: bool = False,
) -> Callable[[Described], Described]:
    """Declare which operation a handler answers. Its name, summary and description are those of the handler. `errors`:
    by default those of reading a job, or with a body of writing."""

    def declare(handler: Described) -> Described:
        summary, _, rest = cleandoc(handler.__doc__ or "").partition("\n\n")
        handler.__dict__[_OPERATION] = Operation(
            method,
            path,
            to_camel(handler.__name__),
            _line(summary).removesuffix("."),
            _line(rest),
            body,
            parameters,
            answer,
            errors or (READS if body is None else WRITES),
            is_report,
        )
        return handler

    return declare


def _line(text: str) -> str:
    return " ".join(text.split())


class Routes:
    """Handlers of the operations of one tag, the most frequent first."""

    tag: ClassVar[str]
    about: ClassVar[str]
    """What the tag is, in the document."""
    prefixes: ClassVar[Mapping[str, str]] = {"": ""}
    """Before each path, and what the names of the operations end with there."""
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    """Those that paths name."""
    needs_token: ClassVar[bool] = True
    missing: ClassVar[Mapping[str, Handler]] = {}
    """Answers of methods that a path does not have, instead of 405."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @classmethod
    def operations(cls) -> list[Operation]:
        """What the handlers answer, in their order."""
        return [found for each in vars(cls).values() if (found := _operation_of(each)) is not None]

    @classmethod
    def parameters_of(cls, one: Operation) -> list[Parameter]:
        """The parameters in the path of an operation."""
        return [each for each in cls.parameters if f"{{{each.name}}}" in one.shown]

    @classmethod
    def reports(cls) -> list[str]:
        """The routes of reports."""
        return [prefix + each.shown for prefix in cls.prefixes for each in cls.operations() if each.is_report]

    def endpoints(self) -> list[tuple[str, Endpoint]]:
        """(pattern of the route, endpoint)."""
        methods: dict[str, dict[str, Handler]] = {}
        routes: dict[str, str] = {}
        for name in vars(type(self)):
            handler = getattr(self, name)
            if (found := _operation_of(handler)) is not None:
                methods.setdefault(found.path, dict(self.missing))[found.method] = handler
                routes[found.path] = found.shown
        return [
            (prefix + path, Endpoint(prefix + route, methods[path]))
            for path, route in routes.items()
            for prefix in self.prefixes
        ]


def _operation_of(handler: Any) -> Operation | None:
    return getattr(handler, "__dict__", {}).get(_OPERATION)


class Endpoint:
    """An ASGI endpoint that calls the handler of the method. The connection limits how long it may take."""

    def __init__(self, route: str, methods: Mapping[str, Handler]) -> None:
        self.route = route
        self._methods = dict(methods)
        if "GET" in self._methods:
            self._methods["HEAD"] = self._methods["GET"]
        self.allowed = ", ".join(sorted(self._methods))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["route"] = self.route
        handler = self._methods.get(scope["method"])
        if handler is None:
            raise ApiError(405, f"the methods of this path are {self.allowed}", headers={"Allow": self.allowed})
        await handler(Exchange(scope, receive, send))
