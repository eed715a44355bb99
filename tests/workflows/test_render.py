"""The Workflow of a job, field by field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from diflow import DIJob, InvalidError, Task
from diflow.common import keys
from diflow.dijob.model import Health
from diflow.dijob.settings import RenderSettings
from diflow.record.argo.failures import STOPPED_MESSAGE
from diflow.record.argo.node_names import parse
from diflow.workflows import render, to_yaml
from diflow.workflows.pods import CONFINED
from tests.builders import job, task, template
from tests.fuzz.argopods import pod
from tests.fuzz.dijobs import Maker

ROOT = Path(__file__).resolve().parents[2]


def workflow(*tasks: Task, settings: RenderSettings | None = None, **fields: Any) -> dict[str, Any]:
    return render(job(*tasks, **fields), settings=settings or RenderSettings())


def named(wf: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (item for item in wf["spec"]["templates"] if item["name"] == name)
    return dict(found)


def env(container: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value") for item in container["env"]}


def patch(tmpl: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(tmpl["podSpecPatch"]))


def container_patches(tmpl: dict[str, Any]) -> dict[str, Any]:
    """The patch of each container."""
    return {c["name"]: c for kind in ("containers", "initContainers") for c in patch(tmpl).get(kind, [])}


def made(wf: dict[str, Any], name: str = "learner") -> dict[str, Any]:
    """The pod that Argo makes of a template, before it evaluates what is between the braces."""
    return pod(named(wf, name), wf["spec"])


def made_containers(wf: dict[str, Any], name: str = "learner") -> dict[str, dict[str, Any]]:
    """The containers of such a pod by their names, Argo's own included."""
    spec = made(wf, name)["spec"]
    return {c["name"]: c for c in (*spec["containers"], *spec["initContainers"])}


def seen_by_program(container: dict[str, Any]) -> dict[str, Any]:
    """The variables of a container as its program sees them: each may refer to those before it."""
    out: dict[str, Any] = {}
    for item in container["env"]:
        value = item.get("value", "")
        for name in re.findall(r"\$\((\w+)\)", value):
            value = value.replace(f"$({name})", out.get(name, f"$({name})"))
        out[item["name"]] = item.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") or value
    return out


def test_one_job_is_one_workflow_of_its_name() -> None:
    wf = workflow(name="cartpole", namespace="ml")
    assert (wf["apiVersion"], wf["kind"]) == ("argoproj.io/v1alpha1", "Workflow")
    assert wf["metadata"]["name"] == "cartpole"
    assert wf["metadata"]["namespace"] == "ml"
    assert "workflowTemplateRef" not in wf["spec"]


def test_the_live_state_is_text_parameters() -> None:
    wf = workflow(task("learner"), task("collector", replicas=3))
    parameters = {item["name"]: item["value"] for item in wf["spec"]["arguments"]["parameters"]}
    assert parameters == {
        "rounds": '["1"]',
        "current": "1",
        "granted": '{"1":{"learner":1,"collector":3}}',
        "incarnations": "{}",
        "tasks": '["learner","collector"]',
        "released": "[]",
        "replicas": '{"learner":1,"collector":3}',
        "profilings": "{}",
    }


def test_a_fan_out_is_a_count_however_many_replicas() -> None:
    few, many = workflow(task(replicas=300)), workflow(task(replicas=1_000))
    assert named(few, "round") == named(many, "round") == named(workflow(task(replicas=10)), "round")
    assert len(json.dumps(many)) - len(json.dumps(few)) < 100


def test_a_member_of_a_fan_out_has_its_index_and_its_name() -> None:
    wf = workflow(task("collector", replicas=2))
    fan_out = named(wf, "round")["dag"]["tasks"][0]
    given = {item["name"]: item["value"] for item in fan_out["arguments"]["parameters"]}
    assert (given["index"], given["member"]) == ("{{=split(item, '.')[0]}}", "{{item}}")
    assert "workflow.parameters.incarnations" in fan_out["withParam"]
    for name in ("replicaOf-collector", "collector"):
        assert {"round", "index", "member"} <= {item["name"] for item in named(wf, name)["inputs"]["parameters"]}
        shown = named(wf, name)["annotations"]["workflows.argoproj.io/display-name"]
        assert shown == "collector-{{inputs.parameters.member}}"


@pytest.mark.parametrize("preemptible", [False, True])
def test_what_is_released_is_a_member_and_not_an_index(preemptible: bool) -> None:
    replica = named(workflow(preemptible=preemptible), "replicaOf-learner")
    leaf = replica["dag"]["tasks"][-1]
    assert "/learner/' + inputs.parameters.member" in leaf["when"]
    assert "/learner/{{inputs.parameters.member}}" in leaf["hooks"]["give-up"]["expression"]
    assert "index" not in leaf["when"] + leaf["hooks"]["give-up"]["expression"]


def test_tasks_keep_the_order_of_the_job() -> None:
    wf = workflow(task("none", name="zeta"), task("none", name="alpha"))
    assert [t["name"] for t in named(wf, "round")["dag"]["tasks"]] == ["zeta", "alpha", "superseded"]


def test_labels_and_annotations_of_the_workflow() -> None:
    wf = workflow(priority="high", preemptible=True, queue="team-a", labels={"mine": "1"}, annotations={"note": "x"})
    assert wf["metadata"]["labels"] == {
        "mine": "1",
        "app.kubernetes.io/managed-by": "diflow",
        "diflow/priority": "high",
        "diflow/preemptible": "true",
        "diflow/scheduling": "none",
        "diflow/queue": "team-a",
        "diflow/replicas": "1",
    }
    annotations = wf["metadata"]["annotations"]
    assert annotations["note"] == "x"
    assert annotations["workflows.argoproj.io/title"] == "DIJob job"
    assert "1 × learner" in annotations["workflows.argoproj.io/description"]
    assert json.loads(annotations["diflow/dijob"])["spec"]["queue"] == "team-a"


def test_a_users_title_wins() -> None:
    wf = workflow(annotations={"workflows.argoproj.io/title": "My run"})
    assert wf["metadata"]["annotations"]["workflows.argoproj.io/title"] == "My run"


@pytest.mark.parametrize(("priority", "name", "number"), [("normal", "diflow-normal", 0), ("high", "diflow-high", 100)])
def test_priority_goes_to_the_pods_and_to_argo(priority: str, name: str, number: int) -> None:
    spec = workflow(priority=priority)["spec"]
    assert (spec["podPriorityClassName"], spec["priority"]) == (name, number)


def test_pods_carry_the_labels_and_annotations_of_dijob() -> None:
    meta = made(workflow(task("learner"), task("collector", replicas=2)), "collector")["metadata"]
    assert meta["labels"][keys.JOB] == "{{workflow.name}}"
    assert meta["labels"][keys.POD] == "{{workflow.name}}-collector-{{inputs.parameters.index}}"
    assert (meta["labels"][keys.TASK_TYPE], meta["labels"][keys.TASK_NAME]) == ("collector", "collector")
    assert meta["annotations"][keys.TASK_RANK] == "{{inputs.parameters.index}}"
    assert set(meta["annotations"]) == {keys.REPLICAS, keys.RANK, keys.TASK_RANK, keys.NODES}


def test_a_templates_own_labels_and_annotations_are_kept() -> None:
    own = {**template(), "metadata": {"labels": {"app": "x"}, "annotations": {"note": "y"}}}
    from diflow import Task

    meta = named(workflow(Task(type="learner", template=own)), "learner")["metadata"]
    assert meta["labels"]["app"] == "x"
    assert meta["annotations"]["note"] == "y"


def test_every_container_is_told_about_the_job() -> None:
    spec = {
        "initContainers": [{"name": "prepare", "image": "x", "command": ["true"]}],
        "containers": [
            {"name": "side", "image": "x", "command": ["true"]},
            {"name": "di-container", "image": "x", "command": ["true"]},
        ],
    }
    from diflow import Task

    for others in ((), (task("collector"),)):
        containers = made_containers(workflow(Task(type="learner", template={"spec": spec}), *others))
        told = {"DI_JOB_ID", "DI_SERVER_URL", "DI_RANK", "DI_TASK_RANK", "DI_NODES", "MASTER_ADDR", "MASTER_PORT"}
        told |= {"WORLD_SIZE", "RANK", "PET_NNODES", "PET_NODE_RANK", "PET_RDZV_ENDPOINT"}
        told |= {"DI_NODES_FILE", "DI_TOKEN_FILE"}
        main, side, prepare = (seen_by_program(containers[name]) for name in ("main", "side", "prepare"))
        assert main == side == prepare
        assert told < set(main)
        assert main["RANK"] == main["PET_NODE_RANK"] == main["DI_RANK"] == "metadata.annotations['diengine/rank']"
        assert main["DI_NODES"] == "metadata.annotations['diflow/nodes']"
        (lists,) = set(main) - told
        if others:
            assert "upper(replace(#, '-', '_')) + '_NODES'" in lists, "one expression makes a list of each task"
        else:
            assert main["DI_LEARNER_NODES"] == main["DI_NODES"], "there is no other task"


def test_a_pod_has_the_annotations_that_its_variables_are_read_from() -> None:
    wf = workflow(task("learner"), task("collector", replicas=2), scheduling="gang")
    for name in ("learner", "collector"):
        annotations = made(wf, name)["metadata"]["annotations"]
        read = [item["valueFrom"]["fieldRef"]["fieldPath"] for item in made_containers(wf, name)["main"]["env"]
                if "valueFrom" in item]  # fmt: skip
        assert len(read) == 2
        assert {f"metadata.annotations['{key}']" for key in annotations} >= set(read)
    assert made(wf, "collector")["metadata"]["annotations"][keys.RANK] == (
        "{{=sum(fromJSON(workflow.parameters.tasks)[:1], {int(fromJSON(workflow.parameters.granted)"
        "[inputs.parameters.round]?.[#] ?? 1)}) + int(inputs.parameters.index)}}"
    )


def test_argos_copy_of_a_template_in_the_pod_has_nothing_that_all_main_containers_have() -> None:
    wf = workflow(task("learner"), task("collector"))
    tmpl = named(wf, "learner")
    assert not {"env", "securityContext"} & tmpl["container"].keys()
    assert "main" not in container_patches(tmpl)
    found = made_containers(wf)["main"]
    assert {"DI_NODES_FILE", "DI_TOKEN_FILE", "DI_RANK"} <= env(found).keys()
    assert found["securityContext"] == CONFINED


def test_what_one_main_container_does_not_have_is_not_in_the_patch_of_all() -> None:
    over = [{"name": "v", "mountPath": "/etc/diflow/mine"}]
    blocking = task("learner", container={"volumeMounts": over}, volumes=[{"name": "v", "emptyDir": {}}])
    wf = workflow(blocking, task("collector"))
    assert "DI_NODES_FILE" not in env(made_containers(wf)["main"])
    assert env(made_containers(wf, "collector")["main"])["DI_NODES_FILE"] == "/etc/diflow/nodes"
    for own, is_confined in (({"runAsUser": 0}, False), ({"readOnlyRootFilesystem": True}, True), ({}, True)):
        wf = workflow(task("learner", container={"securityContext": own}), task("collector"))
        assert made_containers(wf)["main"].get("securityContext", {}).items() >= own.items()
        assert ("capabilities" in made_containers(wf)["main"].get("securityContext", {})) is is_confined
        assert made_containers(wf, "collector")["main"]["securityContext"] == CONFINED


def test_a_user_cannot_override_the_paths_of_diflow() -> None:
    own = [{"name": "DI_NODES_FILE", "value": "/mine"}, {"name": "B", "value": "$(DI_TOKEN_FILE)"}]
    wf = workflow(task("learner", container={"env": own}), task("collector"))
    seen = seen_by_program(made_containers(wf)["main"])
    assert (seen["DI_NODES_FILE"], seen["B"]) == ("/etc/diflow/nodes", "/var/run/secrets/diflow/token")


ROSTER = {"name": "diflow", "mountPath": "/etc/diflow", "readOnly": True}
TOKEN = {"name": "diflow-token", "mountPath": "/var/run/secrets/diflow", "readOnly": True}


def test_every_container_has_the_files_that_say_who_the_others_are_now() -> None:
    spec = {
        "initContainers": [{"name": "prepare", "image": "x", "command": ["true"]}],
        "containers": [
            {"name": "di-container", "image": "x", "command": ["true"]},
            {"name": "side", "image": "x", "command": ["true"], "volumeMounts": [{"name": "v", "mountPath": "/{{x}}"}]},
        ],
        "volumes": [{"name": "v", "emptyDir": {}}],
    }
    from diflow import Task

    wf = workflow(Task(type="learner", template={"spec": spec}))
    tmpl = named(wf, "learner")
    containers = made_containers(wf)
    for container in (tmpl["container"], tmpl["sidecars"][0], tmpl["initContainers"][0]):
        assert container["volumeMounts"] == [ROSTER, TOKEN]
    for name in ("main", "side", "prepare"):
        assert env(containers[name])["DI_NODES_FILE"] == "/etc/diflow/nodes"
    assert container_patches(tmpl)["side"]["volumeMounts"] == [{"name": "v", "mountPath": "/{{x}}"}]
    volume = wf["spec"]["volumes"][0]
    files = {item["path"]: item["fieldRef"]["fieldPath"] for item in volume["downwardAPI"]["items"]}
    assert files["nodes"] == f"metadata.annotations['{keys.NODES}']"
    assert set(files) == {"nodes", "replicas", "rank", "round"}
    for name in ("main", "side", "prepare"):
        assert seen_by_program(containers[name])["DI_NODES"] == files["nodes"], "at the start they are the same"
    assert keys.NODES in made(wf)["metadata"]["annotations"]


@pytest.mark.parametrize("path", ["/etc/diflow", "/etc/diflow/", "/etc/diflow/mine", "/etc", "/"])
def test_a_users_own_mount_in_that_place_is_left_alone(path: str) -> None:
    own = {"name": "v", "mountPath": path}
    wf = workflow(task(container={"volumeMounts": [own]}, volumes=[{"name": "v", "emptyDir": {}}]), task("evaluator"))
    learner = named(wf, "learner")["container"]
    assert learner["volumeMounts"] == ([own] if path == "/" else [own, TOKEN])
    assert "DI_NODES_FILE" not in env(made_containers(wf)["main"])
    assert ("DI_TOKEN_FILE" in env(made_containers(wf)["main"])) == (TOKEN in learner["volumeMounts"])
    assert named(wf, "evaluator")["container"]["volumeMounts"] == [ROSTER, TOKEN]


def test_the_rosters_volume_leaves_the_users_own_names_alone() -> None:
    own = {"name": "diflow", "mountPath": "/etc/diflow-data"}
    wf = workflow(
        task(container={"volumeMounts": [own]}, volumes=[{"name": "diflow", "emptyDir": {}}]),
        volumes=({"name": "diflow-1", "emptyDir": {}},),
    )
    assert [volume["name"] for volume in wf["spec"]["volumes"]] == ["diflow-2", "diflow-token"]
    assert named(wf, "learner")["container"]["volumeMounts"] == [own, {**ROSTER, "name": "diflow-2"}, TOKEN]


def test_every_container_has_a_token_for_its_own_jobs_matters() -> None:
    side = {"name": "side", "image": "x", "command": ["true"]}
    spec = {"initContainers": [{**side, "name": "prepare"}], "containers": [{**side, "name": "di-container"}, side]}
    from diflow import Task

    wf = workflow(Task(type="learner", template={"spec": spec}))
    volume = wf["spec"]["volumes"][1]
    assert volume["name"] == "diflow-token"
    (source,) = volume["projected"]["sources"]
    assert source["serviceAccountToken"] == {
        "audience": "diflow/{{workflow.namespace}}/{{workflow.name}}",
        "expirationSeconds": 3600,
        "path": "token",
    }
    tmpl = named(wf, "learner")
    for container in (tmpl["container"], tmpl["sidecars"][0], tmpl["initContainers"][0]):
        assert TOKEN in container["volumeMounts"]
    for name in ("main", "side", "prepare"):
        assert env(made_containers(wf)[name])["DI_TOKEN_FILE"] == "/var/run/secrets/diflow/token"
    assert "volumes" not in named(wf, "give-up"), "the step proves nothing to the server"


@pytest.mark.parametrize("path", ["/var/run/secrets/diflow", "/var/run/secrets/diflow/token", "/var/run", "/var/run/"])
def test_a_users_own_mount_in_the_tokens_place_is_left_alone(path: str) -> None:
    own = {"name": "v", "mountPath": path}
    mine = [{"name": "DI_TOKEN_FILE", "value": "/mine"}]
    wf = workflow(task(container={"volumeMounts": [own], "env": mine}, volumes=[{"name": "v", "emptyDir": {}}]))
    container = named(wf, "learner")["container"]
    assert container["volumeMounts"] == [own, ROSTER]
    assert env(container)["DI_TOKEN_FILE"] == "/mine"


def test_the_tokens_volume_leaves_the_users_own_names_alone() -> None:
    wf = workflow(task(), volumes=({"name": "diflow-token", "emptyDir": {}},))
    assert [volume["name"] for volume in wf["spec"]["volumes"]] == ["diflow", "diflow-token-1"]
    assert named(wf, "learner")["container"]["volumeMounts"] == [ROSTER, {**TOKEN, "name": "diflow-token-1"}]


def test_the_work_runs_in_di_container_or_in_the_first() -> None:
    from diflow import Task

    two = [{"name": "a", "image": "a", "command": ["a"]}, {"name": "b", "image": "b", "command": ["b"]}]
    tmpl = named(workflow(Task(type="learner", template={"spec": {"containers": two}})), "learner")
    assert tmpl["container"]["image"] == "a"
    two[1]["name"] = "di-container"
    tmpl = named(workflow(Task(type="learner", template={"spec": {"containers": two}})), "learner")
    assert tmpl["container"]["image"] == "b"


def test_a_job_that_asks_gets_what_clients_of_adaptdl_read() -> None:
    plain = seen_by_program(made_containers(workflow(task()))["main"])
    assert not [name for name in plain if name.startswith("ADAPTDL_")]
    own = {"env": [{"name": "ADAPTDL_CHECKPOINT_PATH", "value": "/data"}]}
    before = "(inputs.parameters.round matches '^[0-9]+$' ? int(inputs.parameters.round) - 1 : 0)"
    told = seen_by_program(
        made_containers(workflow(task(container=own), annotations={"diflow/adaptdl": "true"}))["main"]
    )
    assert {name: value for name, value in told.items() if name.startswith("ADAPTDL_")} == {
        "ADAPTDL_JOB_ID": told["DI_JOB_ID"],
        "ADAPTDL_SUPERVISOR_URL": told["DI_SERVER_URL"],
        "ADAPTDL_REPLICA_RANK": told["DI_RANK"],
        "ADAPTDL_NUM_REPLICAS": told["WORLD_SIZE"],
        "ADAPTDL_NUM_RESTARTS": "{{=" + before + "}}",
        "ADAPTDL_MASTER_PORT": "47000",
        "ADAPTDL_SCHED_VERSION": "0.0.0",
        "ADAPTDL_CHECKPOINT_PATH": "/data",
    }


@pytest.mark.parametrize(
    ("preemptible", "run"),
    [
        (True, "{{workflow.uid}}-{{inputs.parameters.round}}-{{inputs.parameters.attempt}}"),
        (False, "{{workflow.uid}}-{{inputs.parameters.round}}"),
    ],
)
def test_a_job_that_asks_gets_a_run_id_for_torchrun(preemptible: bool, run: str) -> None:
    plain = seen_by_program(made_containers(workflow(task(), preemptible=preemptible))["main"])
    assert "PET_RDZV_ID" not in plain
    made = workflow(task(), preemptible=preemptible, annotations={"diflow/rendezvous": "c10d"})
    told = seen_by_program(made_containers(made)["main"])
    assert told == plain | {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": run}


@pytest.mark.parametrize(("heartbeat", "every"), [(0, "5"), (60, "6"), (600, "60"), (86_400, "60")])
def test_a_job_with_health_tells_its_client_how_often_to_say_that_it_lives(heartbeat: int, every: str) -> None:
    told = seen_by_program(made_containers(workflow(task(), health=Health(heartbeat_seconds=heartbeat)))["main"])
    assert told["DI_HEARTBEAT_SECONDS"] == every
    assert "DI_HEARTBEAT_SECONDS" not in seen_by_program(made_containers(workflow(task()))["main"])


def test_a_job_that_asks_gets_what_scripts_of_dlrover_read() -> None:
    plain = seen_by_program(made_containers(workflow(task()))["main"])
    told = seen_by_program(made_containers(workflow(task(), annotations={"diflow/dlrover": "true"}))["main"])
    number = {f"{kind}_{name}": told["DI_RANK"] for kind in ("NODE", "WORKER") for name in ("ID", "RANK")}
    of_job = {"ELASTIC_JOB_NAME": "{{workflow.name}}", "JOB_UID": "{{workflow.uid}}"}
    count = {"NODE_NUM": told["WORLD_SIZE"], "WORKER_NUM": told["WORLD_SIZE"]}
    assert told == plain | of_job | number | count | {"NODE_TYPE": "worker", "WORKER_TYPE": "worker"}


@pytest.mark.parametrize(
    ("text", "attached"),
    [
        ("alone/2", ""),
        ("star/2", "{{=int(inputs.parameters.index) == 0 ? '' : '--attach-to=' + replace('tcp://?:22270', '?', "
         "workflow.name + '-learner-' + '0' + '.di.' + workflow.namespace + '.svc.cluster.local')}}"),
        ("mesh/2", "{{=int(inputs.parameters.index) == 0 ? '' : '--attach-to=' + "
         "join(map(0..int(inputs.parameters.index) - 1, {replace('tcp://?:22270,tcp://?:22271', '?', workflow.name + "
         "'-learner-' + string(#) + '.di.' + workflow.namespace + '.svc.cluster.local')}), ',')}}"),
    ],
)  # fmt: skip
def test_a_job_that_asks_gets_the_arguments_of_ditask(text: str, attached: str) -> None:
    plain = seen_by_program(made_containers(workflow(task()))["main"])
    told = seen_by_program(made_containers(workflow(task(), annotations={"diflow/ditask": text}))["main"])
    ids = "{{=join(map(0..2 - 1, {string(int(inputs.parameters.index) * 2 + #)}), ',')}}"
    assert told == plain | {
        "DI_PARALLEL_WORKERS_ARG": "--parallel-workers=2",
        "DI_PORTS_ARG": "--ports=22270,22271",
        "DI_NODE_IDS_ARG": f"--node-ids={ids}",
        "DI_ATTACHED_NODES_ARG": attached,
    }
    assert all(value.count("}}") <= 1 for value in (ids, attached)), "Argo takes the first for the end of an expression"


OF_CONFIG = {"configMapKeyRef": {"name": "c", "key": "k"}}


@pytest.mark.parametrize("own", [{"value": "1234"}, {"valueFrom": OF_CONFIG}], ids=["value", "valueFrom"])
@pytest.mark.parametrize("name", ["MASTER_PORT", "RANK", "WORLD_SIZE", "ADAPTDL_NUM_REPLICAS"])
@pytest.mark.parametrize("where", ["main", "side", "prepare"])
def test_di_variables_are_ours_and_torchruns_can_be_overridden(name: str, own: dict[str, Any], where: str) -> None:
    mine = [{"name": name, **own}, {"name": "DI_RANK", "value": "x"}, {"name": "DI_NODES", "valueFrom": OF_CONFIG},
            {"name": "MINE", "value": "y"}]  # fmt: skip
    spec: dict[str, Any] = {
        "initContainers": [{"name": "prepare", "image": "x", "command": ["true"]}],
        "containers": [{"name": n, "image": "x", "command": ["true"]} for n in ("di-container", "side")],
    }
    kind, index = {"main": ("containers", 0), "side": ("containers", 1), "prepare": ("initContainers", 0)}[where]
    spec[kind][index]["env"] = mine
    wf = workflow(Task(type="learner", template={"spec": spec}), annotations={"diflow/adaptdl": "true"})
    containers = made_containers(wf)
    items = {item["name"]: item for item in containers[where]["env"]}
    assert len(items) == len(containers[where]["env"])
    assert items[name] == {"name": name, **own}
    for variable, key in (("DI_RANK", keys.RANK), ("DI_NODES", keys.NODES)):
        assert items[variable] == {
            "name": variable, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}
        }  # fmt: skip
    assert items["MINE"] == {"name": "MINE", "value": "y"}
    others = {"main", "side", "prepare"} - {where}
    assert all(seen_by_program(containers[other])[name] != "1234" for other in others), "the others keep the job's"


def test_a_variable_may_refer_to_all_before_it_also_where_some_are_overridden() -> None:
    own = [
        {"name": "MY_PORT", "value": "1234"},
        {"name": "BEFORE", "value": "$(PET_RDZV_ENDPOINT) $(DI_LEARNER_NODES)"},
        {"name": "MASTER_PORT", "value": "$(MY_PORT)"},
        {"name": "AFTER", "value": "$(MASTER_PORT)"},
    ]
    wf = workflow(task(container={"env": own}))
    got = seen_by_program(made_containers(wf)["main"])
    assert got["AFTER"] == got["MASTER_PORT"] == "1234"
    assert got["BEFORE"] == f"{got['PET_RDZV_ENDPOINT']} {got['DI_NODES']}"
    assert "$(" not in json.dumps(got)


def test_a_container_that_asks_for_nothing_gets_the_default_resources() -> None:
    bare = {"spec": {"containers": [{"name": "di-container", "image": "x", "command": ["x"]}]}}
    from diflow import Task

    wf = workflow(Task(type="learner", template=bare))
    want = {"cpu": "1", "memory": "2Gi"}
    assert named(wf, "learner")["container"]["resources"] == {"requests": want, "limits": want}


def test_the_default_resources_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DI_JOB_DEFAULT_RESOURCES", '{"resources": {"requests": {"cpu": 2, "memory": "3Gi"}}}')
    assert RenderSettings().default_resources == {
        "requests": {"cpu": "2", "memory": "3Gi"},
        "limits": {"cpu": "2", "memory": "3Gi"},
    }
    given = '{"resources": {"requests": {"cpu": 2}, "limits": {"cpu": 4}}}'
    monkeypatch.setenv("DI_JOB_DEFAULT_RESOURCES", given)
    assert RenderSettings().default_resources == {"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"resources": 3}', "no json"])
def test_default_resources_that_cannot_be_read_are_named(text: str) -> None:
    with pytest.raises(InvalidError, match="DI_JOB_DEFAULT_RESOURCES must look like"):
        _ = RenderSettings(DI_JOB_DEFAULT_RESOURCES=text).default_resources


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from diflow.dijob.settings import render_settings

    monkeypatch.setenv("DIFLOW_RUN_AS_USER", "root")
    with pytest.raises(InvalidError, match="DIFLOW_RUN_AS_USER: must be a whole number of at least 1, not 'root'"):
        render_settings()


def test_pods_are_found_by_host_name_under_the_service_of_the_namespace() -> None:
    wf = workflow()
    spec = made(wf)["spec"]
    assert spec["hostname"] == "{{workflow.name}}-learner-{{inputs.parameters.index}}"
    assert spec["subdomain"] == "di"
    assert "dnsConfig" not in spec
    (main,) = (c for c in spec["containers"] if c["name"] == "main")
    assert env(main)["MASTER_ADDR"] == "{{workflow.name}}-learner-0.di.{{workflow.namespace}}.svc.cluster.local"
    hosts = made(wf)["metadata"]["annotations"][keys.NODES]
    assert "{workflow.name + '-/-' + string(#) + '.di.' + workflow.namespace + '.svc.cluster.local'}" in hosts


def test_the_manifests_have_the_service_that_all_pods_of_jobs_are_in() -> None:
    service = yaml.safe_load((ROOT / "manifests" / "jobs" / "service.yaml").read_text())
    pod_of_job = made(workflow())
    assert service["metadata"]["name"] == pod_of_job["spec"]["subdomain"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= pod_of_job["metadata"]["labels"].items()
    assert service["spec"]["ports"] == [{"name": "di-port", "port": 22270, "targetPort": 22270}]
    listed = yaml.safe_load((ROOT / "manifests" / "jobs" / "kustomization.yaml").read_text())
    assert "service.yaml" in listed["resources"]


def test_hosts_of_more_than_256_replicas_are_listed_without_their_domain_and_found_in_it() -> None:
    few, many = (workflow(task("learner"), task("collector", replicas=n)) for n in (255, 256))
    assert "dnsConfig" not in made(few)["spec"]
    for name in ("learner", "collector"):
        spec = made(many, name)["spec"]
        assert spec["dnsConfig"] == {"searches": ["di.{{workflow.namespace}}.svc.cluster.local"]}
        variables = seen_by_program(made_containers(many, name)["main"])
        assert variables["MASTER_ADDR"].endswith("learner-0.di.{{workflow.namespace}}.svc.cluster.local")
        assert "_NODES" not in "".join(set(variables) - {"DI_NODES", "DI_NODES_FILE"})
    hosts = [made(wf)["metadata"]["annotations"][keys.NODES] for wf in (few, many)]
    assert ["svc.cluster.local" in text for text in hosts] == [True, False]
    assert "{workflow.name + '-/-' + string(#)}" in hosts[1]


def test_a_long_list_of_hosts_is_evaluated_for_pods_alone() -> None:
    few, many = (workflow(task("learner"), task("collector", replicas=n)) for n in (255, 256))
    pods = {"learner", "collector"}
    for wf, has_own in ((few, False), (many, True)):
        assert (keys.NODES in wf["spec"]["podMetadata"]["annotations"]) is not has_own
        own = {
            t["name"] for t in wf["spec"]["templates"] if keys.NODES in (t.get("metadata") or {}).get("annotations", ())
        }
        assert own == (pods if has_own else set())
    assert all(
        made(few, name)["metadata"]["annotations"].keys() == made(many, name)["metadata"]["annotations"].keys()
        for name in pods
    )


def test_a_long_list_of_hosts_is_evaluated_when_argo_creates_the_pod() -> None:
    few, many = (workflow(task("learner", replicas=n), task("collector"), scheduling="gang") for n in (9, 300))
    assert "nil" not in few["spec"]["podMetadata"]["annotations"][keys.NODES]
    hosts = made(many)["metadata"]["annotations"][keys.NODES]
    assert hosts.startswith(r"{{=len('\\') == 2 || 'node' in $env || 'lastRetry' in $env ? nil : join(")
    assert hosts.index("}}") == len(hosts) - 2, "Argo takes the first closing braces for the end of the expression"
    # Argo escapes these characters in the pod's copy of its template, in which it parses the text once more.
    assert not set('<>&"') & set(hosts)


def test_a_task_that_may_grow_to_more_than_256_has_short_hosts_from_the_start() -> None:
    grows = Task(type="none", name="worker", replicas=2, min_replicas=1, max_replicas=257, template=template())
    alone = workflow(grows, preemptible=True)
    assert made(alone, "worker")["spec"]["dnsConfig"]["searches"]
    variables = seen_by_program(made_containers(alone, "worker")["main"])
    assert variables["DI_WORKER_NODES"] == variables["DI_NODES"], "one task: it costs nothing"


@pytest.mark.parametrize(
    "own", [{"dnsPolicy": "Default"}, {"dnsConfig": {"nameservers": ["1.1.1.1"]}}, {"hostNetwork": True}]
)
def test_a_job_with_dns_settings_of_its_own_has_full_hosts_at_any_size(own: dict[str, Any]) -> None:
    wf = workflow(task(replicas=257, **own), name="j", namespace="ns")
    assert made(wf)["spec"].get("dnsConfig") == own.get("dnsConfig")
    assert "svc.cluster.local" in made(wf)["metadata"]["annotations"][keys.NODES]


def test_nothing_of_diflows_runs_beside_the_pods_of_a_job() -> None:
    wf = workflow(task("learner"), task("collector"))
    assert "hooks" not in wf["spec"]
    assert "onExit" not in wf["spec"]
    assert [t["name"] for t in named(wf, "job")["dag"]["tasks"]] == ["round"]
    with_pods = {t["name"] for t in wf["spec"]["templates"] if not {"dag", "suspend"} & t.keys()}
    assert with_pods == {"learner", "collector", "give-up"}
    calls = [t["template"] for one in wf["spec"]["templates"] for t in one.get("dag", {}).get("tasks", [])]
    assert "give-up" not in calls, "only the hook of a failure runs it"


def test_the_step_that_gives_up_can_be_made_though_the_patch_of_all_pods_reads_the_round() -> None:
    wf = workflow()
    step = named(wf, "give-up")
    assert step["inputs"]["parameters"] == [{"name": "round", "default": ""}]
    assert "inputs.parameters.round" in wf["spec"]["podSpecPatch"]
    (wait,) = (c for c in patch(wf["spec"])["containers"] if c["name"] != "main")
    # Argo makes no container `wait` in the pod of such a step: the patch would add one without an image.
    assert wait["name"] == "{{=inputs.parameters.round == '' ? 'main' : 'wait'}}"


def test_fields_that_argo_has_stay_argos_and_the_others_go_into_the_patch() -> None:
    spec: dict[str, Any] = {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "terminationGracePeriodSeconds": 60,
        "hostNetwork": True,
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccount": "trainer",
        "restartPolicy": "Always",
        "activeDeadlineSeconds": 60,
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    }
    tmpl = named(workflow(task(**spec)), "learner")
    assert tmpl["nodeSelector"] == {"disk": "ssd"}
    assert tmpl["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert tmpl["serviceAccountName"] == "trainer"
    assert tmpl["activeDeadlineSeconds"] == 60
    assert set(patch(tmpl)) == {
        "hostname", "terminationGracePeriodSeconds", "hostNetwork", "imagePullSecrets", "topologySpreadConstraints",
        "dnsPolicy",
    }  # fmt: skip
    assert patch(tmpl)["hostname"].startswith("{{workflow.name}}")


def evaluated(key: str, *, node: str) -> dict[str, Any]:
    """The fields of a pod that the expression with its gate or node gives. Its parts are Python as well."""
    tail = key.split("let q = toJson('')[:1]; ", 1)[1].removesuffix("}}")
    parts = re.fullmatch(r"(.*)\(n == '' \? (.*?) : (.*)\)(.*)", tail)
    assert parts is not None, tail
    start, waits, placed, end = parts.groups()
    names = {"q": '"', "n": node, "toJson": lambda value: json.dumps(value, separators=(",", ":"))}
    text = eval(f"{start}{placed if node else waits}{end}", {"__builtins__": {}}, names)
    return dict(json.loads('{"' + text + '":null}'))


def gate_key(wf: dict[str, Any], name: str = "learner") -> str:
    (found,) = (key for key in patch(named(wf, name)) if key.startswith("{{="))
    return found


GATE, NODE = {"name": "diflow/gang"}, {"kubernetes.io/hostname": "node-1"}


def test_gates_only_when_the_allocator_is_asked_for() -> None:
    assert "gang" not in named(workflow(), "learner")["podSpecPatch"]
    key = gate_key(workflow(scheduling="gang"))
    assert evaluated(key, node="") == {"schedulingGates": [GATE], "nodeName": None}
    assert evaluated(key, node="node-1") == {"schedulingGates": [], "nodeSelector": NODE, "nodeName": None}
    assert key.index("}}") == len(key) - 2, "Argo takes the first closing braces for the end of the expression"


def test_a_users_own_gates_stay_on_a_pod_with_a_place() -> None:
    own = [{"name": "example.com/quota"}]
    key = gate_key(workflow(task(schedulingGates=own), scheduling="gang"))
    assert evaluated(key, node="")["schedulingGates"] == [*own, GATE]
    assert evaluated(key, node="node-1") == {"schedulingGates": own, "nodeSelector": NODE, "nodeName": None}
    assert patch(named(workflow(task(schedulingGates=own)), "learner"))["schedulingGates"] == own


@pytest.mark.parametrize("name", ["' + 'x", "a b", "}}", "{{x}}", ""])
def test_a_name_of_a_gate_that_would_change_the_expression_is_refused(name: str) -> None:
    with pytest.raises(InvalidError, match="schedulingGates"):
        workflow(task(schedulingGates=[{"name": name}]), scheduling="gang")


@pytest.mark.parametrize(
    ("fields", "attempt"),
    [
        ({"backoff_limit": 0}, "'0'"),
        ({"backoff_limit": 2}, "inputs.parameters.attempt"),
        ({"backoff_limit": 2, "preemptible": True}, "inputs.parameters.attempt"),
    ],
)
def test_a_place_is_that_of_one_attempt_of_one_member(fields: dict[str, Any], attempt: str) -> None:
    wf = workflow(task("collector"), scheduling="gang", **fields)
    key = gate_key(wf, "collector")
    member = "inputs.parameters.round + '/collector/' + inputs.parameters.member + '/'"
    assert f"p[{member} + {attempt} + '/' + string(retries)]" in key
    assert "now().Unix() < (p.until ?? 0)" in key
    node = made(wf, "collector")["metadata"]["annotations"][keys.NODE]
    assert node.removeprefix("{{=").removesuffix("}}").split("; ")[1] in key, "the annotation names the same node"
    given = {item["name"] for item in named(wf, "collector")["inputs"]["parameters"]}
    assert ("attempt" in given) == (attempt != "'0'")
    passed = named(wf, "replicaOf-collector")["dag"]["tasks"][0]["arguments"]["parameters"]
    assert {item["name"] for item in passed} == given


def test_a_gang_waits_suspended_and_any_other_job_starts() -> None:
    gang, plain = workflow(scheduling="gang"), workflow()
    assert gang["spec"]["suspend"] is True
    assert gang["metadata"]["labels"][keys.ADMITTED] == "false"
    assert {"name": "places", "value": "{}"} in gang["spec"]["arguments"]["parameters"]
    assert "suspend" not in plain["spec"]
    assert keys.ADMITTED not in plain["metadata"]["labels"]
    assert "places" not in [item["name"] for item in plain["spec"]["arguments"]["parameters"]]


def test_braces_leave_the_template_and_keep_their_place() -> None:
    own = [{"name": "A", "value": "{{x}}"}, {"name": "B", "value": "$(A)!"}]
    tmpl = named(workflow(task(container={"command": ["echo", "{{=1+1}}"], "args": ["plain"], "env": own})), "learner")
    assert "command" not in tmpl["container"]
    assert tmpl["container"]["args"] == ["plain"]
    assert tmpl["container"]["env"][-2:] == [{"name": "A", "value": ""}, {"name": "B", "value": "$(A)!"}]
    main = container_patches(tmpl)["main"]
    assert main == {"name": "main", "env": [{"name": "A", "value": "{{x}}"}], "command": ["echo", "{{=1+1}}"]}
    assert "{{x" not in tmpl["podSpecPatch"]


def test_the_last_of_two_variables_of_one_name_is_what_argo_gets() -> None:
    own = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "A", "value": "{{x}}"}]
    tmpl = named(workflow(task(container={"env": own})), "learner")
    assert tmpl["container"]["env"][-2:] == [{"name": "B", "value": "2"}, {"name": "A", "value": ""}]
    assert patch(tmpl)["containers"][0]["env"] == [{"name": "A", "value": "{{x}}"}]
    names = [item["name"] for item in tmpl["container"]["env"]]
    assert len(names) == len(set(names))


def test_a_volume_that_argo_does_not_see_mounted_is_added_by_the_patch() -> None:
    volumes = [
        {"name": "seen", "emptyDir": {}},
        {"name": "hidden", "emptyDir": {}},
        {"name": "disk", "persistentVolumeClaim": {"claimName": "c"}},
    ]
    container = {
        "volumeMounts": [{"name": "hidden", "mountPath": "/{{x}}"}],
        "volumeDevices": [{"name": "disk", "devicePath": "/dev/x"}],
    }
    tmpl = named(workflow(task(container=container, volumes=volumes)), "learner")
    assert patch(tmpl)["volumes"] == volumes[1:]
    assert tmpl["volumes"] == volumes
    plain = {"volumeMounts": [{"name": "seen", "mountPath": "/x"}]}
    assert "volumes" not in patch(named(workflow(task(container=plain, volumes=volumes)), "learner"))


def test_who_asks_for_resources_of_the_works_container_finds_it_under_argos_name() -> None:
    def asked(name: str) -> dict[str, Any]:
        return {"resourceFieldRef": {"containerName": name, "resource": "limits.cpu"}}

    files = {"downwardAPI": {"items": [{"path": "cpu", **asked("work")}, {"path": "side", **asked("side")}]}}
    own = {"name": "work", "env": [{"name": "CPU", "valueFrom": asked("work")}],
           "volumeMounts": [{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"}]}  # fmt: skip
    tmpl = named(workflow(task(container=own, volumes=[{"name": "a", **files}]), volumes=({"name": "b", **files},)),
                 "learner")  # fmt: skip
    assert tmpl["container"]["env"][-1]["valueFrom"]["resourceFieldRef"]["containerName"] == "main"
    for volume in tmpl["volumes"]:
        names = [item["resourceFieldRef"]["containerName"] for item in volume["downwardAPI"]["items"]]
        assert names == ["main", "side"]


def test_a_probe_may_name_its_port() -> None:
    probe = {"httpGet": {"port": "http"}, "periodSeconds": 5}
    hook = {"preStop": {"httpGet": {"port": "http"}}}
    container = {"livenessProbe": probe, "readinessProbe": {"httpGet": {"port": 80}}, "lifecycle": hook}
    tmpl = named(workflow(task(container=container)), "learner")
    patched = patch(tmpl)["containers"][0]
    assert (patched["livenessProbe"], patched["lifecycle"]) == (probe, hook)
    assert tmpl["container"]["readinessProbe"] == {"httpGet": {"port": 80}}


def test_a_job_that_the_allocator_places_cannot_name_its_node() -> None:
    with pytest.raises(InvalidError, match="template.spec.nodeName: cannot be set for a job that the allocator places"):
        workflow(task(nodeName="node-1"), scheduling="gang")
    assert patch(named(workflow(task(nodeName="node-1")), "learner"))["nodeName"] == "node-1"


def test_braces_where_argo_cannot_carry_them_are_refused_by_path() -> None:
    from diflow import Task

    noted = {**template(), "metadata": {"annotations": {"note": "{{x}}"}}}
    with pytest.raises(InvalidError, match="spec.tasks\\[0\\].template.metadata.annotations.note"):
        workflow(Task(type="learner", template=noted))
    with pytest.raises(InvalidError, match="spec.tasks\\[0\\].template.spec.volumes"):
        workflow(task(volumes=[{"name": "v", "hostPath": {"path": "/{{x}}"}}]))


def test_the_jobs_volumes_are_added_to_every_pod_and_the_tasks_own_wins() -> None:
    shared = ({"name": "data", "emptyDir": {}}, {"name": "logs", "emptyDir": {}})
    own = task("collector", volumes=[{"name": "data", "hostPath": {"path": "/data"}}])
    wf = workflow(task("learner"), own, volumes=shared)
    assert named(wf, "learner")["volumes"] == list(shared)
    assert named(wf, "collector")["volumes"] == [{"name": "data", "hostPath": {"path": "/data"}}, shared[1]]


def test_pods_are_not_root_unless_the_template_says_so() -> None:
    wf = workflow()
    assert wf["spec"]["securityContext"]["runAsNonRoot"] is True
    assert wf["spec"]["securityContext"]["runAsUser"] == 65532
    assert "securityContext" not in named(wf, "learner")
    assert made_containers(wf)["main"]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_template_that_asks_for_root_gets_it() -> None:
    tmpl = named(workflow(task(securityContext={"runAsUser": 0})), "learner")
    assert tmpl["securityContext"]["runAsUser"] == 0
    assert "runAsNonRoot" not in tmpl["securityContext"]
    assert tmpl["container"].get("securityContext", {}) == {}


def test_one_root_container_in_a_pod_that_is_not() -> None:
    tmpl = named(workflow(task(container={"securityContext": {"runAsUser": 0}})), "learner")
    assert tmpl["container"]["securityContext"] == {"runAsNonRoot": False, "runAsUser": 0}


def test_a_users_own_id_is_kept_and_not_root() -> None:
    tmpl = named(workflow(task(securityContext={"runAsUser": 1000, "fsGroup": 7})), "learner")
    context = tmpl["securityContext"]
    assert (context["runAsUser"], context["fsGroup"], context["runAsNonRoot"]) == (1000, 7, True)


def test_a_replica_is_retried_in_place_up_to_the_limit() -> None:
    wf = workflow(backoff_limit=4)
    assert named(wf, "replicaOf-learner")["retryStrategy"]["limit"] == 4
    assert "retryStrategy" not in named(wf, "round")
    assert (
        "'{{retries}}' == '4'" in named(wf, "replicaOf-learner")["dag"]["tasks"][-1]["hooks"]["give-up"]["expression"]
    )


def test_a_preemptible_job_restarts_its_round_together() -> None:
    wf = workflow(backoff_limit=4, preemptible=True)
    assert named(wf, "round")["retryStrategy"]["limit"] == 4
    assert "retryStrategy" not in named(wf, "replicaOf-learner")
    hook = named(wf, "replicaOf-learner")["dag"]["tasks"][-1]["hooks"]["give-up"]["expression"]
    assert "'{{inputs.parameters.attempt}}' == '4'" in hook


@pytest.mark.parametrize("preemptible", [False, True])
def test_with_a_limit_of_0_nothing_is_retried_and_the_first_failure_gives_up(preemptible: bool) -> None:
    wf = workflow(backoff_limit=0, preemptible=preemptible)
    assert "retryStrategy" not in named(wf, "round")
    assert "retryStrategy" not in named(wf, "replicaOf-learner")
    hook = named(wf, "replicaOf-learner")["dag"]["tasks"][-1]["hooks"]["give-up"]["expression"]
    assert hook.startswith("tasks['learner'].status in ['Failed', 'Error']")


def test_only_attempts_that_ended_for_no_fault_of_their_own_are_retried_uncounted() -> None:
    strategy = named(workflow(), "learner")["retryStrategy"]
    assert strategy["limit"] == 1000
    assert "lastRetry.message matches" in strategy["expression"]
    assert "'{{inputs.parameters.round}}' == '{{workflow.parameters.current}}'" in strategy["expression"]


@pytest.mark.parametrize(
    ("fields", "mark"),
    [
        ({"preemptible": False}, None),
        ({"preemptible": True, "backoff_limit": 0}, '"{{inputs.parameters.round}}/0"'),
        ({"preemptible": True, "backoff_limit": 2}, '"{{inputs.parameters.round}}/{{inputs.parameters.attempt}}"'),
    ],
)
def test_a_stop_counts_for_nothing_unless_its_round_starts_again(fields: dict[str, Any], mark: str | None) -> None:
    rendered = workflow(**fields)
    pods = named(rendered, "learner")
    expression = pods["retryStrategy"]["expression"]
    assert STOPPED_MESSAGE in expression
    assert "lastRetry.duration" not in expression
    if mark is None:
        assert expression.endswith(f"lastRetry.message matches '{STOPPED_MESSAGE}'))")
    else:
        assert expression.endswith(f" && !('{{{{workflow.parameters.released}}}}' contains '{mark}')))")
    given = {item["name"] for item in pods["inputs"]["parameters"]}
    passed = named(rendered, "replicaOf-learner")["dag"]["tasks"][0]["arguments"]["parameters"]
    assert {item["name"] for item in passed} == given
    assert "attempt" in given or "parameters.attempt" not in expression


def test_argos_own_containers_are_confined_unless_the_pod_is_roots() -> None:
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    wf = workflow()
    assert container_patches(named(wf, "learner")) == {}
    assert patch(wf["spec"])["initContainers"] == [{"name": "init", "securityContext": confined}]
    root = workflow(task(securityContext={"runAsUser": 0}), task("collector"))
    assert "securityContext" not in root["spec"]["podSpecPatch"]
    containers = made_containers(root)
    assert [name for name in ("wait", "init") if "securityContext" in containers[name]] == []
    containers = made_containers(root, "collector")
    assert [containers[name]["securityContext"] for name in ("wait", "init")] == [confined, confined]


def test_the_passing_of_a_users_own_deadline_is_counted() -> None:
    expression = named(workflow(task("learner", activeDeadlineSeconds=60)), "learner")["retryStrategy"]["expression"]
    assert "float(lastRetry.duration) > 0 && float(lastRetry.duration) < 59" in expression


@pytest.mark.parametrize(
    ("policy", "expected"), [("All", {"strategy": "OnWorkflowCompletion"}), ("Running", None), ("None", None)]
)
def test_clean_pod_policy(policy: str, expected: dict[str, str] | None) -> None:
    assert workflow(clean_pod_policy=policy)["spec"].get("podGC") == expected


def test_pods_have_the_workers_account_and_the_step_that_gives_up_its_own() -> None:
    wf = workflow()
    assert wf["spec"]["serviceAccountName"] == "diflow-worker"
    assert named(wf, "give-up")["serviceAccountName"] == "diflow-steps"
    assert "serviceAccountName" not in named(wf, "learner")


def test_the_same_job_is_the_same_bytes() -> None:
    from diflow.workflows import to_yaml

    assert to_yaml(job(), settings=RenderSettings()) == to_yaml(job(), settings=RenderSettings())


def test_the_hera_workflow_is_handed_out() -> None:
    from hera.workflows import Workflow

    made = job().workflow()
    assert isinstance(made, Workflow)
    assert made.to_dict() == render(job())


def of_tasks(count: int, **fields: Any) -> DIJob:
    return job(*(task("none", name=f"task-{i}") for i in range(count)), **fields)


@pytest.mark.parametrize("preemptible", [False, True])
def test_forty_tasks_are_less_than_300_kb(preemptible: bool) -> None:
    large = of_tasks(40, preemptible=preemptible)
    assert len(json.dumps(render(large, settings=RenderSettings()))) < 300_000
    assert len(to_yaml(large, settings=RenderSettings())) < 300_000


def test_the_workflow_grows_with_the_tasks_and_not_with_their_square() -> None:
    small, middle, large = (len(json.dumps(render(of_tasks(n), settings=RenderSettings()))) for n in (10, 20, 40))
    assert (large - middle) / (middle - small) < 2.05


def test_no_pod_names_the_tasks_of_others() -> None:
    wf = workflow(task("learner"), task("collector"), task("evaluator"))
    text = json.dumps([made(wf, "evaluator"), named(wf, "evaluator")])
    assert "collector" not in text
    assert "{{workflow.name}}-learner-0" in text, "but for the host of rank 0"


def test_torchruns_variables_are_the_jobs_also_if_the_user_has_some_of_his_own() -> None:
    def variables(*own: dict[str, str]) -> dict[str, Any]:
        wf = workflow(task("learner"), task("collector", container={"env": list(own)}))
        return seen_by_program(made_containers(wf, "collector")["main"])

    plain = variables()
    assert plain["RANK"] == plain["PET_NODE_RANK"] == plain["DI_RANK"]
    assert plain["PET_NNODES"] == plain["WORLD_SIZE"]
    assert plain["PET_RDZV_ENDPOINT"] == f"{plain['MASTER_ADDR']}:{plain['MASTER_PORT']}"
    mine = variables({"name": "WORLD_SIZE", "value": "9"}, {"name": "MASTER_ADDR", "value": "elsewhere"})
    assert mine == {**plain, "WORLD_SIZE": "9", "MASTER_ADDR": "elsewhere"}


def test_a_users_list_of_hosts_gives_way_to_the_jobs() -> None:
    own = [{"name": "DI_LEARNER_NODES", "value": "x"}, {"name": "DI_OTHER", "value": "$(DI_LEARNER_NODES)"}]
    got = seen_by_program(made_containers(workflow(task(container={"env": own})))["main"])
    assert got["DI_OTHER"] == got["DI_LEARNER_NODES"] == got["DI_NODES"]
    several = workflow(task(container={"env": own}), task("collector"))
    assert "DI_LEARNER_NODES" not in env(named(several, "learner")["container"])
    assert made_containers(several)["main"]["env"][-1] == {"name": "DI_OTHER", "value": "$(DI_LEARNER_NODES)"}


WORDS = ("and", "contains", "else", "false", "if", "in", "let", "matches", "nil", "not", "or", "true")


@pytest.mark.parametrize("word", WORDS)
def test_a_task_may_be_named_as_a_word_of_argos_expressions(word: str) -> None:
    wf = workflow(task("none", name=word), task("none", name=f"{word}-{word}"))
    bare = re.compile(rf"(?<![\w'/-]){word}(?![\w'/-])")
    for template_name in ("round", f"replicaOf-{word}"):
        tasks = named(wf, template_name)["dag"]["tasks"]
        names = {t["name"] for t in tasks}
        depends = tasks[-1]["depends"]
        assert not bare.search(depends), depends
        assert set(re.findall(r"([a-z-]+)\.(?:Succeeded|Failed|Errored)", depends)) == names - {"superseded"}
    (name,) = {t["name"] for t in named(wf, f"replicaOf-{word}")["dag"]["tasks"]} - {"superseded"}
    place = parse("job", f"job.round(0:1)(2).{name}(3:3.1)(0).{name}(5)")
    assert place is not None
    assert (place.task, place.member, place.is_pod) == (word, "3.1", True)
    assert json.loads(next(p["value"] for p in wf["spec"]["arguments"]["parameters"] if p["name"] == "granted")) == {
        "1": {word: 1, f"{word}-{word}": 1}
    }


def test_no_two_templates_have_one_name() -> None:
    wf = workflow(*(task("none", name=name) for name in ("a", "replica-a", "replicaof-a", "a-a")))
    names = [t["name"] for t in wf["spec"]["templates"]]
    assert len(names) == len(set(names))


def test_a_workflow_that_argo_cannot_carry_is_refused() -> None:
    sidecars = [{"name": f"side-{i}", "image": "x", "command": ["true"]} for i in range(15)]
    spec = {"containers": [{"name": "di-container", "image": "x", "command": ["true"]}, *sidecars]}
    from diflow import Task

    large = job(*(Task(type="none", name=f"task-{i}", template={"spec": spec}) for i in range(20)))
    with pytest.raises(
        InvalidError, match=r"spec.tasks: the Workflow of this job has \d+ bytes, at most 524288"
    ) as error:
        render(large, settings=RenderSettings())
    assert "give the job fewer tasks or containers" in str(error.value)


@pytest.mark.filterwarnings("ignore::diflow.UnknownFieldWarning")
def test_heras_models_read_every_workflow_as_it_is() -> None:
    """Pod templates are checked with Hera's models when the job is made, and not once more when it is rendered."""
    from hera.workflows import Workflow

    rendered = 0
    for seed in range(150):
        try:
            made = render(DIJob.from_manifest(Maker(seed).manifest()), settings=RenderSettings())
        except InvalidError:
            continue
        assert cast("Workflow", Workflow.from_dict(made)).to_dict() == made, seed
        rendered += 1
    assert rendered > 30


@pytest.mark.parametrize("seed", range(5))
def test_what_was_rendered_before_changes_nothing(seed: int) -> None:
    """Parts of a Workflow are built once and copied: a caller may change its Workflow."""
    volume = {"name": "data", "emptyDir": {}}
    own = template(volumes=[volume], tolerations=[{"key": "a", "operator": "Exists"}], nodeSelector={"disk": "ssd"})
    tasks = [Task(name=name, template=own) for name in ("a", "b")]
    one = job(*tasks, preemptible=bool(seed % 2), backoff_limit=seed, volumes=[volume | {"name": "more"}])
    before = render(one, settings=RenderSettings())
    text = json.dumps(before)
    _spoil(before)
    assert json.dumps(render(one, settings=RenderSettings())) == text


def _spoil(value: Any) -> None:
    for item in list(value.values() if isinstance(value, dict) else value):
        if isinstance(item, dict | list):
            _spoil(item)
    value.clear()
