"""Policies of other systems, for comparison. They can be asked for by name once this is imported."""

from __future__ import annotations

from diflow.allocator.policies.registry import add

add("tiresias", f"{__name__}.tiresias:TiresiasPolicy")
add("optimus", f"{__name__}.optimus:OptimusPolicy")
