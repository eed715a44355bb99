"""What the API server does with DIJob objects by the CRD alone: no controller runs here."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import yaml

from diflow.common.errors import InvalidError
from diflow.jobs.dijobs import DIJOB
from tests.builders import template
from tests.clusters import ROOT, CommandError, TestCluster, alone, wait_until
from tests.contrib.di_orchestrator import oldjobs
from tests.controller.refusals import CHANGED, NEW, SCALED, WHAT_CAN, dijob
from tests.e2e.live import Live

Json = dict[str, Any]
EXAMPLE = ROOT / "examples" / "cartpole" / "job.yaml"


@pytest.fixture(autouse=True)
def crd(live: Live) -> None:
    """The CRD of this checkout."""
    install(live)


def install(live: Live) -> None:
    """Apply the CRDs, which no test deletes, once in each process."""
    _install(live.cluster)
    wait_until("the kind is served", lambda: live.kubectl("get", "dijob") is not None)


@cache
def _install(cluster: TestCluster) -> None:
    # With schemas this large, the API server and kubectl work for more than a second even if nothing has changed.
    with alone(cluster):
        cluster.kubectl("apply", "-k", str(ROOT / "manifests" / "crds"))


def apply(live: Live, obj: Json) -> None:
    """Create the job, or give it this spec. `kubectl apply` reads the whole schema first, for a second."""
    name, kind = obj["metadata"]["name"], replace(DIJOB, version=obj["apiVersion"].rpartition("/")[2])
    found = live.api.find(kind, name, namespace=live.namespace)
    if found is None:
        live.api.create(kind, obj, namespace=live.namespace)
    else:
        live.api.replace(kind, name, {**found, "spec": obj["spec"]}, namespace=live.namespace)


def refused(live: Live, obj: Json) -> str:
    with pytest.raises(InvalidError) as caught:
        apply(live, obj)
    return str(caught.value)


@pytest.mark.parametrize(("given", "text"), [one[1:] for one in NEW], ids=[one[0] for one in NEW])
def test_what_can_never_run_is_refused(live: Live, given: Json, text: str) -> None:
    assert text in refused(live, dijob("new", given))


def test_a_name_that_is_no_host_name_is_refused(live: Live) -> None:
    task = {"tasks": [{"type": "learner"}]}
    assert "the name of a job is part of its host names" in refused(live, dijob("a.b", task))
    assert "may not be more than 63" in refused(live, dijob("a" * 64, task))


def test_unknown_fields_are_refused_by_kubectl_and_dropped_where_that_is_off(live: Live) -> None:
    obj = dijob("unknown", {"tasks": [{"type": "learner"}], "engine": 1})
    obj["spec"]["tasks"][0]["template"]["spec"]["strange"] = True
    with pytest.raises(CommandError, match='unknown field "spec.engine"'):
        live.kubectl("apply", "-f", "-", stdin=json.dumps(obj))
    live.kubectl("apply", "--validate=ignore", "-f", "-", stdin=json.dumps(obj))
    spec = live.get("dijob", "unknown")["spec"]
    assert "engine" not in spec
    assert "strange" not in spec["tasks"][0]["template"]["spec"]


def test_the_example_is_kept_as_it_is_with_defaults(live: Live) -> None:
    live.kubectl("apply", "-f", str(EXAMPLE))
    spec, given = live.get("dijob", "cartpole")["spec"], yaml.safe_load(EXAMPLE.read_text())["spec"]
    assert (spec["priority"], spec["preemptible"], spec["cleanPodPolicy"]) == ("normal", False, "Running")
    assert [task["template"] for task in spec["tasks"]] == [task["template"] for task in given["tasks"]]
    assert spec["tasks"][0]["replicas"] == 1


def test_old_fields_without_a_meaning_pass(live: Live) -> None:
    old = dijob("old", {"tasks": [{"type": "learner"}], "group": "", "cleanPodPolicy": ""})
    apply(live, old)


def test_of_a_job_that_was_created_only_the_numbers_of_replicas_can_change(live: Live) -> None:
    obj = dijob("fixed", {"tasks": [{"type": "learner"}]})
    apply(live, obj)
    for what, given, text in CHANGED:
        said = refused(live, dijob("fixed", {**obj["spec"], **given}))
        assert text in said, what
        assert next(iter(given)) in said, f"{what}: the field is named"
    for task in SCALED:
        changed = dijob("fixed", {"tasks": [task]})
        apply(live, changed)
        assert live.get("dijob", "fixed")["spec"]["tasks"][0]["replicas"] == task["replicas"]


def one_template(**spec: Any) -> Json:
    """A DIJob of DI-orchestrator v1.0."""
    return {**dijob("one", {}), "spec": {"template": template(), **spec}}


def test_of_a_job_with_one_template_only_the_numbers_of_replicas_can_change(live: Live) -> None:
    assert "minReplicas must be at most maxReplicas" in refused(live, one_template(minReplicas=3, maxReplicas=2))
    assert 'supported values: "star", "alone", "mesh"' in refused(live, one_template(engineFields={"topology": "ring"}))
    assert "greater than or equal to 1" in refused(live, one_template(engineFields={"parallelWorkers": 0}))
    apply(live, one_template(minReplicas=1))
    for change in ({"template": template("other")}, {"engineFields": {"topology": "mesh"}}):
        assert WHAT_CAN in refused(live, one_template(minReplicas=1, **change))
    apply(live, one_template(minReplicas=2, maxReplicas=4))
    assert live.get("dijob", "one")["spec"]["maxReplicas"] == 4


@pytest.mark.parametrize("version", ["v1alpha1", "v2alpha1"])
def test_the_modules_of_a_job_with_a_coordinator_cannot_change_in_either_version(live: Live, version: str) -> None:
    name = f"old-{version}"
    made = oldjobs.manifest(name)
    del made["metadata"]["namespace"]
    apply(live, made)
    kind = f"dijobs.{version}.diengine.opendilab.org"
    patch = json.dumps({"spec": {"collector": {"template": template("other")}}})
    with pytest.raises(CommandError, match="collector cannot change in a job that was created"):
        live.kubectl("patch", kind, name, "--type=merge", "-p", patch)
    kept = live.get(kind, name)["spec"]
    assert kept["collector"]["template"]["spec"]["containers"] == template()["spec"]["containers"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"health": {"heartbeatSeconds": "x"}}, "spec.health.heartbeatSeconds"),
        ({"tasks": [{"name": "a", "nodeUnit": 0, "template": template()}]}, "spec.tasks[0].nodeUnit"),
        ({"tasks": [{"name": "a"}]}, "spec.tasks[0].template"),
    ],
    ids=["a text as a number", "a unit of 0", "no template"],
)
def test_what_the_rules_of_v2alpha1_cannot_read_is_refused_in_the_other_version(
    live: Live, fields: Json, named: str
) -> None:
    """Such an object could be stored, and each write of its status would be refused."""
    made = dijob("odd", {"tasks": [{"name": "a"}]})
    made |= {"apiVersion": "diengine.opendilab.org/v1alpha1", "spec": {**made["spec"], **fields}}
    assert refused(live, made).startswith(f"{named}: the cluster refuses DIJob odd")


def test_a_job_of_v2alpha1_is_not_changed_by_the_other_version(live: Live) -> None:
    apply(live, dijob("fixed-too", {"tasks": [{"type": "learner"}]}))
    other = "dijobs.v1alpha1.diengine.opendilab.org"
    for spec in ({"tasks": [{"type": "learner", "template": template("other")}]}, {"backoffLimit": 7}):
        with pytest.raises(CommandError, match="is a field of v2alpha1: change it as"):
            live.kubectl("patch", other, "fixed-too", "--type=merge", "-p", json.dumps({"spec": spec}))
    live.kubectl("label", other, "fixed-too", "team=a")


def test_the_spec_of_a_job_that_has_ended_cannot_change(live: Live) -> None:
    obj = dijob("ended", {"tasks": [{"type": "learner"}]})
    apply(live, obj)
    status = json.dumps({"status": {"phase": "Succeeded"}})
    live.kubectl("patch", "dijob", "ended", "--subresource=status", "--type=merge", "-p", status)
    obj["spec"]["tasks"][0]["replicas"] = 2
    text = refused(live, obj)
    assert "the job has ended (Succeeded), so its spec cannot change" in text
    assert WHAT_CAN not in text


@pytest.mark.parametrize(("role", "verbs"), [("view", "no"), ("edit", "yes"), ("admin", "yes")])
def test_those_who_may_view_or_edit_a_namespace_may_do_so_with_its_jobs(live: Live, role: str, verbs: str) -> None:
    user = f"{role}-of-{live.namespace}"
    live.kubectl("create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}")

    def may(verb: str, *what: str) -> str:
        return live.kubectl("auth", "can-i", verb, *what, f"--as={user}", check=False).strip()

    wait_until("the role has these rules", lambda: may("list", "dijobs") == "yes")
    assert [may("watch", kind) for kind in ("dijobs", "aggregatorconfigs")] == ["yes", "yes"]
    assert [may(verb, "dijobs") for verb in ("create", "patch", "delete")] == [verbs] * 3
    assert may("patch", "dijobs", "--subresource=status") == verbs
    assert may("create", "podtemplates") == verbs


def test_kubectl_explains_a_container_and_prints_the_columns(live: Live) -> None:
    assert "imagePullPolicy" in live.kubectl("explain", "dijob.spec.tasks.template.spec.containers")
    apply(live, dijob("shown", {"tasks": [{"type": "learner"}]}))
    head = live.kubectl("get", "dijob", "shown").splitlines()[0]
    columns = ["NAME", "PHASE", "READYREPLICAS", "REPLICAS", "RESTARTS", "RESCHEDULES", "AGE"]
    assert head.split() == columns
    wide = live.kubectl("get", "dijob", "shown", "-o", "wide").splitlines()[0]
    assert wide.split() == [*columns, "HEALTHY", "MESSAGE"]
