"""The errors of this package: each is one sentence for the user, and an exit code.

ClusterError            1  something failed; the message names the log or the next step
├── UsageError          2  the request is invalid (a bad name, not root, an unknown version)
└── MissingError        3  no such cluster
"""

from __future__ import annotations


class ClusterError(Exception):
    """Something failed; the message says what, which object, and what to do next."""

    exit_code = 1


class UsageError(ClusterError):
    """The request is invalid."""

    exit_code = 2


class MissingError(ClusterError):
    """No cluster of that name exists."""

    exit_code = 3
