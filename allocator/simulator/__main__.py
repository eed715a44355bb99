"""`python -m diflow.allocator.simulator`: the simulator's commands without the rest of the CLI."""

from __future__ import annotations

import sys

from diflow.allocator.simulator.cli import app
from diflow.errors import DiflowError


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
