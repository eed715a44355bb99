"""Random DIJobs through the parser and the compiler, without a cluster.

DIFLOW_FUZZ_JOBS says how many (2,000 by default); DIFLOW_FUZZ_SEED is the first one's seed.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator

import pytest

from diflow import DIJob, InvalidError, UnknownFieldWarning
from diflow.common import limits
from diflow.dijob.settings import RenderSettings
from diflow.workflows import render
from tests.fuzz.argopods import pods
from tests.fuzz.dijobs import Maker

JOBS = int(os.environ.get("DIFLOW_FUZZ_JOBS", "2000"))
SEED = int(os.environ.get("DIFLOW_FUZZ_SEED", "0"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Unknown fields are dropped with a warning, which these tests ignore."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownFieldWarning)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["manifest", "hostile"])
def test_a_manifest_is_rendered_or_refused_in_one_line_with_a_path(kind: str) -> None:
    accepted = 0
    refusals: list[tuple[int, InvalidError]] = []
    for seed in range(SEED, SEED + JOBS // 2):
        manifest = getattr(Maker(seed), kind)()
        before = repr(manifest)
        try:
            job = DIJob.from_manifest(manifest)
            workflow = render(job, settings=RenderSettings())
        except InvalidError as error:
            refusals.append((seed, error))
            continue
        accepted += 1
        assert repr(manifest) == before, seed
        assert len(json.dumps(workflow).encode()) <= limits.MOST_WORKFLOW_BYTES
        assert DIJob.from_manifest(job.to_manifest()) == job, seed
        assert len(pods(workflow)) == len(job.tasks), seed
        for template in workflow["spec"]["templates"]:
            if "podSpecPatch" in template:
                assert isinstance(json.loads(template["podSpecPatch"]), dict), seed
    for seed, why in refusals:
        assert why.path or "a DIJob is a mapping" in why.message, (seed, why)
        assert len(why.message) < 300, (seed, why)
        assert "\n" not in why.message, (seed, why)
    assert accepted > JOBS // 2 * (0.2 if kind == "manifest" else 0.02), "the generator makes what is accepted, too"


def test_the_same_seed_is_the_same_job() -> None:
    assert [Maker(seed).manifest() for seed in range(20)] == [Maker(seed).manifest() for seed in range(20)]
