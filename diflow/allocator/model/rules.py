"""Rules about places that hold several nodes, and the pods there: required pod anti-affinity and affinity, topology
spread constraints, and claims that only pods of one node can mount.

What fits on one node is a matter of amounts (`ledger.py`). These rules are about a domain, the nodes with one value of
a label, and depend on where other replicas are. So the replicas of a role with rules are placed one by one, as
kube-scheduler places pods: each into a domain that takes it beside those before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.work import CELLS

Kind = Literal["apart", "near", "spread"]
MOST_TRIED: Final = 32
"""Domains in which a gang is tried that has to be in one of them."""
_MANY: Final = 2**31

Held = Callable[[int], tuple[IntArray, IntArray]]
"""role → (nodes, counts) of its replicas."""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One rule. D: domains.

    | field | shape | meaning |
    |---|---|---|
    | kind | | apart: no pod of `owners` in a domain with one of `counted`; near: only there; spread: see `most` |
    | text | | the rule as users know it |
    | domain | N | index of each node's domain, -1 without one |
    | owners, counted | | the roles that have the rule; those whose replicas it counts |
    | base | D | the pods that count and are no replicas of these roles |
    | repels | D | of `apart`: the pods that have the rule and are no replicas |
    | most | | of `spread`: how many more of `counted` than in the domain with the fewest where a pod of `owners` is |
    | is_open | D | of `spread`: the domains of which the fewest counts |
    | least_domains | | of `spread`: with fewer open domains the fewest is 0 |
    """

    kind: Kind
    text: str
    domain: IntArray
    owners: frozenset[int]
    counted: frozenset[int]
    base: IntArray
    repels: IntArray
    is_open: BoolArray
    most: int = 1
    least_domains: int = 1

    def tally(self, held: Held) -> Tally:
        """The replicas and pods in each domain now."""
        return Tally(self, self._sum(self.counted, held, self.base), self._sum(self.owners, held, self.repels))

    def _sum(self, roles: Iterable[int], held: Held, base: IntArray) -> IntArray:
        out = base.copy()
        for role in roles:
            nodes, counts = held(role)
            if len(nodes):
                out += np.bincount(self.domain[nodes] + 1, weights=counts, minlength=len(base) + 1)[1:].astype(np.int64)
        return out


class Tally:
    """How many pods that count, and that have the rule, are in each domain (D). One more replica changes it."""

    __slots__ = ("counted", "owners", "rule")

    def __init__(self, rule: Rule, counted: IntArray, owners: IntArray) -> None:
        self.rule, self.counted, self.owners = rule, counted, owners

    def allows(self, role: int) -> BoolArray:
        """The nodes where one more replica of the role may be (N)."""
        rule, found = self.rule, np.ones(len(self.counted), dtype=np.bool_)
        has_label = True
        if rule.kind == "apart":
            if role in rule.owners:
                found &= self.counted == 0
            if role in rule.counted:
                found &= self.owners == 0
        elif role in rule.owners:
            has_label = False
            if rule.kind == "spread":
                found = self.counted + (role in rule.counted) - self.least() <= rule.most
            elif self.counted.any() or role not in rule.counted:
                found = self.counted > 0
        if not len(found):
            return np.full(len(rule.domain), has_label, dtype=np.bool_)
        there: BoolArray = rule.domain >= 0
        return np.where(there, found[rule.domain], has_label)

    def each(self, role: int) -> IntArray | None:
        """The most replicas of the role that may be added on each node by itself (N); None: any number."""
        rule = self.rule
        if role not in rule.owners or role not in rule.counted or rule.kind == "near":
            return None
        if rule.kind == "apart":
            return np.where(rule.domain >= 0, 1, _MANY).astype(np.int64)
        left = rule.most + self.least() - self.counted
        return np.where(rule.domain >= 0, np.maximum(left, 0)[rule.domain], 0).astype(np.int64)

    def least(self) -> int:
        """The fewest pods in a domain that counts for that."""
        rule = self.rule
        if int(rule.is_open.sum()) < rule.least_domains:
            return 0
        return int(self.counted[rule.is_open].min(initial=_MANY)) if rule.is_open.any() else 0

    def add(self, role: int, node: int, count: int = 1) -> None:
        """Count more replicas of the role on a node."""
        at = int(self.rule.domain[node])
        if at >= 0:
            self.counted[at] += count * (role in self.rule.counted)
            self.owners[at] += count * (role in self.rule.owners)

    @property
    def is_undecided(self) -> bool:
        """Of `near`: nothing decides the domain yet."""
        return self.rule.kind == "near" and not self.counted.any()


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a snapshot, and those of each role that has some or counts for one."""

    all: tuple[Rule, ...]
    of_role: Mapping[int, tuple[int, ...]]

    @classmethod
    def of(cls, rules: Sequence[Rule]) -> Rules:
        of_role: dict[int, list[int]] = {}
        for i, rule in enumerate(rules):
            for role in rule.owners | (rule.counted if rule.kind == "apart" else frozenset()):
                of_role.setdefault(role, []).append(i)
        return cls(tuple(rules), {role: tuple(found) for role, found in of_role.items()})

    def alike(self) -> dict[int, int]:
        """role → a number that roles have in common which have and count for the same rules; 0 for none."""
        known: dict[tuple[tuple[int, bool, bool], ...], int] = {}
        out: dict[int, int] = {}
        for role, found in self.of_role.items():
            kind = tuple((i, role in self.all[i].owners, role in self.all[i].counted) for i in found)
            out[role] = known.setdefault(kind, len(known) + 1)
        return out

    def tallies(self, role: int, held: Held) -> list[Tally]:
        """Those of the rules of this role, with the replicas that are held."""
        return [self.all[i].tally(held) for i in self.of_role[role]]


NO_RULES: Final = Rules((), {})


def capped(fits: IntArray, role: int, tallies: Sequence[Tally]) -> IntArray:
    """The replicas of `fits` (N) of which each node could take so many by itself now."""
    out = fits.copy()
    for tally in tallies:
        out[~tally.allows(role)] = 0
        each = tally.each(role)
        if each is not None:
            np.minimum(out, each, out=out)
    return out


def spread_out(
    fits: IntArray,
    count: int,
    role: int,
    tallies: Sequence[Tally],
    *,
    preference: FloatArray | None = None,
    charge: Callable[[int], None] = lambda _: None,
) -> tuple[IntArray, int]:
    """Places up to `count` replicas of a role on nodes with `fits` (N) slots, one by one, each where all rules allow
    it: (replicas on each node (N), their number). Changes the tallies.

    The emptiest domain of a spread constraint is first; else the node that has replicas of the role already, or the
    fewest slots. Where a role has to be in one domain, it is one that holds all of `count`, if there is one.
    """
    left, taken = fits.copy(), np.zeros(len(fits), dtype=np.int64)
    steps = 2 + len(tallies) * (1 + len(fits) // CELLS)
    score = np.zeros(len(fits)) if preference is None else preference.copy()
    score -= np.minimum(fits, _MANY) / (2.0 * _MANY)
    spreads = [tally for tally in tallies if tally.rule.kind == "spread" and role in tally.rule.counted]
    for placed in range(count):
        charge(steps)
        able = left > 0
        for tally in tallies:
            able &= tally.allows(role)
            if tally.is_undecided:
                able &= _roomy(tally.rule, left, count - placed)
        nodes = able.nonzero()[0]
        if not len(nodes):
            return taken, placed
        rank = score[nodes] + 2.0 * (taken[nodes] > 0)
        for tally in spreads:
            rank = rank - 8.0 * tally.counted[tally.rule.domain[nodes]]
        node = int(nodes[int(rank.argmax())])
        left[node] -= 1
        taken[node] += 1
        for tally in tallies:
            tally.add(role, node)
    return taken, count


def _roomy(rule: Rule, left: IntArray, count: int) -> BoolArray:
    """The nodes of the domains that hold so many replicas, of the fullest first; all if none does (N)."""
    there: BoolArray = rule.domain >= 0
    sums = np.bincount(rule.domain[there], weights=np.minimum(left[there], count), minlength=len(rule.base))
    able = sums >= count
    if not able.any():
        return there
    best = int(np.where(able, sums, np.inf).argmin())
    return rule.domain == best  # type: ignore[no-any-return]


def homes(
    rules: Rules, roles: Sequence[int], room: Callable[[int], IntArray], held: Held
) -> Iterator[BoolArray | None]:
    """The sets of nodes (N) to which to confine a gang of these roles (`room`: role → slots of each node), of which
    some have to be in one domain that is not decided yet: the domains with the most room, at most MOST_TRIED.
    [None] if there is no such rule for several of them."""
    for rule in rules.all:
        mine = [role for role in roles if role in rule.owners]
        if len(mine) > 1 and rule.tally(held).is_undecided:
            sums = sum(
                np.bincount(rule.domain[rule.domain >= 0], weights=np.minimum(room(r), _MANY)[rule.domain >= 0],
                            minlength=len(rule.base))
                for r in mine
            )  # fmt: skip
            for at in np.argsort(-np.asarray(sums), kind="stable")[:MOST_TRIED].tolist():
                yield rule.domain == at
            return
    yield None


def broken(rules: Rules, role: IntArray, node: IntArray, before: IntArray, after: IntArray) -> dict[int, Rule]:
    """The roles of which replicas are added where a rule forbids it, by a plan in which each (role, node) pair has so
    many before and after: role → the rule. Written apart from how policies place."""
    out: dict[int, Rule] = {}
    for rule in rules.all:
        size = len(rule.base)
        at = rule.domain[node]
        mine, counts = np.isin(role, [*rule.owners]), np.isin(role, [*rule.counted])
        more = np.maximum(after - before, 0)

        def sums(which: BoolArray, amount: IntArray, base: IntArray, at: IntArray = at, size: int = size) -> IntArray:
            return base + np.bincount(at[which] + 1, weights=amount[which], minlength=size + 1)[1:].astype(np.int64)

        counted, owners = sums(counts, after, rule.base), sums(mine, after, rule.repels)
        for i in np.flatnonzero((more > 0) & (mine | (counts if rule.kind == "apart" else mine))).tolist():
            d, r, own = int(at[i]), int(role[i]), int(more[i])
            if d < 0:
                bad = rule.kind != "apart"
            elif rule.kind == "apart":
                others = counted[d] - (own if r in rule.counted else 0)
                theirs = owners[d] - (own if r in rule.owners else 0)
                alone = r in rule.owners and r in rule.counted
                bad = bool(
                    (r in rule.owners and others > 0) or (r in rule.counted and theirs > 0) or (alone and own > 1)
                )
            elif rule.kind == "spread":
                tally = Tally(rule, counted, owners)
                bad = bool(counted[d] - tally.least() > rule.most)
            else:
                new = np.flatnonzero((more > 0) & mine & counts)
                there = counted - np.bincount(at[new] + 1, weights=more[new], minlength=size + 1)[1:].astype(np.int64)
                is_first = r in rule.counted and not there.any()
                bad = len(set(at[new].tolist())) > 1 if is_first else counted[d] <= 0
            if bad:
                out.setdefault(r, rule)
    return out
