"""A cache of all objects of one kind: listed once, then updated by a watch.

The cache is for frequent reads without requests. It lags behind the server, so it reports its age, and writes based on
it need resourceVersions. Each object is reduced by `trim` as soon as it is parsed, as all Workflows of a busy cluster
do not fit into the memory of the process.

It does not know what the objects mean.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Unpack

from diflow.common.clock import SYSTEM, Clock
from diflow.common.durations import backoff
from diflow.common.errors import UnavailableError
from diflow.common.kept import KeptBytes
from diflow.kube.api import Change, Cluster, Selection
from diflow.kube.kinds import Kind
from diflow.kube.refusals import GoneError
from diflow.kube.sparing import Late, Shares

Json = dict[str, Any]
Key = tuple[str, str]
OnChange = Callable[[str, Key, Json | None, Json | None], None]

_BACKOFF_SECONDS: Final = (0.5, 30.0)
# A server may ask for a longer pause than our own maximum, up to this.
_LONGEST_RETRY_AFTER_SECONDS: Final = 120.0
# A stream that lasted this long was healthy: its end is counted as a first failure.
_HEALTHY_SECONDS: Final = 60.0
# How often it is looked whether objects that are read late may be read.
_LATE_SECONDS: Final = 0.2
# In a list, each namespace may cost this many seconds of a processor before its further objects are read late.
_LIST_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How a reflector lists and watches."""

    watch_seconds: tuple[float, float] = (240.0, 300.0)
    """The server ends a watch after a random time from this range, so that many clients do not reconnect at once."""
    silence_seconds: float = 75.0
    """Bookmarks come each minute: silence for longer means a dead connection."""
    page: int = 100
    """Small beside the 500 of client-go: a page of Workflows may have 100 KiB in each, and metadata as much as 256 KiB.
    """


PACE: Final = Pace()


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cached object, with its identity, which `trim` may remove from the object."""

    uid: str
    version: str
    object: Json


@dataclass(slots=True)
class _Listed:
    """What a list has read: its version; the uids of all objects; the entries of those that were read, and why others
    could not be; those that are read later."""

    version: str = ""
    present: dict[Key, str] = field(default_factory=dict)
    fresh: dict[Key, _Entry] = field(default_factory=dict)
    failed: dict[Key, str] = field(default_factory=dict)
    unread: set[Key] = field(default_factory=set)


class Reflector:
    """The objects of a kind and a selection; of each the whole object, or its metadata alone (`metadata_only`).

    `trim` is called with each received object, without its managedFields, and returns what to cache, or None for
    nothing. `on_change(kind, (namespace, name), old, new)` is called for each change of the cache: ADDED (no old),
    MODIFIED, or DELETED (no new); one call at a time, in the order of the changes, after `items()` shows them. It is
    called in the reflector's thread or in that of a caller of `apply_write`, so it should be fast, such as setting an
    event.

    `shares`: what reading costs is charged to the object's namespace there. With `reads_late`, objects of a namespace
    that has used its share are kept as they were, or are absent if they are new, until it may be read again (`late`).
    If it is a function of (what is cached of an object, the object as it is now), this is so for a change for which it
    returns True, and never for objects that are new.
    `on_gone` is called with the key of one that was gone when `trim` had returned what to cache.

    An error never ends the thread: it is reported as `trouble`, and retried after a pause. `on_trouble` is called with
    each error, and with None when the server has accepted a watch, in the reflector's thread.
    """

    def __init__(  # noqa: PLR0913 (all but two have a default)
        self,
        cluster: Cluster,
        kind: Kind,
        *,
        metadata_only: bool = False,
        trim: Callable[[Json], Json | None] = lambda obj: obj,
        on_change: OnChange = lambda *_: None,
        on_trouble: Callable[[Exception | None], None] = lambda _: None,
        on_gone: Callable[[Key], None] = lambda _: None,
        shares: Shares | None = None,
        reads_late: bool | Callable[[Json, Json], bool] = True,
        clock: Clock = SYSTEM,
        pace: Pace = PACE,
        **selection: Unpack[Selection],
    ) -> None:
        self._cluster = cluster.without_retries()
        self._kind = kind
        self._selection, self._metadata_only = selection, metadata_only
        self._trim = trim
        self._on_change = on_change
        self._on_trouble = on_trouble
        self._on_gone = on_gone
        self._clock = clock
        self._pace = pace
        self._shares = shares
        self._late = Late(shares, clock=clock) if shares is not None and reads_late else None
        self._may_wait = reads_late if callable(reads_late) else None
        self._reading_late: Key | None = None
        self._stopping = threading.Event()
        self._synced = threading.Event()
        self._thread: threading.Thread | None = None
        self._hang_up: Callable[[], None] = lambda: None
        # Held while a change is stored and reported, so that reports are in order; reading needs only `_lock`.
        self._turn = threading.RLock()
        self._lock = threading.Lock()
        self._entries: dict[Key, _Entry] = {}
        self._view: Mapping[Key, Json] | None = None
        self._heard: float | None = None
        self._is_heard = False
        self._got_event = False
        self._reopening = False
        self._version: str | None = None
        self._failures = 0
        self._trouble = ""
        self._listener_error = ""
        self._replaced: Key | None = None
        self._unreadable: dict[Key, str] = {}
        self._written: set[Key] | None = None

    # --- public interface ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to list and watch, in a thread."""
        if self._thread is not None:
            raise RuntimeError(f"the reflector of {self._kind.plural} has been started already")
        self._thread = threading.Thread(target=self._run, name=f"reflector-{self._kind.plural}", daemon=True)
        self._thread.start()
        if self._late is not None:
            name = f"reflector-{self._kind.plural}-late"
            threading.Thread(target=self._catch_up, name=name, daemon=True).start()

    def stop(self, *, timeout: float = 5.0) -> None:
        """Stop the thread, and wait for that for at most `timeout` seconds. The cache stays readable."""
        self._stopping.set()
        self._hang_up()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def reopen(self) -> None:
        """Continue the watch on a new connection: the present one may have been lost without a sign. `age_seconds` is
        infinite until the server has accepted it."""
        self._heard = None
        self._reopening = True
        self._hang_up()

    @property
    def kind(self) -> Kind:
        """The kind of the cached objects."""
        return self._kind

    def wait_synced(self, timeout: float | None = None) -> bool:
        """Wait for the first list. False after `timeout` seconds."""
        return self._synced.wait(timeout)

    @property
    def synced(self) -> bool:
        """Whether the objects were listed, and no change is known to have been missed since."""
        return self._synced.is_set()

    @property
    def age_seconds(self) -> float:
        """Seconds since all that the server had sent was read: after a list, an event, a bookmark or an accepted watch.
        Infinite before the first. What waits to be read makes the cache older."""
        heard = self._heard
        return math.inf if heard is None else max(0.0, self._clock.monotonic() - heard)

    @property
    def is_behind(self) -> bool:
        """Whether something that has come was not read yet."""
        return self._is_heard

    def late(self) -> Mapping[str, float]:
        """For how many seconds an object of each namespace has waited to be read, of all the longest."""
        if self._late is None:
            return {}
        with self._turn:
            return self._late.ages()

    @property
    def trouble(self) -> str:
        """The message of the current error, or ""."""
        with self._lock:
            return self._trouble or self._listener_error or next(iter(self._unreadable.values()), "")

    def items(self) -> Mapping[Key, Json]:
        """A snapshot of the cache by (namespace, name); later changes do not affect it.

        The objects are shared: copy one before changing it.
        """
        with self._lock:
            if self._view is None:
                self._view = MappingProxyType({key: entry.object for key, entry in self._entries.items()})
            return self._view

    def get(self, namespace: str, name: str) -> Json | None:
        """One cached object, or None."""
        with self._lock:
            entry = self._entries.get((namespace, name))
            return entry.object if entry is not None else None

    def apply_write(self, obj: Json, *, again: bool = False) -> None:
        """Store the server's response to a write, so that the writer reads its own write.

        `again`: also if the cache has this version, to trim it once more.

        A response that is not newer than the cached object is ignored, and so is one for an object that is not cached:
        it may have been deleted since, and no event would remove it. Later events that are older than the response are
        ignored.

        Call it without holding a lock that `on_change` takes.
        """
        key, uid, version = _identity(obj)
        with self._turn:
            known = self._entries.get(key)
            if known is None or known.uid != uid or _is_old(version, known.version, again=again):
                return
            if self._written is not None:
                self._written.add(key)
            self._take({**obj, "metadata": {**obj["metadata"]}}, again=again, may_wait=False)

    def put_off(self, key: Key) -> None:
        """Read this object once more, when its namespace may: `trim` would return something else now."""
        if self._late is not None:
            with self._turn:
                self._late.add(key)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause = self._attempt()
            if pause > 0 and not self._stopping.is_set():
                self._clock.wait(self._stopping, pause)

    def _attempt(self) -> float:
        """List if needed, then watch until the stream ends. Returns the seconds to wait before the next attempt."""
        began = math.inf
        at_least = 0.0
        # A failed list is retried with pauses, no matter who asked for a new connection: only a stream can be hung up.
        self._reopening = False
        try:
            if self._version is None:
                self._list()
            if self._stopping.is_set():
                return 0.0
            began = self._clock.monotonic()
            self._got_event = False
            self._watch()
            trouble = f"the server ends each watch of {self._kind.plural} early"
            if self._clock.monotonic() - began >= _HEALTHY_SECONDS:
                self._failures = 0
                self._list_after_silence()
                return 0.0
        except GoneError as error:
            self._version = None
            self._synced.clear()
            trouble = f"it is not known what has changed in {self._kind.plural} meanwhile: {error}"
        except Exception as error:
            trouble = str(error) or type(error).__name__
            at_least = getattr(error, "retry_after_seconds", None) or 0.0
            if not (self._stopping.is_set() or self._is_hung_up(began)):
                self._on_trouble(error)
        if self._stopping.is_set() or self._is_hung_up(began):
            return 0.0
        if self._clock.monotonic() - began >= _HEALTHY_SECONDS:
            self._failures = 0
            self._list_after_silence()
        self._failures += 1
        with self._lock:
            self._trouble = trouble
        pause = self._clock.jitter(_BACKOFF_SECONDS[0], backoff(_BACKOFF_SECONDS, self._failures))
        return max(pause, min(at_least, _LONGEST_RETRY_AFTER_SECONDS))

    def _is_hung_up(self, began: float) -> bool:
        """Whether `reopen` ended the watch that was begun at this time (infinite: none was)."""
        return self._reopening and began < math.inf

    def _list_after_silence(self) -> None:
        """After a long stream: list again if no event came, not even a bookmark.

        Either this kind has not changed since the server was started, and the list is cheap. Or the server's
        resourceVersion is behind ours, as after a restored etcd backup: it accepts a version from the future without an
        error, and omits all events until it reaches it (observed with Kubernetes 1.34).
        """
        if not self._got_event:
            self._version = None

    def _list(self) -> None:
        """List all objects and report the differences, including deletions that the watch missed."""
        began = self._clock.monotonic()
        listed = _Listed()
        with self._turn:
            self._written = set()
        try:
            self._read_list(listed)
            if self._stopping.is_set():
                return
            if not listed.version:
                raise UnavailableError(f"the list of {self._kind.plural} has no resourceVersion to watch from")
        except Exception:
            with self._turn:
                for key in listed.fresh.keys() - self._entries.keys():
                    self._on_gone(key)  # it was read, and is not kept
            raise
        with self._turn:
            with self._lock:
                self._unreadable = listed.failed
            fresh, present, unread = listed.fresh, listed.present, listed.unread
            for key, known in list(self._entries.items()):
                if key not in fresh and not ((key in listed.failed or key in unread) and present[key] == known.uid):
                    self._put(key, None)
            for key, entry in fresh.items():
                late = self._entries.get(key) if key in self._written else None
                if late is None or late.uid != entry.uid or _newer(entry.version, late.version):
                    self._put(key, entry)  # a lower resourceVersion, too: etcd may have been restored from a backup
            self._written = None
            self._put_off(unread)
            self._version = listed.version
            self._heard = began
            self._synced.set()

    def _read_list(self, listed: _Listed) -> None:
        """Read all pages of a list, until the reflector is stopped."""
        spent: dict[str, float] = {}
        pages = self._cluster.list_pages(
            self._kind, size=self._pace.page, metadata_only=self._metadata_only, **self._selection
        )
        for page, version in pages:
            listed.version = version
            for obj in page:
                key, uid, _ = _identity(obj)
                listed.present[key] = uid
                is_late = self._late is not None and self._may_wait is None
                if is_late and spent.get(key[0], 0.0) >= _LIST_SECONDS:
                    listed.unread.add(key)
                    continue
                took = self._shares.timer() if self._shares is not None else lambda: 0.0
                try:
                    entry = self._entry(obj)
                except Exception as error:
                    listed.failed[key] = self._cannot_read(key, error)
                    entry = None
                spent[key[0]] = spent.get(key[0], 0.0) + took()
                if entry is not None:
                    listed.fresh[key] = entry
            page.clear()
            if self._stopping.is_set():
                return

    def _watch(self) -> None:
        assert self._version is not None
        stream = self._cluster.stream(
            self._kind,
            since=self._version,
            seconds=self._clock.jitter(*self._pace.watch_seconds),
            silence_seconds=self._pace.silence_seconds,
            opened=self._opened,
            idle=self._idle,
            metadata_only=self._metadata_only,
            **self._selection,
        )
        try:
            for change in stream:
                self._got_event = self._is_heard = True
                self._event(change)
                self._version = _identity(change.object)[2] or self._version
                if self._stopping.is_set():
                    return
        finally:
            self._hang_up = lambda: None
            stream.close()

    def _opened(self, hang_up: Callable[[], None]) -> None:
        # The server has accepted the resourceVersion. It sends no bookmarks for a kind that has not changed since the
        # server was started, so this is the only sign of life.
        self._is_heard = True
        self._hang_up = hang_up
        if self._stopping.is_set():  # stop() may have been called before there was a stream to close
            hang_up()
        with self._lock:
            self._trouble = ""
        self._on_trouble(None)

    def _idle(self) -> None:
        """All that has come was read. Without a sign of life before that, nothing is known of what has happened."""
        if self._is_heard:
            self._is_heard, self._heard = False, self._clock.monotonic()

    def _event(self, change: Change) -> None:
        if change.kind == "DELETED":
            key, uid, _ = _identity(change.object)
            with self._turn:
                known = self._entries.get(key)
                if known is None or known.uid == uid:  # at any version: the object of this UID was deleted
                    self._read_or_gone(key)
                    with self._lock:
                        self._unreadable.pop(key, None)
                    self._put(key, None)
        elif change.kind in ("ADDED", "MODIFIED"):
            with self._turn:
                self._take(change.object)

    # --- the cache ----------------------------------------------------------------------------------------------------

    def _take(self, obj: Json, *, again: bool = False, may_wait: bool = True) -> None:
        """Store an object that the server sent, unless a newer version of it is cached (or the same one: `again`).
        If it `may_wait`, and its namespace has used its share, it is read later."""
        key, uid, version = _identity(obj)
        known = self._entries.get(key)
        if known is not None and known.uid == uid and _is_old(version, known.version, again=again):
            return
        may_wait = may_wait and (
            self._may_wait is None or (known is not None and known.uid == uid and self._may_wait(known.object, obj))
        )
        if may_wait and self._late is not None and self._shares is not None and not self._shares.may(key[0]):
            self._late.add(key)
            if known is not None and known.uid != uid:
                self._put(key, None)
            return
        self._store(key, uid, self._read(obj))

    def _read(self, obj: Json) -> _Entry | Exception | None:
        """The cache entry of an object, None for nothing, or why it cannot be read. Its namespace pays for it."""
        with self._shares.paid_by(_identity(obj)[0][0]) if self._shares is not None else contextlib.nullcontext():
            try:
                return self._entry(obj)
            except Exception as error:
                return error

    def _store(self, key: Key, uid: str, found: _Entry | Exception | None) -> None:
        """Put what was read of the object with this uid into the cache."""
        self._read_or_gone(key)
        if isinstance(found, Exception):
            with self._lock:
                self._unreadable[key] = self._cannot_read(key, found)
            known = self._entries.get(key)
            if known is not None and known.uid != uid:
                self._put(key, None)
            return
        with self._lock:
            self._unreadable.pop(key, None)
        self._put(key, found)

    def _entry(self, obj: Json) -> _Entry | None:
        """The cache entry of an object; None for nothing. Raises the errors of `trim`."""
        _, uid, version = _identity(obj)
        (obj.get("metadata") or {}).pop("managedFields", None)
        kept = self._trim(obj)
        return None if kept is None else _Entry(uid, version, kept)

    # --- what is read later -------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        while not self._stopping.is_set():
            if not self.read_late():
                self._clock.wait(self._stopping, _LATE_SECONDS)

    def read_late(self) -> bool:
        """Read what was put off, at most one object of each namespace. Returns whether one was read."""
        if self._late is None:
            return False
        with self._turn:
            due = self._late.due()
        read = [self._read_again(key) for key in due]
        return any(read)

    def _read_again(self, key: Key) -> bool:
        assert self._shares is not None
        assert self._late is not None
        with self._turn:
            since = self._late.discard(key)  # a change that comes from now on puts it off again
            self._reading_late = key
        try:
            with self._shares.paid_by(key[0]):
                obj = self._cluster.find(self._kind, key[1], namespace=key[0])
        except Exception:  # of the client or the network: it is tried again, and the thread goes on
            with self._turn:
                if self._reading_late == key:
                    self._late.add(key, since)
            return False
        if obj is None:
            return False  # the watch says that it is gone
        found = self._read(obj)
        _, uid, version = _identity(obj)
        with self._turn:
            # Not one that the watch has seen end or change meanwhile.
            known = self._entries.get(key)
            if self._reading_late == key and not (
                known is not None and known.uid == uid and _is_old(version, known.version, again=True)
            ):
                if self._written is not None:
                    self._written.add(key)
                self._store(key, uid, found)
            elif known is None:
                self._on_gone(key)
        return True

    def _put_off(self, unread: Set[Key]) -> None:
        """After a list: these objects are read later, and no others that were put off before."""
        if self._late is None:
            return
        for key in [key for key in self._late if key not in unread]:
            self._late.discard(key)
        for key in unread:
            self._late.add(key)

    def _read_or_gone(self, key: Key) -> None:
        """What waits to be read of this object, or is being read in the other thread, is out of date."""
        if self._late is not None:
            self._late.discard(key)
            if self._reading_late == key:
                self._reading_late = None

    def _cannot_read(self, key: Key, error: Exception) -> str:
        return f"{self._kind.about('/'.join(key))} cannot be read: {type(error).__name__}: {error}"

    def is_replaced(self, key: Key) -> bool:
        """For `on_change`: whether another object of this name is reported next."""
        return self._replaced == key

    def _put(self, key: Key, entry: _Entry | None) -> None:
        """Change the cache and report it. An object that replaces another is a deletion and an addition."""
        known = self._entries.get(key)
        if known is not None and entry is not None and known.uid != entry.uid:
            self._replaced = key
            try:
                self._put(key, None)
            finally:
                self._replaced = None
            known = None
        if known is None and entry is None:
            return
        with self._lock:
            if entry is None:
                del self._entries[key]
                self._view = None
            elif known is not None and known.object == entry.object:
                self._entries[key] = _Entry(entry.uid, entry.version, known.object)
                return  # the cached part is unchanged
            else:
                self._entries[key] = entry
                self._view = None
        old = known.object if known is not None else None
        new = entry.object if entry is not None else None
        what = "ADDED" if old is None else "DELETED" if new is None else "MODIFIED"
        try:
            self._on_change(what, key, old, new)
            self._listener_error = ""
        except Exception as error:
            self._listener_error = f"on_change failed for {self._kind.about('/'.join(key))}: {error!r}"


def _identity(obj: Json) -> tuple[Key, str, str]:
    """The key, UID and resourceVersion of an object from the server."""
    metadata = obj.get("metadata") or {}
    return (
        (str(metadata.get("namespace") or ""), str(metadata.get("name") or "")),
        str(metadata.get("uid") or ""),
        str(metadata.get("resourceVersion") or ""),
    )


def _is_old(version: str, known: str, *, again: bool) -> bool:
    """Whether an object of this version changes nothing where that version is cached. `again`: the same one does."""
    return not _newer(version, known) and not (again and version == known)


def _newer(version: str, known: str) -> bool:
    """Whether a resourceVersion of an object is newer than another of the same object.

    Kubernetes defines their order as numbers since 1.35, and has always used it. Other values count as newer.
    """
    with contextlib.suppress(ValueError):
        return int(version) > int(known)
    return version != known


def make_room(kept: KeptBytes, objects: Reflector, key: Key, new: Json | None) -> None:
    """After a change of an object: read one again that its namespace had no room for, if there is some now."""
    if new is None and not objects.is_replaced(key):  # what comes in its place was counted when it was read
        kept.forget(key)
    waits = kept.next_left_out(key[0])
    if waits:
        objects.put_off((key[0], waits))


def drop(index: dict[Any, dict[Any, Any]], home: Any, name: Any) -> None:
    """Remove an entry of an index that is kept beside a cache, and its home when that is empty."""
    inside = index.get(home, {})
    inside.pop(name, None)
    if not inside:
        index.pop(home, None)
