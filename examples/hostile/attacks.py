"""All attacks, in the order of their letters."""

from __future__ import annotations

from hostile.asked import ASKED
from hostile.priced import PRICED
from hostile.written import WRITTEN

ATTACKS = (*WRITTEN, *PRICED, *ASKED)
