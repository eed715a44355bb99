"""Placement of a gang's replicas on nodes: best fit, without a search.

One node if one is enough, the one with the fewest slots left over; else the nodes with the most slots, and best fit
again for the rest. Ties go to the earlier node, so placement is deterministic.
"""

from __future__ import annotations

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray

ANY_NUMBER = 2**31
"""Slots of a node for replicas that request nothing."""


def slots(free: IntArray, request: IntArray, mask: BoolArray | None = None) -> IntArray:
    """Replicas of `request` (R) that fit in `free` (N×R) on each node (N); 0 outside the mask (N)."""
    # By columns: there are few resources, and this is called tens of thousands of times a cycle.
    out: IntArray | None = None
    for r, amount in enumerate(request.tolist()):
        if amount:
            count = free[:, r] // amount
            out = count if out is None else np.minimum(out, count, out=out)
    if out is None:
        out = np.full(len(free), ANY_NUMBER, dtype=np.int64)
    np.maximum(out, 0, out=out)
    return out if mask is None else np.where(mask, out, 0)


def place(
    fits: IntArray, count: int, preference: FloatArray | None = None, *, together: bool = False
) -> tuple[IntArray, IntArray] | None:
    """Place `count` replicas on nodes with `fits` (N) slots: (nodes, counts), or None if they do not fit.

    `preference` (N, higher first) breaks ties between nodes with equally many slots. `together`: on one node or not at
    all.
    """
    if count <= 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    single = _tightest(fits, count, preference)
    if single >= 0:
        return np.array([single], dtype=np.int64), np.array([count], dtype=np.int64)
    if together or int(fits.sum()) < count:
        return None
    usable = np.flatnonzero(fits)
    tie = np.zeros(len(usable)) if preference is None else -preference[usable]
    usable = usable[np.lexsort((usable, tie, -fits[usable]))]
    total = np.cumsum(fits[usable])
    last = int(np.searchsorted(total, count))
    nodes, counts = usable[: last + 1].copy(), fits[usable[: last + 1]].copy()
    rest = count - (int(total[last - 1]) if last else 0)
    others = fits.copy()
    others[nodes[:last]] = 0
    nodes[last], counts[last] = _tightest(others, rest, preference), rest
    order = np.argsort(nodes)
    return nodes[order], counts[order]


def place_by_score(
    fits: IntArray, count: int, score: FloatArray, preference: FloatArray | None = None, *, together: bool = False
) -> tuple[IntArray, IntArray] | None:
    """As `place`, by score (N): the best node on which all fit, else nodes in descending order."""
    enough = np.flatnonzero(fits >= count)
    if len(enough):
        marks = score[enough]
        best = marks.argmax() if preference is None else np.lexsort((-preference[enough], -marks))[0]
        return np.array([enough[best]], dtype=np.int64), np.array([count], dtype=np.int64)
    if together or int(fits.sum()) < count:
        return None
    usable = np.flatnonzero(fits)
    tie = usable if preference is None else -preference[usable]
    usable = usable[np.lexsort((usable, tie, -score[usable]))]
    total = np.cumsum(fits[usable])
    last = int(np.searchsorted(total, count))
    nodes, counts = usable[: last + 1], fits[usable[: last + 1]].copy()
    counts[last] = count - (int(total[last - 1]) if last else 0)
    order = np.argsort(nodes)
    return nodes[order], counts[order]


def _tightest(fits: IntArray, count: int, preference: FloatArray | None) -> int:
    """The node with the fewest slots of those with at least `count`, or -1."""
    enough = (fits >= count).nonzero()[0]
    if len(enough) == 0:
        return -1
    spare = fits[enough]
    if preference is None:
        return int(enough[spare.argmin()])
    best = enough[spare == spare.min()]
    return int(best[preference[best].argmax()])
