"""The pipeline in Hera: `python -m pipeline.pipeline | argo submit - --watch` (with `examples` on the PYTHONPATH).

    prepare → train → evaluate → promote    if the loss is below the limit
                               → reject     if it is not

`train` is an elastic DIJob. If it fails, or if the pipeline is stopped meanwhile, `argo retry` continues there.
"""

from __future__ import annotations

from pathlib import Path

from hera.workflows import DAG, Container, Env, Parameter, Task, Workflow
from hera.workflows import models as m

from diflow import DIJob
from diflow.common import keys
from diflow.workflows import step

IMAGE = "docker.io/diflow/diflow:0.2.0"
JOB = Path(__file__).with_name("job.yaml")


def pipeline(job: DIJob | None = None, *, name: str = "", steps: int = 200) -> Workflow:
    """The pipeline that trains with `job`, by default that of job.yaml. `name` is by default a generated one."""
    with Workflow(
        name=name or None,
        generate_name=None if name else "pipeline-",
        entrypoint="pipeline",
        service_account_name=keys.WORKER_ACCOUNT,
        arguments=[Parameter(name="limit", value="0.1"), Parameter(name="steps", value=str(steps))],
    ) as workflow:
        prepare = _stage("prepare", outputs={"data": "/tmp/data.json"})  # noqa: S108 (inside the container)
        train = step(job or DIJob.from_yaml(JOB), parameters=["DATA", "STEPS"])
        evaluate = _stage("evaluate", inputs=["DATA", "MODEL"], outputs={"loss": "/tmp/loss"})  # noqa: S108
        promote = _say("promote", "the model is promoted")
        reject = _say("reject", "the model is not good enough")
        with DAG(name="pipeline"):
            first = Task(name="prepare", template=prepare)
            data = str(first.get_parameter("data").value)
            trained = {"DATA": data, "STEPS": "{{workflow.parameters.steps}}"}
            second = Task(name="train", template=train, arguments=trained)
            model = str(second.get_parameter("result").value)
            third = Task(name="evaluate", template=evaluate, arguments={"DATA": data, "MODEL": model})
            loss = "{{tasks.evaluate.outputs.parameters.loss}}"
            is_good, is_bad = (f"{loss} {sign} {{{{workflow.parameters.limit}}}}" for sign in ("<", ">="))
            first.next(second)
            second.next(third)
            third.next(Task(name="promote", template=promote, when=is_good))
            third.next(Task(name="reject", template=reject, when=is_bad))
    return workflow


def _stage(name: str, *, inputs: tuple[str, ...] | list[str] = (), outputs: dict[str, str]) -> Container:
    return Container(
        name=name,
        image=IMAGE,
        command=["python3", "-m", "pipeline.stages", name],
        env=[Env(name=variable, value=f"{{{{inputs.parameters.{variable}}}}}") for variable in inputs],
        inputs=[Parameter(name=variable) for variable in inputs],
        outputs=[Parameter(name=key, value_from=m.ValueFrom(path=path)) for key, path in outputs.items()],
    )


def _say(name: str, text: str) -> Container:
    return Container(name=name, image=IMAGE, command=["echo", text])


def yaml() -> str:
    """The pipeline as YAML."""
    text: str = pipeline().to_yaml()
    return text


if __name__ == "__main__":
    print(yaml(), end="")
