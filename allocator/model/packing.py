"""Where the replicas of a gang go: a few small functions over free N×R tables, exact and without a search.

Nodes that fit worst are kept free: one node if one is enough (the one with the least room to spare), else the nodes
with the most room, the last of them again the tightest. Ties go to the earlier node, so the answer depends on the
input alone.
"""

from __future__ import annotations

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray

ANY_NUMBER = 2**31
"""Replicas that ask for nothing fit any number of times."""


def slots(free: IntArray, request: IntArray, mask: BoolArray | None = None) -> IntArray:
    """How many replicas of `request` each node takes (N), 0 outside the mask."""
    # By columns: there are a handful of resources, and this is asked tens of thousands of times.
    out: IntArray | None = None
    for r, amount in enumerate(request.tolist()):
        if amount:
            room = free[:, r] // amount
            out = room if out is None else np.minimum(out, room, out=out)
    if out is None:
        out = np.full(len(free), ANY_NUMBER, dtype=np.int64)
    np.maximum(out, 0, out=out)
    return out if mask is None else np.where(mask, out, 0)


def place(
    room: IntArray, count: int, preference: FloatArray | None = None, *, together: bool = False
) -> tuple[IntArray, IntArray] | None:
    """Put `count` replicas on nodes with `room` slots each: (nodes, counts), or None if they do not fit.

    `preference` (N, higher first) breaks ties between nodes of equal room before their order does. `together`: on one
    node or not at all.
    """
    if count <= 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    single = _tightest(room, count, preference)
    if single >= 0:
        return np.array([single], dtype=np.int64), np.array([count], dtype=np.int64)
    if together or int(room.sum()) < count:
        return None
    usable = np.flatnonzero(room)
    tie = np.zeros(len(usable)) if preference is None else -preference[usable]
    usable = usable[np.lexsort((usable, tie, -room[usable]))]
    total = np.cumsum(room[usable])
    last = int(np.searchsorted(total, count))
    nodes, counts = usable[: last + 1].copy(), room[usable[: last + 1]].copy()
    rest = count - (int(total[last - 1]) if last else 0)
    others = room.copy()
    others[nodes[:last]] = 0
    nodes[last], counts[last] = _tightest(others, rest, preference), rest
    order = np.argsort(nodes)
    return nodes[order], counts[order]


def place_by_score(
    room: IntArray, count: int, score: FloatArray, preference: FloatArray | None = None, *, together: bool = False
) -> tuple[IntArray, IntArray] | None:
    """The same where scores decide: the best node that takes all, else nodes by falling score."""
    fits = np.flatnonzero(room >= count)
    if len(fits):
        marks = score[fits]
        best = marks.argmax() if preference is None else np.lexsort((-preference[fits], -marks))[0]
        return np.array([fits[best]], dtype=np.int64), np.array([count], dtype=np.int64)
    if together or int(room.sum()) < count:
        return None
    usable = np.flatnonzero(room)
    tie = usable if preference is None else -preference[usable]
    usable = usable[np.lexsort((usable, tie, -score[usable]))]
    total = np.cumsum(room[usable])
    last = int(np.searchsorted(total, count))
    nodes, counts = usable[: last + 1], room[usable[: last + 1]].copy()
    counts[last] = count - (int(total[last - 1]) if last else 0)
    order = np.argsort(nodes)
    return nodes[order], counts[order]


def _tightest(room: IntArray, count: int, preference: FloatArray | None) -> int:
    """The node that takes `count` with the least room to spare, or -1."""
    fits = (room >= count).nonzero()[0]
    if len(fits) == 0:
        return -1
    spare = room[fits]
    if preference is None:
        return int(fits[spare.argmin()])
    best = fits[spare == spare.min()]
    return int(best[preference[best].argmax()])
