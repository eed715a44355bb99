"""Why rows differ from the originals, and between our policies: a sentence each, as docs/field-cases.md has them."""

from __future__ import annotations

# Of `fair`, against the originals.
IDLE_FIRST = "Idle capacity is used before any job is stopped, and a job takes nothing from itself."
EQUALS_SHARE = "Jobs of one queue and priority share what is above their minimums; none is stopped for another."
AGE_PASSES_NO_PRIORITY = "A priority is strict: age does not pass it unless an administrator sets ageing."
STRICT = "A priority is strict: a job of higher priority gets what it asks for (the rule drf makes it share)."
HOLDS_NOBODY_BACK = "A job that does not fit holds nobody back, of whatever priority: what is idle is used."
BORROWED = "A guarantee keeps nothing idle: others use it until its queue asks, and then give it back."
IDLE_IS_USED = "What is idle goes to whoever can use it, above shares too; queues below theirs reclaim it."
NO_MORE_THAN_ASKED = "No more is taken than what the newcomer needs."
OWN_JOBS = "A queue with queues below it may have jobs of its own: they count as one more child of weight 1."
AS_THE_NODE_IS = "A node is scored as it is before the pod comes: of two empty ones the smaller is as good."

# Of `fit`.
NO_QUEUES = "There are no queues: by priority, then age."
ALIKE = "There are no queues: jobs of one priority share alike."
NO_SHARES = "There are no queues: nobody is stopped for a job of his own priority."
MINIMUM_STAYS = "What is above the minimum goes by priority; a whole job is stopped for another's minimum alone."
FEWEST_SHRINK = "There are no queues: as few jobs as possible shrink for the newcomer, and share with it."

# Of `fair+goodput`.
POWERS_OF_TWO = "Inside a node powers of two are tried: what is between them is not worth a restart for each step."
INSIDE_BY_WORTH = "Inside a queue it goes by worth: of jobs that gain alike the first ends sooner if it runs alone."
VICTIM_BY_WORTH = "Inside a queue it goes by worth: which of two jobs gives way depends on what its work is worth."

# Of both.
SETTING_OF_FAIR = "The setting is one of fair alone."
