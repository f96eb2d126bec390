"""Giving the tree what a request has computed. Optional work: what cannot be done is counted, and changes nothing."""

from dataclasses import dataclass

from stemcache._core import Advance, Lock
from stemcache.cache.copies import CopyQueue, Job, Kind
from stemcache.cache.counters import Skips
from stemcache.cache.matching import release_state
from stemcache.cache.modes import Mode, Source
from stemcache.cache.request import Request
from stemcache.cache.resources import Resources
from stemcache.cache.running import RunningRequests
from stemcache.cache.slots import UNWRITTEN, StateSlots
from stemcache.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a state goes.

    Attributes:
        slot: what the tree gets.
        moved: it is the request's own slot, given away; else a copy is queued.
        fresh: what the request gets in exchange, if it runs on.
    """

    slot: int
    moved: bool
    fresh: int | None = None


def check_written(slots: StateSlots, slot: int, length: int) -> None:
    """Refuses a state that nobody wrote, or that has consumed another number of tokens.

    Raises:
        InvalidArgumentError: it is one of these.
    """
    depth = slots.depth(slot)
    if depth == UNWRITTEN:
        raise InvalidArgumentError(
            f"state slot {slot} was never written: report a pass with commit() or tracked() before it is cached"
        )
    if depth != length:
        raise InvalidArgumentError(
            f"state slot {slot} was written for {depth} tokens, not {length}: a state cannot be cut"
        )


class Cacher:
    """Caches requests.

    Args:
        resources: the tree and the pools.
        copies: where copies into the tree are queued.
        requests: who runs.
        mode: which state is cached.
        skips: counts what is not.
    """

    def __init__(
        self, resources: Resources, copies: CopyQueue, requests: RunningRequests, mode: Mode, skips: Skips
    ) -> None:
        self._resources = resources
        self._copies = copies
        self._requests = requests
        self._mode = mode
        self._skips = skips

    def cache(self, req: Request, *, finished: bool) -> bool:
        """Inserts what the request has and its state, all or nothing; whether that was done.

        Raises:
            InvalidArgumentError: the state was never written. Nothing changed.
        """
        source = self._source(req)
        if source is None:
            return False
        self._renew_lock(req)
        problem = self._problem(req, source.length)
        placement = None if problem else self._place(req, source, finished=finished)
        if placement is None:
            self._skips.add(problem or "no_slot")
            return False
        try:
            done = self._advance(req, source.length, placement)
        except BaseException:
            self._free(placement)
            raise
        if done.insert.state_exists:
            self._free(placement)
        elif placement.moved:
            self._give_away(req, placement, done.lock)
        else:
            self._queue_copy(source, placement.slot, done.lock)
        release_state(self._resources, done.lock)
        return True

    def settle(self, copies: list[Job]) -> None:
        """States were written into the tree: everybody's from now on, or, if they are not finite, taken out again."""
        written = [job for job in copies if job.node is not None]
        for job, finite in zip(written, self._finite(written), strict=True):
            if job.node is None:
                continue
            if finite:
                self._resources.index.publish_state(job.node)
            else:
                self._skips.add("not_finite")
                self._resources.take_back(self._resources.index.discard_state(job.node), "not_finite")

    def _source(self, req: Request) -> Source | None:
        """The state to cache, which somebody wrote; None if there is nothing yet."""
        lag = self._requests.lag(req)
        source = self._mode.source(req, self._resources.running, lag)
        if source is None or source.length == 0:
            return None
        lag = lag if source.slot == req.mamba_pool_idx else 0
        if source.length + lag == UNWRITTEN and req.kv_committed_len == req.cache_protected_len:
            return None
        check_written(self._resources.running, source.slot, source.length + lag)
        return source

    def _renew_lock(self, req: Request) -> None:
        """After a reset a request that has nothing of the tree's begins at the root again."""
        if req.lock is not None and not req.lock.held and req.cache_protected_len == 0:
            req.lock = self._resources.index.match((), namespace=req.extra_key, lock=True).lock

    def _problem(self, req: Request, length: int) -> str | None:
        """Why a state after `length` tokens is not worth caching or cannot be."""
        if req.lock is None or not req.lock.held:
            return "stale_lock"
        if length > req.kv_committed_len:
            return "rejected"
        if length < req.cache_protected_len:
            return "behind"
        if length % self._resources.page_size:
            return "unaligned"
        return None

    def _place(self, req: Request, source: Source, *, finished: bool) -> Placement | None:
        """A finished request gives its slot, one that tracks states exchanges it, any other has it copied."""
        moved = not self._resources.apart and (finished or self._mode.track_slots > 0)
        if moved and finished:
            return Placement(source.slot, moved)
        cached = self._resources.cached
        if not cached.allocator.available and self._exists(req, source.length):
            # The insert takes no state, so none has to make room for it, and the slot is one that nobody can own.
            return Placement(cached.allocator.size + 1, moved=True)
        slots = cached.alloc(1)
        if slots is None:
            return None
        return Placement(source.slot, moved, slots[0]) if moved else Placement(slots[0], moved)

    def _exists(self, req: Request, length: int) -> bool:
        """Whether the tree has a state there already, or will have the request's own."""
        start, node = req.cache_protected_len, req.last_node
        if start == length and node is not None and self._copies.writes_into(node):
            return True
        where = {"namespace": req.extra_key} if node is None else {"after": node}
        found = self._resources.index.peek(req.tokens(start, length), **where)
        return found.length == length and found.node is not None

    def _free(self, placement: Placement) -> None:
        """The tree did not take the state: what was allocated for it goes back."""
        slot = placement.fresh if placement.moved else placement.slot
        if slot is not None:
            self._resources.cached.free([slot])

    def _advance(self, req: Request, length: int, placement: Placement) -> Advance:
        """The tree's part: insert, and move the lock, after the request's node."""
        row, start = self._requests.row(req), req.cache_protected_len
        rows, lock = self._resources.pools.rows, req.lock
        if lock is None:
            raise InvalidArgumentError("the request was not matched with lock=True")
        tokens, own = req.tokens(start, length), rows.read(row, start, length)
        done = self._resources.index.advance(
            lock, tokens, own, placement.slot, state_length=length, state_ready=placement.moved
        )
        if done.insert.freed_slots.size:
            self._resources.pools.kv_allocator.free(done.insert.freed_slots)
            rows.write(row, start, done.slots)
        req.lock, req.last_node, req.cache_protected_len = done.lock, done.lock.node, length
        req.mamba_last_track_seqlen = None
        return done

    def _give_away(self, req: Request, placement: Placement, lock: Lock) -> None:
        """The state's slot is the tree's now. While copies hold it, evicting it would give it to nobody."""
        self._mode.give_away(req, placement.fresh)
        self._requests.tell_device(req)
        if lock.node is not None and self._resources.running.is_held(placement.slot):
            for job in self._copies.holders(placement.slot):
                job.pins.append(self._resources.index.lock(lock.node))

    def _queue_copy(self, source: Source, target: int, lock: Lock) -> None:
        node = lock.node
        if node is None:
            raise InvalidArgumentError("a state was stored at no node")
        kind = Kind.STORE if self._resources.apart else Kind.COPY
        pin = self._resources.index.lock(node)
        self._copies.add(Job(kind, target, source.length, source=source.slot, pins=[pin], node=node))

    def _finite(self, jobs: list[Job]) -> list[bool]:
        """Reads the flags of checkpoints; running states carry none."""
        pool = self._resources.pools.checkpoints
        if pool is None or not jobs:
            return [True] * len(jobs)
        finite: list[bool] = pool.take_finite([job.target for job in jobs]).tolist()
        return finite
