"""The server's settings, and the errors of a start with invalid ones."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from diflow.common.errors import InvalidError
from diflow.server.http.serving import serve
from diflow.server.settings import ServerSettings, server_settings
from diflow.server.telemetry import Telemetry


async def nothing(*_: Any) -> None:
    """An application that is never asked."""


def test_the_environment_sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFLOW_SERVER_BODY_BYTES", "1024")
    monkeypatch.setenv("DIFLOW_SERVER_UNPROVEN_PODS", "true")
    found = server_settings(port=1234)
    assert (found.body_bytes, found.unproven_pods, found.port) == (1024, True, 1234)
    assert ServerSettings.model_fields["unproven_pods"].default is False, "nobody is believed unless somebody says so"


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("BODY_BYTES", "0", "a whole number of at least 1,024 and at most 16,777,216"),
        ("REVIEW_SECONDS", "61", "a number of more than 0 and at most 60"),
        ("PORT", "70000", "a whole number of at least 0 and at most 65,535"),
        ("WRITERS", "many", "a whole number of at least 1 and at most 64"),
        ("CONNECTIONS", "1e3", "a whole number of at least 1"),
        ("LINGER_SECONDS", "inf", "a number of more than 0"),
        ("LINGER_SECONDS", "nan", "a number of more than 0"),
        ("UNPROVEN_PODS", "maybe", "true or false"),
    ],
)
def test_a_wrong_one_is_named_with_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, wanted: str
) -> None:
    monkeypatch.setenv(f"DIFLOW_SERVER_{name}", value)
    with pytest.raises(InvalidError) as refused:
        server_settings()
    assert str(refused.value) == f"DIFLOW_SERVER_{name}: must be {wanted}, not {value!r}"


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(InvalidError, match="give both DIFLOW_SERVER_TLS_CERTIFICATE and _TLS_KEY"):
        server_settings(tls_certificate=Path("cert"))


def test_what_cannot_be_listened_on_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = ServerSettings(host="127.0.0.1", port=port, metrics_port=-1)
        with pytest.raises(InvalidError, match=f"127.0.0.1:{port} cannot be listened on: Address already in use"):
            serve(nothing, settings, telemetry=Telemetry())
    with pytest.raises(InvalidError, match="cannot be listened on"):
        serve(nothing, ServerSettings(host="no.such.host.invalid", metrics_port=-1), telemetry=Telemetry())


def test_a_certificate_that_is_not_there_is_said(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, metrics_port=-1, tls_certificate=tmp_path / "a", tls_key=tmp_path / "b")
    with pytest.raises(InvalidError, match="No such file"):
        serve(nothing, settings, telemetry=Telemetry())


def test_not_ready_from_the_signal_on_and_with_the_reason_before() -> None:
    telemetry = Telemetry(trouble=lambda: "no cache", ages=lambda: {"pods": 1.5})
    assert telemetry.why_not_ready() == "no cache"
    telemetry.trouble = lambda: ""
    assert telemetry.why_not_ready() == ""
    telemetry.is_ending = True
    assert telemetry.why_not_ready() == "ending"
    page = telemetry.page().decode()
    assert 'diflow_server_cache_age_seconds{kind="pods"} 1.5' in page
    assert "diflow_server_ready 0.0" in page


def test_a_port_of_all_addresses_that_is_taken_is_said() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(InvalidError, match="cannot be listened on: Address already in use"),
    ):
        serve(nothing, ServerSettings(port=taken.getsockname()[1], metrics_port=-1), telemetry=Telemetry())
