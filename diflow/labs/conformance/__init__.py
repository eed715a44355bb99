"""Tests whether a real cluster's Argo behaves as diflow needs: the facts of the design, measured with small Workflows.

Argo does not guarantee most of the behaviour that diflow relies on (such as patching a running Workflow's parameters),
so each fact is measured on every supported version of Argo, and by `diflow doctor --probe` on the user's cluster.

Like the CLI it is built on the library: it renders with `diflow.workflows` and uses the client of `diflow.kube`.
"""

from __future__ import annotations

from diflow.labs.conformance.finding import TITLES, Finding
from diflow.labs.conformance.probe import DEFAULT_IMAGE, ProbeSettings, probe

__all__ = ["DEFAULT_IMAGE", "TITLES", "Finding", "ProbeSettings", "probe"]
