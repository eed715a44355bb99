"""Hera definitions: a DIJob becomes one Argo Workflow.

Everything here is pure: the same job and settings give the same bytes, and nothing is sent.
"""

from __future__ import annotations

from diflow.workflows.job import build, render, to_yaml

__all__ = ["build", "render", "to_yaml"]
