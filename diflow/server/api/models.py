"""The bodies of requests, validated. The OpenAPI document is generated from these models and their descriptions.

Names are in camelCase, those of AdaptDL's hints where it has them. Unknown fields are ignored: clients send more than
is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from diflow.common.limits import LONGEST_FAILURE, MOST_PEERS, MOST_REPLICAS
from diflow.server.http.errors import Fault
from diflow.shards.dataset import MOST_EPOCHS, MOST_SAMPLES, MOST_SEED, MOST_UNITS
from diflow.shards.ledger import MOST_WANTED

Model = TypeVar("Model", bound=BaseModel)

MOST_ROWS = 256
_MOST_SAMPLES = 1_000_000_000


class _Body(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )


Whole = Annotated[int, Field(ge=1, le=_MOST_SAMPLES)]
Seconds = Annotated[float, Field(gt=1e-7, lt=1e6)]
Amount = Annotated[float, Field(ge=0, le=1e30)]
Coefficient = Annotated[float, Field(ge=0, le=1e9)]


class ReplicasRequest(_Body):
    """How many replicas to add or to remove, and of which task."""

    replicas: Annotated[int, Field(ge=0)] | None = Field(
        0, description="How many replicas. 0 changes nothing; 0 is the default.", examples=[1]
    )
    task: str | None = Field(
        None,
        max_length=63,
        description="The task's name. By default the elastic task: the first whose minimum is below its maximum; if "
        "there is none, the last task.",
    )


class GradParams(_Body):
    """The gradient noise: the squared norm of the gradient, and its variance at the initial batch size."""

    norm: Amount
    var: Amount


class PerfParams(_Body):
    """AdaptDL's model of a step's time, in seconds (Pollux, OSDI 2021).

    The policy `goodput` uses it as it is; without it, the policy fits its own model to `observed`. A model with seconds
    above 1e6 or a gamma outside 1 to 10 is stored and not used.
    """

    model_config = ConfigDict(alias_generator=None)

    alpha_c: Coefficient
    beta_c: Coefficient
    alpha_n: Coefficient
    beta_n: Coefficient
    alpha_r: Coefficient
    beta_r: Coefficient
    gamma: Coefficient


class _Hints(_Body):
    init_batch_size: Whole | None = Field(None, description="Samples per batch at the start of the job.")
    max_batch_size: Whole | None = Field(None, description="The most samples per batch.")
    global_batch_size: Whole | None = Field(None, description="Samples per batch now.")
    local_bsz_bounds: Annotated[list[Whole | None], Field(min_length=2, max_length=2)] | None = Field(
        None, description="The fewest and the most samples in the batch of one replica. null: no such bound."
    )
    max_profiled_replicas: Annotated[int, Field(ge=0, le=MOST_REPLICAS)] | None = Field(
        None, description="The most replicas with which the job has run."
    )
    gradient_accumulation: bool | None = Field(None, description="Whether a step may have several batches.")
    grad_params: GradParams | None = None
    perf_params: PerfParams | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        low, high = self.local_bsz_bounds or (None, None)
        if low is not None and high is not None and low > high:
            raise ValueError("localBszBounds: the first must not be above the second")
        return self


class Hints(_Hints):
    """The report of an AdaptDL client."""


Row = Annotated[
    list[Annotated[float, Field(ge=0, le=1e9)]],
    Field(
        min_length=5,
        max_length=6,
        description="[nodes, replicas, samples per replica, seconds without synchronisation, seconds per step], and "
        "the number of the node pool if there are several. The server adds it to a row without one.",
    ),
]


class Profiling(_Hints):
    """The report of one replica. All fields are optional.

    `speed`, `batch`, `stepSeconds` and `syncSeconds` are those of the reporting replica. The server sums the speeds of
    a task's replicas, and takes their mean for a replica that does not report. With `replicas` and without `rank`, the
    report is about that many replicas of the elastic task together, and the others need not report.
    """

    speed: Annotated[float, Field(gt=0, le=1e15)] | None = Field(None, description="Samples per second.")
    step: Annotated[int, Field(ge=0, le=10**15)] | None = Field(None, description="Steps done so far.")
    batch: Annotated[float, Field(gt=0, le=_MOST_SAMPLES)] | None = Field(
        None, description="Samples of one replica per step."
    )
    step_seconds: Seconds | None = Field(None, description="Seconds per step, with synchronisation.")
    sync_seconds: Annotated[float, Field(ge=0, lt=1e6)] | None = Field(
        None, description="Seconds of synchronisation per step."
    )
    replicas: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] | None = Field(
        None,
        description="Without `rank`: the number of replicas of the elastic task that the report is about. With `rank`: "
        "the number of the job's replicas.",
    )
    nodes: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] | None = Field(
        None, description="The number of their nodes. By default, the number in the cluster."
    )
    observed: Annotated[list[Row], Field(max_length=MOST_ROWS)] | None = Field(
        None, description="Measurements of the whole job: one row for each number of replicas and each batch size."
    )
    progress: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="The completed fraction of the job.")
    memory_bytes: Annotated[int, Field(ge=0, le=10**18)] | None = Field(
        None, description="The most memory that this replica has used."
    )
    cpu_seconds: Annotated[float, Field(ge=0, le=1e12)] | None = Field(
        None,
        description="The CPU time that the replica's container has used so far, from a monitor. A report with it or "
        "with `logBytes` is a sign of life only if one of them or the step has risen.",
    )
    gpu_utilization: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="The mean utilisation of the replica's GPUs, from a monitor."
    )
    log_bytes: Annotated[int, Field(ge=0, le=10**18)] | None = Field(
        None, description="The length of the replica's log so far, from a monitor."
    )
    rank: Annotated[int, Field(ge=0, le=MOST_REPLICAS)] | None = Field(
        None, description="The replica that the report is about. A pod always reports about itself."
    )
    round: Annotated[int, Field(ge=1, le=10**9)] | None = Field(
        None, description="The measured round. A report about another round than the current one is refused."
    )

    @property
    def is_whole(self) -> bool:
        """Whether the report is about several replicas together."""
        return self.replicas is not None and self.rank is None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for index, row in enumerate(self.observed or []):
            nodes, replicas, batch, part, step = row[:5]
            if not 1 <= nodes <= replicas <= 1e6:
                raise ValueError(f"observed[{index}]: there must be at least one node, and a replica for each")
            if batch <= 0 or not 1e-7 < step < 1e6 or part >= 1e6:
                raise ValueError(f"observed[{index}]: no step has this batch size or takes this long")
        if self.sync_seconds is not None and self.step_seconds is not None and self.sync_seconds > self.step_seconds:
            raise ValueError("syncSeconds: must not be above stepSeconds")
        if self.nodes is not None and self.replicas is not None and self.nodes > self.replicas:
            raise ValueError("nodes: must not be above replicas")
        return self


class WrappedProfiling(_Body):
    """The same, in the wrapper that existing clients send."""

    data: Profiling


class ShardsRequest(_Body):
    """What a worker has done of a data set, and how many shards it wants to have. All workers of a job describe a data
    set in the same way.
    """

    dataset: Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")] = Field(
        description="The name of the data set. A job has at most 16.", examples=["train"]
    )
    size: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = Field(description="Its samples.")
    shard: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = Field(description="Samples of one shard.")
    epochs: Annotated[int, Field(ge=1, le=MOST_EPOCHS)] = Field(1, description="How often each sample is seen.")
    seed: Annotated[int, Field(ge=0, le=MOST_SEED)] | None = Field(
        None, description="Of the order of the shards, another one in each epoch. null: in their order."
    )
    worker: Annotated[str, Field(max_length=64, pattern="^[A-Za-z0-9._-]+$")] = Field(
        "0", description="The process within the pod."
    )
    done: Annotated[list[Annotated[int, Field(ge=0, le=MOST_UNITS)]], Field(max_length=256)] = Field(
        default_factory=list, description="The units of shards that the worker has done since its last request."
    )
    want: Annotated[int, Field(ge=0, le=MOST_WANTED)] = Field(1, description="The leases that it wants to have in all.")
    lease_seconds: Annotated[float, Field(ge=10, le=86_400)] = Field(
        300.0, description="After this time without a request, the leases may be given to others."
    )
    leave: bool = Field(False, description="The worker ends: its leases are given to others at once.")


Addresses = Annotated[
    list[Annotated[str, Field(pattern=r"^([^:]+:[0-9]+|\[[0-9a-fA-F:.]+\]:[0-9]+)?$")]],
    Field(description='Addresses by rank; "" for a replica without one.'),
]


class Shard(BaseModel):
    """The samples `start` to `stop` - 1 of a data set, in an epoch (from 0). `unit` is its number over all epochs."""

    unit: int
    epoch: int
    start: int
    stop: int


class Leases(BaseModel):
    """All shards that the worker has now."""

    model_config = ConfigDict(alias_generator=to_camel)

    shards: list[Shard]
    refused: list[int] = Field(description="Units of `done` that others have been given, as the leases had ended.")
    lease_seconds: float = Field(description="The leases end after this time without a request.")
    finished: bool = Field(description="All shards of all epochs are done.")


class NodeCheckReport(_Body):
    """The results of a replica's node check."""

    figures: dict[str, Annotated[float, Field(ge=0, le=1e6)]] = Field(
        default_factory=dict,
        max_length=16,
        description="Seconds by figure: product, memory, disk, latency, transfer, allreduce, gpu. Others are ignored.",
        examples=[{"product": 0.0031, "memory": 0.21, "latency": 0.00012}],
    )
    failed: str | None = Field(
        None, max_length=LONGEST_FAILURE, description="What is wrong with the node, if a check of it has failed."
    )
    unmet: list[Annotated[int, Field(ge=0, lt=MOST_REPLICAS)]] = Field(
        default_factory=list, max_length=MOST_PEERS, description="The ranks of the peers that it did not reach."
    )
    elapsed_seconds: Annotated[float, Field(ge=0, le=1e6)] = Field(
        0.0,
        description="Since the check began. After three quarters of the check's time from then on, the results that "
        "exist are judged without those that are missing.",
    )


class NodeCheckAnswer(BaseModel):
    """Whether the work of a replica may begin."""

    verdict: Literal["go", "wait"] = Field(description="wait: ask again in a second.")
    reason: str = Field(description="Why the work may not begin yet.")
    checked: int = Field(description="Replicas whose results are stored.")
    replicas: int = Field(description="Replicas of the job.")


class Fields(BaseModel):
    """One invalid field of a body."""

    path: str
    message: str


class Errors(BaseModel):
    """The invalid fields of a body."""

    errors: list[Fields]


class Envelope(BaseModel):
    """The form of every response. `code` is 0 for success and 1 for a failure, whose kind is the HTTP status."""

    model_config = ConfigDict(extra="forbid")

    success: bool
    code: Annotated[int, Field(ge=0, le=1)]
    message: str = Field(description="One line, with neither apostrophes nor quotation marks.", pattern=r"""^[^'"]*$""")
    data: Any


def validate(model: type[Model], value: Any, *, prefix: str = "") -> tuple[Model | None, list[Fault]]:
    """(the model, []), or (None, the invalid fields of `value`). Keys match in any case, as in DI-orchestrator."""
    faults: list[Fault] = []
    named = _named(model, value, prefix, faults)
    if faults:
        return None, faults[:20]
    try:
        return model.model_validate(named), []
    except ValidationError as error:
        return None, [_fault(item, prefix) for item in error.errors(include_url=False, include_input=False)[:20]]


def _named(model: type[BaseModel], value: Any, prefix: str, faults: list[Fault]) -> Any:
    """The value with the model's names of its fields; repeated fields are appended to `faults`."""
    if not isinstance(value, dict):
        return value
    fields = {
        (field.alias or name).casefold(): (field.alias or name, field) for name, field in model.model_fields.items()
    }
    out: dict[str, Any] = {}
    seen: dict[str, str] = {}
    for key, item in value.items():
        name, field = fields.get(key.casefold(), (key, None))
        path = f"{prefix}.{name}" if prefix else name
        if name in seen:
            faults.append(Fault(path, f"is in the body twice: as {seen[name]} and as {key}"))
        seen[name] = key
        inner = _inner(field.annotation) if field is not None else None
        out[name] = _named(inner, item, path, faults) if inner is not None else item
    return out


def _inner(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as `GradParams | None`."""
    options = (annotation, *get_args(annotation))
    return next((each for each in options if isinstance(each, type) and issubclass(each, BaseModel)), None)


_WORDS: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_unicode": "is not valid unicode",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "list_type": "must be a list",
    "model_type": "must be a JSON object",
    "model_attributes_type": "must be a JSON object",
    "dict_type": "must be a JSON object",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have {min_length} items or more",
    "too_long": "must have at most {max_length} items",
}
"""Messages for the types of pydantic errors that these models can have."""


def _words(item: Mapping[str, Any]) -> str:
    kind, about = str(item["type"]), item.get("ctx") or {}
    if kind == "value_error":
        return str(about.get("error") or "cannot be so")
    return _WORDS.get(kind, "cannot be so").format(**{name: _shown(value) for name, value in about.items()})


def _shown(bound: Any) -> str:
    """A bound for people: `1,000`, `1e+15`."""
    if isinstance(bound, int | float) and bound == int(bound) and abs(bound) < 1e12:
        return f"{int(bound):,}"
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _fault(item: Mapping[str, Any], prefix: str) -> Fault:
    message = _words(item)
    path = _path(item["loc"])
    if not path and ": " in message:  # the message of a rule over several fields begins with the field to change
        path, message = message.split(": ", 1)
    return Fault(f"{prefix}.{path}" if prefix and path else prefix or path, message)


def _path(parts: tuple[int | str, ...]) -> str:
    out = ""
    for part in parts:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return out
