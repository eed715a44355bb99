"""Whether a real cluster's Argo behaves as diflow needs: the facts of the design, measured with small Workflows.

Argo's maintainers do not promise most of what diflow builds on (a patch of a running Workflow's parameters, say), so
each fact is measured on every supported version of Argo, and `diflow doctor --probe` measures it on the user's cluster.
It stands on top of the library as the CLI does: it renders with `diflow.workflows` and talks through `diflow.kube`.
"""

from __future__ import annotations

from diflow.conformance.finding import TITLES, Finding
from diflow.conformance.probe import DEFAULT_IMAGE, ProbeSettings, probe

__all__ = ["DEFAULT_IMAGE", "TITLES", "Finding", "ProbeSettings", "probe"]
