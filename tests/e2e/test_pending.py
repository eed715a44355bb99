"""An image that cannot be pulled, on real pods: Argo's own container runs beside the one that does not start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diflow import DIJob, Task
from diflow.record.exclusions import Exclusions
from tests.builders import template
from tests.clusters import TestCluster, wait_until
from tests.e2e.allocators import allocated, events, status, submit
from tests.e2e.live import Live

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("allocator")]


@pytest.fixture(scope="module")
def live(argo40: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A namespace with an allocator."""
    with allocated(argo40, "pending", tmp_path_factory.mktemp("allocator")) as place:
        yield place


def test_a_gang_whose_image_cannot_be_pulled_goes_back_to_the_queue(live: Live) -> None:
    made = template("sleep 1", container={"image": "registry.invalid/nothing:1"})
    worker = Task(name="worker", template=made)
    name = submit(live, DIJob(name="absent", tasks=(worker,), scheduling="gang", backoff_limit=0, pending_seconds=60))

    def said() -> str:
        return next((message for reason, message in events(live, name) if reason == "NotStarted"), "")

    why = wait_until("the allocator has noticed it", said, timeout=240)
    assert "did not start within 1m: it goes back to the queue" in why
    assert "worker-0 on" in why
    wait_until("its place is free", lambda: all(not _has_node(pod) for pod in live.pods(name)))
    (left_out,) = Exclusions.parse(live.workflow(name)["metadata"]["annotations"]["diflow/excluded-nodes"]).entries
    assert left_out.reason in why
    assert (status(live, name).restarts, status(live, name).ended) == (0, False)
    live.delete(name)


def _has_node(pod: dict[str, object]) -> bool:
    spec, state = pod["spec"], pod["status"]
    assert isinstance(spec, dict)
    assert isinstance(state, dict)
    return bool(spec.get("nodeName")) and state.get("phase") not in ("Failed", "Succeeded")
