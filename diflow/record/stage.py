"""The stages of a job's life: the one vocabulary in which all that shows a job says where it is."""

from __future__ import annotations

from enum import Enum

from diflow.record.allocation import Allocation
from diflow.record.argo.tree import Tree
from diflow.record.live import Live


class Stage(Enum):
    """Where a job is in its life. The value is the word for people.

    The phase of the API says of an admitted job how far its pods are; of the others it says how far they were.
    """

    WAITING = "waiting"
    """It is a gang, and the allocator has given it no places yet, or has taken them back."""
    ADMITTED = "admitted"
    """It has its places, or needs none: Argo makes its pods, and they start and run."""
    SUSPENDED = "suspended"
    """By its user: Argo makes no more pods of it, and the allocator gives it no places."""
    HELD = "held"
    """It cannot be read, or the policy fails for it: nothing is decided about it, and its pods keep running."""
    STOPPING = "stopping"
    """Argo was asked to end it."""
    DELETING = "deleting"
    """Its Workflow is being deleted, and waits for the deletion of its pods."""
    SUPERSEDED = "superseded"
    """It goes on in another Workflow."""
    ENDED = "ended"


def stage_of(
    *,
    is_gang: bool,
    has_places: bool,
    is_held: bool,
    is_suspended: bool,
    is_stopping: bool,
    is_being_deleted: bool,
    is_superseded: bool = False,
    has_ended: bool = False,
) -> Stage:
    """The stage of a job with these marks: the last thing that happens to it counts."""
    if has_ended or is_superseded:
        return Stage.ENDED if has_ended else Stage.SUPERSEDED
    if is_being_deleted or is_stopping:
        return Stage.DELETING if is_being_deleted else Stage.STOPPING
    if is_held or is_suspended:
        return Stage.HELD if is_held else Stage.SUSPENDED
    return Stage.WAITING if is_gang and not has_places else Stage.ADMITTED


def has_places(allocation: Allocation | None, live: Live, tree: Tree) -> bool:
    """Whether the replicas of a gang have places in the current round. Without its annotation, its pods tell."""
    if not any(map(live.running, live.counts)):
        return False
    if allocation is None:
        return live.current in tree.had_node
    return allocation.round == live.current and allocation.has_node


def is_queued(stage: Stage, *, has_places: bool) -> bool:
    """Whether a gang of this stage stands in the queue."""
    return stage is Stage.WAITING or (stage in (Stage.HELD, Stage.SUSPENDED) and not has_places)


def is_planned(stage: Stage, *, has_places: bool) -> bool:
    """Whether the allocator decides about a gang of this stage. For others an earlier decision says nothing."""
    return stage in (Stage.WAITING, Stage.ADMITTED) or (stage is Stage.SUSPENDED and has_places)
