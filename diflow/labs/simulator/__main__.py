"""`python -m diflow.labs.simulator`: the simulator's commands without the rest of the CLI."""

from __future__ import annotations

import sys

from diflow.common.errors import DiflowError
from diflow.labs.simulator.cli import app


def main() -> int:
    """Run the command. An error is one line on stderr; returns its exit code."""
    try:
        app()
    except DiflowError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
