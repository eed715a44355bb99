"""What serves the programs of others, and which no job of diflow's own needs. The core imports none of it.

    di_orchestrator    the DIJobs of DI-orchestrator v0.x (v1alpha1), with a coordinator
    adaptdl            the training processes of AdaptDL

Here is named what they add to the core, by the place that asks for it (`diflow.common.contribs`).
"""

from __future__ import annotations

from typing import Final

from diflow.common.contribs import add

_ADDED: Final = {
    "records.side_by_side": ("di_orchestrator.modules:read",),
    "workflows.variables": ("adaptdl.variables:variables",),
    "controller.forms": ("di_orchestrator.looks:FORM",),
    "controller.looks": ("di_orchestrator.looks:CoordinatorLooks",),
    "controller.versions": ("di_orchestrator.crd:V1ALPHA1",),
    "server.routes": ("di_orchestrator.routes:V1Alpha1", "adaptdl.routes:AdaptDL"),
}

for _place, _names in _ADDED.items():
    for _name in _names:
        add(_place, f"{__name__}.{_name}")
