"""The OpenAPI document is correct: requests that it allows, and many that it does not, are answered as it says.

Schemathesis makes the requests out of the document, sends them into the application, and judges the answers. No
request may end in a 5xx.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.python import asgi
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    missing_required_header,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from diflow.server.api.openapi import document, text
from diflow.server.api.reference import reference
from diflow.server.settings import ServerSettings
from tests.contrib.di_orchestrator.test_routes import submitted
from tests.kube.fakeapi import serving
from tests.server.place import Place, bearer, elastic, mixed

# `positive_data_acceptance` is not among them: a request can be well formed and ask for more than a job may have.
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    missing_required_header,
    unsupported_method,
    allow_header_conformance,
]
REAL: dict[str, list[dict[str, Any]]] = {
    "/v2alpha1": [{"id": "default.mixed"}, {"id": "default.elastic.1"}],
    "/hints": [{"namespace": "default", "name": "elastic"}],
    "/discover": [{"namespace": "default", "name": "elastic", "group": 0}],
}
MODULES = {"namespace": "default", "coordinator": "old-coordinator"}
EXAMPLES = 8
ROOT = Path(__file__).resolve().parents[3]


def _operations() -> Iterator[tuple[str, str, Any]]:
    for path, item in document()["paths"].items():
        for method in item.keys() - {"parameters"}:
            yield method.upper(), path, GenerationMode.POSITIVE
            if "parameters" in item:  # else nothing about a request can be wrong
                yield method.upper(), path, GenerationMode.NEGATIVE


RUNS = sorted(_operations(), key=str)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A fake cluster with two jobs."""
    with serving() as api:
        place = Place(api, settings=ServerSettings(job_rate=1e6, job_burst=1e6, poll_seconds=0))
        place.running(mixed())
        place.running(elastic())
        submitted(place)
        place.cache.start()
        try:
            assert place.cache.wait_synced(60)
            yield place
        finally:
            place.cache.stop()


@pytest.fixture
def served(place: Place) -> Iterator[tuple[Any, str]]:
    """The document, bound to an application over that cluster, and the token of somebody who may do all in it."""
    person = place.authority.person("ada", ("get", "default", "*"), ("patch", "default", "*"))
    try:
        yield schemathesis.openapi.from_asgi("/openapi.json", place.make_app()), person
    finally:
        asgi.shutdown_lifespans()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "mode"), RUNS, ids=[f"{mode} {method} {path}" for method, path, mode in RUNS]
)
def test_every_operation_answers_as_the_document_says(
    served: tuple[Any, str], method: str, path: str, mode: GenerationMode
) -> None:
    schema, person = served
    operation = schema[path][method]
    real = next((ways for prefix, ways in REAL.items() if path.startswith(prefix)), [])

    is_v1 = path.startswith("/v1alpha1")
    # Other methods have the answer of DI-orchestrator, 501.
    checks = [check for check in CHECKS if not is_v1 or check not in (unsupported_method, allow_header_conformance)]

    def ask(case: Case[Any]) -> None:
        if is_v1 and mode is GenerationMode.POSITIVE:
            if isinstance(case.body, dict):
                case.body |= MODULES
            case.query = {**(case.query or {}), **({} if method != "GET" else MODULES)}
        response = case.call()
        case.validate_response(response, checks=checks)

    if mode is GenerationMode.NEGATIVE and method == "GET" and path.startswith("/v2alpha1"):
        real = []  # of a good id nothing is left that could be wrong
    for where in [*real, None]:
        fixed = {"path_parameters": where} if where else {}
        cases = operation.as_strategy(generation_mode=mode, headers=bearer(person), **fixed)
        run = settings(
            max_examples=EXAMPLES,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(given(case=cases)(ask))
        run()


def test_the_checked_in_document_is_the_one_that_the_models_make() -> None:
    assert (ROOT / "server" / "openapi.json").read_text(encoding="utf-8") == text(), "run `make golden`"


def test_the_page_of_the_api_is_the_one_that_the_document_makes() -> None:
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == reference(), "run `make golden`"


def test_the_document_speaks_openapi_3_1_and_names_every_refusal() -> None:
    made = json.loads(text())
    assert made["openapi"].startswith("3.1")
    for path, item in made["paths"].items():
        for method, operation in item.items():
            if method == "parameters" or not path.startswith(("/v2alpha1", "/v1alpha1")):
                continue
            assert {"400", "401", "403", "404", "409", "429", "503"} <= operation["responses"].keys()
