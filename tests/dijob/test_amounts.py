"""What pods ask for, in each form that Kubernetes takes, and however much of it there is."""

from __future__ import annotations

import pytest

from diflow.common import quantities
from diflow.common.limits import MOST_POD_RESOURCES
from diflow.common.quantities import MOST


@pytest.mark.parametrize(
    ("cpu", "millicores"),
    [
        ("2", 2000),
        ("1e3", 1_000_000),
        ("5E2", 500_000),
        ("1500000u", 1500),
        ("100000000n", 100),
        ("2.5", 2500),
        ("4e-1", 400),
    ],
)
def test_each_form_of_a_quantity_is_counted(cpu: str, millicores: int) -> None:
    assert quantities.read({"cpu": cpu}) == {"cpu": millicores}


@pytest.mark.parametrize("quantity", ["1E", "9" * 64, "1e99", "16Ei"])
def test_more_than_any_cluster_has_is_more_than_any_node_has(quantity: str) -> None:
    assert 10**11 <= quantities.read({"memory": quantity})["memory"] <= MOST


@pytest.mark.parametrize("quantity", ["1e999999999", "9" * 5000, "²", "lots", ""])
def test_what_is_no_quantity_costs_nothing(quantity: str) -> None:
    assert quantities.read({"cpu": quantity}) == {"cpu": 0}


def test_of_thousands_of_resources_few_are_kept_and_cpu_and_memory_are_among_them() -> None:
    invented = {f"a.example/{i}": "1" for i in range(5000)}
    containers = [{"resources": {"requests": {**invented, "memory": "1Gi"}}}, {"resources": {"requests": {"cpu": "2"}}}]
    found = quantities.of_pod({"containers": containers})
    assert len(found) == MOST_POD_RESOURCES
    assert (found["cpu"], found["memory"], found["pods"]) == (2000, 1024, 1)
