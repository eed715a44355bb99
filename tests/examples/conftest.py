"""Lets the tests import the examples as their pods do: with `examples/` on the path."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
