"""Copies of states that the host has decided on and the device has yet to do.

The engine takes them once a step, before its forward pass and on the same stream, and reports them done. What they read
is locked in the tree, what they write is in nobody else's hands, and a state that they put into the tree can be matched
only afterwards. So one batch never depends on its own results.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from stemcache._core import Lock
from stemcache.cache.request import Int64Array, Request
from stemcache.cache.slots import StateSlots

if TYPE_CHECKING:
    from stemcache.pools.hybrid import HybridPools


class Kind(Enum):
    """What a copy does, and between which pools."""

    CLEAR = "clear"  # zeroes a running slot
    COPY = "copy"  # between slots of the state pool
    STORE = "store"  # from the state pool into a checkpoint
    LOAD = "load"  # from a checkpoint into the state pool


@dataclass(slots=True, eq=False)
class Job:
    """One copy.

    Attributes:
        kind: what it does.
        target: the slot it writes.
        depth: tokens that the state there will have consumed.
        source: the slot it reads; None for a clear.
        pins: protect, in the tree, what it reads, and the path of what it writes.
        node: whose state it writes, if that is the tree's.
        request: whose running state it writes, if it is a request's.
    """

    kind: Kind
    target: int
    depth: int
    source: int | None = None
    pins: list[Lock] = field(default_factory=list)
    node: int | None = None
    request: Request | None = None


@dataclass(frozen=True, slots=True)
class PendingCopies:
    """A batch of copies: slots on the host, int64. They are independent of each other.

    Attributes:
        clear: [n], slots of the state pool to zero.
        copy: [2, n], sources and destinations in the state pool.
        store: [2, n], sources in the state pool, destinations in the checkpoint pool.
        load: [2, n], sources in the checkpoint pool, destinations in the state pool.
    """

    clear: Int64Array
    copy: Int64Array
    store: Int64Array
    load: Int64Array
    jobs: tuple[Job, ...] = field(repr=False)

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.jobs)

    def run(self, pools: "HybridPools") -> None:
        """Launches them all on the current stream, a batched call of each kind; does not wait for the device."""
        if self.clear.size:
            pools.state.clear_slots(self.clear)
        if self.copy.size:
            pools.state.copy_from(self.copy[0], self.copy[1])
        if pools.checkpoints is not None and self.load.size:
            pools.checkpoints.load_into(pools.state, self.load[0], self.load[1])
        if pools.checkpoints is not None and self.store.size:
            pools.checkpoints.store_from(pools.state, self.store[0], self.store[1])


class CopyQueue:
    """The copies that wait, and those that the engine has taken.

    Args:
        running: slots of the state pool.
        cached: slots of the pool that cached states lie in; the same object without checkpoints.
    """

    def __init__(self, running: StateSlots, cached: StateSlots) -> None:
        self._running = running
        self._cached = cached
        self._waiting: dict[Job, None] = {}
        self._taken: set[Job] = set()
        self._waited_for: Counter[int] = Counter()
        self._of: dict[Request, set[Job]] = {}

    def add(self, job: Job) -> None:
        """Queues a copy and holds its slots."""
        for slots, slot in self._ends(job):
            slots.hold(slot)
        self._waited_for.update(self._running_slots(job))
        self._waiting[job] = None
        if job.request is not None:
            self._of.setdefault(job.request, set()).add(job)

    def waits_for(self, slot: int) -> bool:
        """Whether a copy that reads or writes this running slot has not been taken: no pass may write there before."""
        return self._waited_for[slot] > 0

    def holders(self, slot: int) -> list[Job]:
        """The copies, taken or not, that read or write this running slot."""
        return [job for job in (*self._waiting, *self._taken) if slot in self._running_slots(job)]

    def writes_into(self, node: int) -> bool:
        """Whether a copy, taken or not, will put a state at this node's end."""
        return any(job.node == node for job in (*self._waiting, *self._taken))

    def take(self) -> PendingCopies:
        """Everything that waits, as one batch. What is launched later finds the states written."""
        jobs = tuple(self._waiting)
        self._waiting.clear()
        self._waited_for.clear()
        self._taken.update(jobs)
        for job in jobs:
            slots, slot = self._ends(job)[0]
            slots.mark(slot, job.depth)
            if job.request is not None:
                job.request.mamba_needs_clear = False
        clear = np.array([job.target for job in jobs if job.kind is Kind.CLEAR], dtype=np.int64)
        copy, store, load = (_pairs(jobs, kind) for kind in (Kind.COPY, Kind.STORE, Kind.LOAD))
        return PendingCopies(clear, copy, store, load, jobs)

    def outstanding(self, copies: PendingCopies) -> list[Job]:
        """The jobs of a batch that were not reported done yet."""
        return [job for job in copies.jobs if job in self._taken]

    def finish(self, jobs: Iterable[Job]) -> None:
        """These are done: frees what was only waiting for them."""
        for job in jobs:
            self._taken.remove(job)
            self._release(job)
            if job.request is not None:
                self._of[job.request].remove(job)
                if job.source is not None:
                    job.request.mamba_cow_src_index = None

    def cancel(self, request: Request) -> list[Job]:
        """Drops what waits to be written into a request's slots; what was taken already goes on, for nobody."""
        dropped: list[Job] = []
        for job in self._of.pop(request, ()):
            job.request = None
            if job in self._waiting:
                del self._waiting[job]
                self._waited_for.subtract(self._running_slots(job))
                self._release(job)
                dropped.append(job)
        return dropped

    def forget_nodes(self) -> None:
        """The tree was reset: no copy writes into it any more."""
        for job in (*self._waiting, *self._taken):
            job.node = None

    def _release(self, job: Job) -> None:
        for slots, slot in self._ends(job):
            slots.let_go(slot)

    def _ends(self, job: Job) -> list[tuple[StateSlots, int]]:
        """Target and source, each with its pool."""
        target = self._cached if job.kind is Kind.STORE else self._running
        ends = [(target, job.target)]
        if job.source is not None:
            ends.append((self._cached if job.kind is Kind.LOAD else self._running, job.source))
        return ends

    def _running_slots(self, job: Job) -> list[int]:
        return [slot for slots, slot in self._ends(job) if slots is self._running]


def _pairs(jobs: Iterable[Job], kind: Kind) -> Int64Array:
    pairs = [(job.source, job.target) for job in jobs if job.kind is kind]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy()
