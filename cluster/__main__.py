"""Entry point of `python3 -m cluster`."""

import sys

from cluster.cli import main

sys.exit(main())
