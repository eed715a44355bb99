"""The names of the queues and the rules of the namespaces are public; nothing else of `queues.yaml` is."""

from __future__ import annotations

import json
from typing import Any

from diflow.common import keys
from diflow.common.queue_access import NamespaceRule, QueueAccess
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP
from tests.allocator.faults import client
from tests.allocator.lab import Lab, lab

TEXT = """
queues:
  - {name: default}
  - {name: vision, weight: 7, guarantee: {cpu: 4}, cap: {cpu: 80}}
namespaces:
  - {name: "vision-*", queues: [vision], priorities: [normal]}
  - {name: "*", queues: [default]}
"""


def define(at: Lab, text: str) -> None:
    at.api.add(
        CONFIG_MAP, {"metadata": {"name": keys.QUEUES}, "data": {"queues.yaml": text}}, namespace="diflow-system"
    )


def public(at: Lab) -> dict[str, Any]:
    return dict(at.api.objects[CONFIG_MAP.path("kube-public")][keys.PUBLIC_QUEUES].get("data") or {})


def install(at: Lab, text: str) -> Cluster:
    at.api.add(CONFIG_MAP, {"metadata": {"name": keys.PUBLIC_QUEUES}}, namespace="kube-public")
    define(at, text)
    at.begin()
    at.until(lambda: public(at), "it is published")
    return client(at.api)


def test_who_leads_publishes_names_and_rules_and_publishes_changes_of_them() -> None:
    with lab(begin=False) as at:
        install(at, TEXT)
        said = public(at)["queues.yaml"]
        assert QueueAccess.read(said) == QueueAccess(
            ("default", "vision"),
            (NamespaceRule("vision-*", ("vision",), ("normal",)), NamespaceRule("*", ("default",))),
            kept=("vision",),
        )
        assert not [secret for secret in ("weight", "guarantee", "cap", "80") if secret in said]
        define(at, "queues: [{name: other}]")
        at.until(lambda: "other" in public(at)["queues.yaml"], "the change is published", seconds=120)
        define(at, "queues: {")
        for _ in range(5):
            at.step()
        assert json.loads(public(at)["queues.yaml"])["queues"] == [{"name": "other"}], "of a wrong text, nothing"


def test_an_installation_without_the_config_map_publishes_nothing_and_works() -> None:
    with lab(begin=False) as at:
        define(at, TEXT)
        at.begin()
        for _ in range(5):
            at.step()
        assert at.api.objects.get(CONFIG_MAP.path("kube-public"), {}) == {}


def test_rules_that_were_removed_while_nobody_led_are_public_no_longer() -> None:
    with lab(begin=False) as at:
        old = {"queues.yaml": "{}", keys.RULES_LINES: "vision-* vision normal"}
        at.api.add(CONFIG_MAP, {"metadata": {"name": keys.PUBLIC_QUEUES}, "data": old}, namespace="kube-public")
        at.begin()
        at.until(lambda: not public(at)[keys.RULES_LINES], "the rules are gone")
        assert QueueAccess.read(public(at)["queues.yaml"]) == QueueAccess()
