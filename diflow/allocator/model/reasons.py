"""Why a plan gives a job what it gives it: one small object a job, which knows its own sentence.

A sentence says what "it", the job, does, or begins with figures. The amounts of resources are in base units; queues,
resources and other jobs are named. A policy of another package may give reasons of its own: subclasses of `Reason` with
a word and a text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

from diflow.allocator.model.amounts import amount_of
from diflow.common.words import STARTS, counted, named, quantity


class Look(Protocol):
    """What a reason may ask about the one job whose decision is explained."""

    @property
    def is_left_out(self) -> bool:
        """Whether nodes are left out for the job."""

    @property
    def refusal(self) -> str:
        """Why the job may not be placed even on an empty cluster; "" if it may."""

    @property
    def level(self) -> str:
        """The level of which one domain must hold the whole job, or ""."""

    @property
    def has_domains(self) -> bool:
        """Whether any node has the label of that level."""

    def task(self, minimum: int) -> str:
        """The first task with that minimum, and what each of its replicas asks for; "" if there is none."""

    def gang(self) -> str:
        """Its minimum replicas: in all, and by task."""

    def short(self) -> str:
        """What one replica of the task that fits worst asks for, and which nodes or domains are short of what."""

    def in_the_way(self, minimum: int) -> str:
        """What keeps the first task with that minimum from nodes that would take it: what pods that the allocator does
        not place hold there, and which nodes are closed."""

    def excluding(self, minimum: int) -> str:
        """Why nodes take none of the first task with that minimum though all are open and empty, with their numbers."""

    def opening(self, minimum: int) -> str:
        """What would open nodes to it, that which would open most first."""

    def short_together(self) -> str:
        """As `short`, of all its tasks together in one domain; "" if it requires none."""

    def out_of_limits(self) -> str:
        """Which tasks held less than their minimum or more than their maximum; "" if none did."""

    def similar_queue(self, name: str) -> str:
        """The queue that was probably meant by that name; "" if none is close."""

    def may_grow(self) -> bool:
        """Whether it may have more replicas than the plan gives it."""

    def lacks_room(self) -> bool:
        """Whether it may have more, and none of them fits anywhere."""


class Change(NamedTuple):
    """What a whole plan changes for a job that holds something before or after it.

    Replicas of all tasks `before` and `after`, and `asked` for. `is_kept`: each of them stays where it is.
    """

    before: int
    after: int
    asked: int
    is_kept: bool
    is_preemptible: bool

    def reason(self) -> Reason:
        """The reason that says what happened, and no more."""
        if self.is_kept:
            return kept(is_preemptible=self.is_preemptible)
        if not self.before:
            return Fits(self.after, max(self.after, self.asked))
        return Grown(self.after) if self.after > self.before else PlacedAgain(self.after, self.before)


class Reason:
    """Why a job gets what a plan gives it. Reasons are immutable, and many jobs may share one."""

    __slots__ = ()
    word: ClassVar[str] = "reason"
    """Its name for machines, as in the journal, which never changes: that of the class, in the form `does_not_fit`."""
    can_end: ClassVar[bool] = True
    """Whether what it waits for may come without a change of the job or of the queues."""
    is_all: ClassVar[bool] = False
    """Whether free capacity would not help a job that waits for this: the sentence, and the remedy, say it all."""
    wants_nodes: ClassVar[bool] = False
    """Whether further nodes would help a job that waits for this, and no quota holds it back."""

    def __init_subclass__(cls) -> None:
        if "word" not in vars(cls):
            cls.word = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def text(self) -> str:
        """The sentence, in one line."""
        raise NotImplementedError

    def in_full(self, look: Look) -> str:
        """The sentence with what can be seen of the job in the snapshot and the plan."""
        del look
        return self.text()

    def remedy(self) -> str:
        """What would have to change for a job that waits, besides more free capacity; "" for nothing."""
        return ""

    def in_detail(self, look: Look) -> str:
        """As `remedy`, with what can be seen of the job in the snapshot and the plan."""
        del look
        return self.remedy()

    def of_whole(self, change: Change) -> Reason:
        """The reason for a plan of several steps, of which this is the reason of one: a later step may have reverted
        what an earlier one did."""
        del change
        return self

    def facts(self) -> dict[str, Any]:
        """Its fields as plain data, the same bytes for equal decisions."""
        names: list[str] = [field.name for field in fields(self)] if is_dataclass(self) else []
        found = {name: getattr(self, name) for name in names}
        return {name: round(value, 9) if isinstance(value, float) else value for name, value in found.items()}


# -- jobs that keep what they hold --


class _Counted(Reason):
    """A reason of which nothing is left if a later step of the plan changes the job too."""

    __slots__ = ()

    def of_whole(self, change: Change) -> Reason:
        return change.reason()


@dataclass(frozen=True, slots=True)
class Kept(_Counted):
    def text(self) -> str:
        return "keeps what it holds: no change is worth its cost"

    def in_full(self, look: Look) -> str:
        if not look.may_grow():
            return "keeps what it holds: it has all that it may have"
        return _NO_ROOM_LEFT if look.is_left_out and look.lacks_room() else self.text()


@dataclass(frozen=True, slots=True)
class KeptNotPreemptible(_Counted):
    def text(self) -> str:
        return "keeps what it holds: it is not preemptible, so it is never moved"

    def in_full(self, look: Look) -> str:
        if not look.lacks_room():
            return self.text()
        return _NO_ROOM_LEFT if look.is_left_out else "keeps what it holds: no node has room for the rest"


_NO_ROOM_LEFT = "keeps what it holds: no node that is not left out for it has room for the rest"
KEPT, KEPT_NOT_PREEMPTIBLE = Kept(), KeptNotPreemptible()


def kept(*, is_preemptible: bool) -> Reason:
    """The reason of a job that nothing happens to."""
    return KEPT if is_preemptible else KEPT_NOT_PREEMPTIBLE


@dataclass(frozen=True, slots=True)
class DoesNotFitElsewhere(Reason):
    """It holds more than its maximum: replicas that it needs on open nodes to be placed again, and those that fit."""

    needs: int
    fits: int

    def text(self) -> str:
        return (
            f"keeps what it holds: placed again it needs {_replicas(self.needs)} on open nodes, and {_fit(self.fits)}"
        )


@dataclass(frozen=True, slots=True)
class TooSoon(Reason):
    """`more` replicas would fit; it was changed `seconds` ago."""

    replicas: int
    more: int
    seconds: float

    def text(self) -> str:
        kept, more, ago = _replicas(self.replicas), self.more, f"{self.seconds:.0f} s"
        return f"keeps {kept}: {more} more would fit, but it was changed {ago} ago"


@dataclass(frozen=True, slots=True)
class GainTooSmall(Reason):
    replicas: int
    more: int

    def text(self) -> str:
        return f"keeps {_replicas(self.replicas)}: {self.more} more would fit, too few to be worth a restart of all"


# -- jobs that get something --


@dataclass(frozen=True, slots=True)
class Fits(_Counted):
    gets: int
    asks: int

    def text(self) -> str:
        return f"{STARTS}it gets {self.gets} of the {_replicas(self.asks)} it asks for"

    def of_whole(self, change: Change) -> Reason:
        return change._replace(asked=self.asks).reason()


@dataclass(frozen=True, slots=True)
class Explores(Reason):
    def text(self) -> str:
        return "starts small: it has reported nothing yet, so nothing is known of how it scales"


@dataclass(frozen=True, slots=True)
class Grown(_Counted):
    replicas: int

    def text(self) -> str:
        return f"grows to {_replicas(self.replicas)}: what its user asked for fits now"


@dataclass(frozen=True, slots=True)
class PlacedAgain(_Counted):
    replicas: int
    before: int

    def text(self) -> str:
        return f"is placed again with {_replicas(self.replicas)}, {self.before} before"

    def in_full(self, look: Look) -> str:
        return self.text() + look.out_of_limits()

    def of_whole(self, change: Change) -> Reason:
        found = change.reason()
        return PlacedAgain(change.after, change.before) if isinstance(found, Grown) else found


@dataclass(frozen=True, slots=True)
class Gain(Reason):
    """Speeds after and before, in multiples of its smallest configuration, and the job's weight."""

    speed: float
    before: float
    weight: float

    def text(self) -> str:
        return f"{_speed(self)}, at weight {self.weight:.3g}: the best use of the capacity"


@dataclass(frozen=True, slots=True)
class WorthMoreElsewhere(Reason):
    """As `Gain`, of a job that lost replicas to others."""

    speed: float
    before: float
    word: ClassVar[str] = "shrunk_for_others"

    def text(self) -> str:
        return f"{_speed(self)}: its capacity is worth more elsewhere"


# -- jobs that lost replicas to another job --


@dataclass(frozen=True, slots=True)
class Loss(Reason):
    """Replicas that are left to it, and that it held `before`; the `job` that gained."""

    replicas: int
    before: int
    job: str
    may_stay_as_large: ClassVar[bool] = False
    """Whether it may have as many replicas as before, elsewhere."""
    says: ClassVar[str] = ""

    def text(self) -> str:
        left = counted(self.replicas, "replica is", plural="replicas are")
        return f"{self.says.format(self.job)}; {left} left to it"

    def of_whole(self, change: Change) -> Reason:
        more = change.after - change.before
        if change.is_kept or more > 0 or (more == 0 and not self.may_stay_as_large):
            return change.reason()
        return replace(self, replicas=change.after, before=change.before)


class PreemptedForPriority(Loss):
    __slots__ = ()
    says = "gives way to {!r}, which has a higher priority"
    may_stay_as_large = True


class Reclaimed(Loss):
    __slots__ = ()
    says = "gives way to {!r}, whose queue held less of what it deserves"


class ReclaimedByGuarantee(Loss):
    __slots__ = ()
    says = "gives way to {!r}, whose queue is guaranteed what it asks for"


class SharedInQueue(Loss):
    __slots__ = ()
    says = "shares what it held above its minimum with {!r}, which starts in the same queue"


class GaveBackReservation(Loss):
    __slots__ = ()
    says = "gives back capacity that was reserved for {!r}, which can start with it"


class ShrunkForOthers(Loss):
    __slots__ = ()

    def text(self) -> str:
        has, before = _replicas(self.replicas), self.before
        return f"has {has} instead of {before}: {self.job!r} needs capacity that it held above its minimum"


# -- jobs that wait for capacity --


@dataclass(frozen=True, slots=True)
class DoesNotFit(Reason):
    """Replicas of a task that its gang needs, and those that fit."""

    needs: int
    fits: int
    wants_nodes: ClassVar[bool] = True

    def text(self) -> str:
        return f"waits for capacity: its gang needs {_replicas(self.needs)} at once and {_fit(self.fits)} now"

    def in_full(self, look: Look) -> str:
        if self.needs > self.fits:
            return self.text() + look.short()
        gang, short = look.gang(), look.short_together()
        return f"waits for capacity: each of its roles fits by itself, and not its {gang} together{short}"


@dataclass(frozen=True, slots=True)
class TakesTooLong(Reason):
    """The jobs of its namespace took all of the work that a namespace may take of a plan, or of some plans in a row."""

    is_all: ClassVar[bool] = True

    def text(self) -> str:
        return (
            "waits for another plan: planning the jobs of its namespace took as much work as a namespace may take in a "
            "few seconds"
        )

    def remedy(self) -> str:
        return "fewer jobs of the namespace that wait, or fewer tasks in each"


@dataclass(frozen=True, slots=True)
class TooBig(Reason):
    """Replicas of a task that its gang needs, and those that the nodes hold when all of them are open and empty."""

    needs: int
    fits: int
    wants_nodes: ClassVar[bool] = True
    can_end: ClassVar[bool] = False
    is_all: ClassVar[bool] = True

    def text(self) -> str:
        needs, fits = _replicas(self.needs), self.fits
        return f"cannot start on the nodes that are there: its gang needs {needs}, and they take {fits} in all"

    def in_full(self, look: Look) -> str:
        needs, fits = _replicas(self.needs), self.fits
        if look.is_left_out:
            return (
                f"cannot start now: its gang needs {needs} and the nodes that are not left out for it take {fits}; it "
                "can use the others again when their time is over"
            )
        if look.level and not look.has_domains:
            return f"cannot start now: its gang has to be in one {look.level}, and no node has the label of that level"
        if look.level:
            return (
                f"cannot start on the nodes that are there: its gang needs {needs} in one {look.level}, and the "
                f"largest takes {fits}"
            )
        why = look.excluding(self.needs) or look.refusal
        return (
            f"cannot start on the nodes that are there: its gang needs {look.task(self.needs) or needs}, and they take "
            f"{fits} of them, even when all are open and empty" + (f": {why}" if why else "")
        )

    def in_detail(self, look: Look) -> str:
        if look.level:
            return "would start with fewer replicas, less for each, a wider level, or more nodes"
        return f"would start with {look.opening(self.needs)}"


@dataclass(frozen=True, slots=True)
class Crowded(Reason):
    """Replicas of a task that its gang needs, and those that the open nodes hold beside the pods that are not the
    allocator's to move: of others, and of jobs that are held, or end. Empty nodes would hold it."""

    needs: int
    fits: int
    wants_nodes: ClassVar[bool] = True
    is_all: ClassVar[bool] = True

    def text(self) -> str:
        needs = _replicas(self.needs)
        return f"cannot start now: its gang needs {needs}, and the open nodes take {self.fits} beside other pods"

    def in_full(self, look: Look) -> str:
        needs = look.task(self.needs) or _replicas(self.needs)
        where = f" in one {look.level}" if look.level else ""
        return f"cannot start now: its gang needs {needs}{where}, and {self.fits} fit; {look.in_the_way(self.needs)}"

    def remedy(self) -> str:
        return "would start when those pods have ended and those nodes are open"


@dataclass(frozen=True, slots=True)
class RulesLeaveTooFew(Reason):
    """Replicas of a task that its gang needs, and those that fit by its rules about other pods, which `rules` names."""

    needs: int
    fits: int
    rules: str
    wants_nodes: ClassVar[bool] = True
    is_all: ClassVar[bool] = True

    def text(self) -> str:
        needs = _replicas(self.needs)
        return f"waits: its gang needs {needs}, and {_fit(self.fits)} by its rules about other pods: {self.rules}"

    def in_full(self, look: Look) -> str:
        needs = look.task(self.needs) or _replicas(self.needs)
        return f"waits: its gang needs {needs}, and {_fit(self.fits)} by its rules about other pods: {self.rules}"

    def remedy(self) -> str:
        return "would start with fewer replicas, with looser rules, with more nodes, or when pods that it avoids end"


@dataclass(frozen=True, slots=True)
class NoNodes(Reason):
    wants_nodes: ClassVar[bool] = True
    is_all: ClassVar[bool] = True

    def text(self) -> str:
        return "waits: there is no node that is ready and schedulable"


@dataclass(frozen=True, slots=True)
class ItsTurn(Reason):
    """Replicas of a task that it needs, those that fit in its reservation now, and seconds until that ends."""

    needs: int
    fits: int
    seconds: float
    wants_nodes: ClassVar[bool] = True

    def text(self) -> str:
        return (
            f"waits for capacity: its turn has come, and capacity is reserved for it for {self.seconds:.0f} s more; "
            f"{_fit(self.fits)} there now of the {_replicas(self.needs)} that its gang needs"
        )

    def remedy(self) -> str:
        return (
            "would start when all of its replicas fit in the reserved capacity; it passes shares meanwhile, no "
            "guarantees"
        )


@dataclass(frozen=True, slots=True)
class Reserved(Reason):
    """Its replicas, of which so many fit in all; capacity is reserved for `job` for `seconds` more (0: no end)."""

    needs: int
    fits: int
    seconds: float
    job: str
    wants_nodes: ClassVar[bool] = True
    is_all: ClassVar[bool] = True

    def text(self) -> str:
        end = f", for {self.seconds:.0f} s more at most" if self.seconds > 0 else ""
        needs = _replicas(self.needs)
        return f"waits: its {needs} would fit, but capacity is reserved for {self.job!r}, whose turn it is{end}"

    def remedy(self) -> str:
        end = ", when the reservation ends" if self.seconds > 0 else ""
        return f"would start when that job has started{end}, or with a higher priority than it has"


# -- jobs that wait for their queue --


@dataclass(frozen=True, slots=True)
class NoSuchQueue(Reason):
    queue: str
    can_end: ClassVar[bool] = False
    is_all: ClassVar[bool] = True

    def text(self) -> str:
        return f"waits: its queue {self.queue!r} does not exist; create it, or name another one in spec.queue"

    def in_full(self, look: Look) -> str:
        if look.refusal:
            return f"waits: {look.refusal}"
        if close := look.similar_queue(self.queue):
            return f"waits: its queue {self.queue!r} does not exist; did you mean {close!r} in spec.queue?"
        return self.text()


@dataclass(frozen=True, slots=True)
class QueueCap(Reason):
    """The cap of a queue, what is left of it, and what the gang needs."""

    queue: str
    resource: str
    needs: int
    left: int
    cap: int
    is_all: ClassVar[bool] = True

    def text(self) -> str:
        cap, left, needs = (amount_of(self.resource, value) for value in (self.cap, self.left, self.needs))
        return f"waits: queue {self.queue!r} is capped at {cap} and has {left} of that left; the gang needs {needs}"

    def remedy(self) -> str:
        ends = "with a smaller gang" if self.needs > self.cap else "when other jobs of that queue end"
        return f"would start {ends}, when the cap is raised, or in another queue"


@dataclass(frozen=True, slots=True)
class LentToPreemptible(Reason):
    """What a queue may still have in jobs that are not preemptible, as others lend their guarantees to preemptible jobs
    alone, and what the gang needs."""

    queue: str
    resource: str
    needs: int
    left: int
    is_all: ClassVar[bool] = True

    def text(self) -> str:
        left, needs = (amount_of(self.resource, value) for value in (self.left, self.needs))
        queue = self.queue.partition("/")[0]
        return (
            f"waits: the job is not preemptible, and the guarantees of other queues leave queue {queue!r} {left} for "
            f"such jobs; the gang needs {needs}"
        )

    def remedy(self) -> str:
        return (
            "would start with `preemptible: true` where capacity is free, as guarantees are lent to jobs that give "
            "them back, or when jobs that are not preemptible end"
        )


@dataclass(frozen=True, slots=True)
class GuaranteeHeld(Reason):
    """A queue whose guarantee covers the gang, what the gang lacks, and what jobs of other queues hold that are not
    preemptible. `where`: these queues."""

    queue: str
    resource: str
    lacks: int
    held: int
    where: tuple[str, ...]
    wants_nodes: ClassVar[bool] = True

    def text(self) -> str:
        lacks, held = (amount_of(self.resource, value) for value in (self.lacks, self.held))
        queues = named([repr(name) for name in self.where], 3)
        return (
            f"waits for capacity: queue {self.queue!r} is guaranteed what it asks for, but its gang lacks {lacks}, and "
            f"jobs of {'queue' if len(self.where) == 1 else 'the queues'} {queues} that are not preemptible hold {held}"
        )

    def remedy(self) -> str:
        return "would start when such jobs end: they started before the guarantee, or where it is lent to all jobs"


@dataclass(frozen=True, slots=True)
class QueueShare(Reason):
    """What a queue holds of what it deserves, and what the gang needs."""

    queue: str
    resource: str
    holds: int
    deserves: float
    needs: int
    wants_nodes: ClassVar[bool] = True

    def text(self) -> str:
        return f"waits: queue {self.queue!r} holds {self.share} that it deserves, and the gang needs {self.more}"

    @property
    def share(self) -> str:
        return f"{quantity(self.resource, self.holds)} of the {amount_of(self.resource, self.deserves)}"

    @property
    def more(self) -> str:
        return f"{amount_of(self.resource, self.needs)} more"

    def remedy(self) -> str:
        return (
            "would start when other jobs of that queue end, when its weight or guarantee is raised, or in another queue"
        )


class NamespaceShare(QueueShare):
    """As `QueueShare`, of the jobs of one namespace in a queue, beside those of others in it."""

    __slots__ = ()

    def text(self) -> str:
        return (
            f"waits: the jobs of its namespace in queue {self.queue!r} hold {self.share} that they deserve beside "
            f"those of other namespaces in it, and the gang needs {self.more}"
        )

    def remedy(self) -> str:
        return "would start when other jobs of its namespace in that queue end, or in another queue"


class OwnShare(QueueShare):
    """As `QueueShare`, of a queue's own jobs, without the queues below it."""

    __slots__ = ()

    def text(self) -> str:
        return (
            f"waits: the own jobs of queue {self.queue!r} hold {self.share} that they deserve beside the queues below "
            f"it, and the gang needs {self.more}"
        )

    def remedy(self) -> str:
        return "would start when other jobs of that queue itself end, or in a queue below it"


@dataclass(frozen=True, slots=True)
class NoSurplus(Reason):
    """What the gang lacks, and what jobs of other queues that may be stopped hold `above` what those deserve."""

    resource: str
    lacks: int
    above: float
    wants_nodes: ClassVar[bool] = True

    def text(self) -> str:
        lacks, above = (amount_of(self.resource, value) for value in (self.lacks, self.above))
        return (
            f"waits for capacity: its gang lacks {lacks}, and jobs of other queues that may be stopped hold {above} "
            "above what those deserve"
        )

    def remedy(self) -> str:
        return (
            "would start when other queues hold more than they deserve, which jobs that start in idle capacity may "
            "lead to"
        )


@dataclass(frozen=True, slots=True)
class GuaranteedElsewhere(Reason):
    """As `NoSurplus`, of a queue whose guarantee covers the gang, and what others hold above theirs."""

    queue: str
    resource: str
    lacks: int
    above: float
    wants_nodes: ClassVar[bool] = True

    def text(self) -> str:
        lacks, above = (amount_of(self.resource, value) for value in (self.lacks, self.above))
        return (
            f"waits for capacity: queue {self.queue!r} is guaranteed what it asks for, but its gang lacks {lacks}, and "
            f"jobs of other queues that may be stopped hold {above} above what those are guaranteed"
        )

    def remedy(self) -> str:
        return "would start when other queues hold more than they are guaranteed in jobs that may be stopped"


@dataclass(frozen=True, slots=True)
class PolicyFailed(Reason):
    def text(self) -> str:
        return "waits: the policy gave no usable plan, so nothing is changed"


def _replicas(count: int) -> str:
    return counted(count, "replica")


def _fit(count: int) -> str:
    return counted(count, "fits", plural="fit")


def _speed(speeds: Gain | WorthMoreElsewhere) -> str:
    return f"speed {speeds.before:.2f} → {speeds.speed:.2f} times its smallest configuration"
