"""A simulator of a cluster under a policy: workloads of measured training applications, and streams of jobs."""

from __future__ import annotations

import diflow.labs.baselines  # noqa: F401 (adds its policies)
