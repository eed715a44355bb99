"""The command line, `diflow`.

Data goes to stdout and everything else to stderr. Exit codes: 0 done, 1 the job failed (or an unexpected error),
2 wrong usage or input, 3 not found, 4 conflict, 5 the cluster is unavailable or denies access, 124 a --timeout has
passed, 130 Ctrl-C (which detaches; it never stops a job).
"""

from __future__ import annotations

from diflow.cli.main import run

__all__ = ["run"]
