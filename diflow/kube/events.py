"""Events of Kubernetes: what happened to an object, for `kubectl describe`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

# Kubernetes allows 1024 bytes.
_LONGEST_MESSAGE: Final = 1000
_LONGEST_INSTANCE: Final = 128


def event(
    on: Mapping[str, str],
    *,
    reason: str,
    message: str,
    is_warning: bool,
    component: str,
    instance: str,
    salt: str,
    now: str,
) -> dict[str, Any]:
    """An Event on the object `on` (a reference with kind, namespace, name and perhaps uid). Its name is a digest of all
    but the time, so that repeating it creates no second one. `now`: RFC 3339."""
    digest = hashlib.sha256(f"{on.get('uid', '')} {salt} {reason} {message}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{on['name']}.{digest}", "namespace": on["namespace"]},
        "involvedObject": dict(on),
        "reason": reason,
        "message": message[:_LONGEST_MESSAGE],
        "type": "Warning" if is_warning else "Normal",
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": instance[:_LONGEST_INSTANCE],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
