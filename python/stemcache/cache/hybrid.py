"""`HybridRadixCache`: what a scheduler calls, from a request's match to its release.

One step of an engine, all on the host unless it says otherwise:

    match_prefix(req=..., cow_mamba=True, lock=True)   the prefix; its state will be copied into the request's own slot
    admit(req), extend(req, n)                         a row and state slots; KV slots for n tokens
    copies = take_pending_copies(); copies.run(pools)  on the forward stream
    ... forward pass, on the same stream ...
    commit(req, n), tracked(req, n)                    what that pass writes
    copies_done(copies)                                once an event after the copies has passed
    cache_unfinished_req(req) / cache_finished_req(req)
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar



from stemcache._core import Advance, Evicted, Insert, Lock, Match, PagedKvAllocator, RadixIndex
from stemcache.cache import audit, modes
from stemcache.cache.copies import CopyQueue, Job, Kind, PendingCopies
from stemcache.cache.counters import Skips
from stemcache.cache.request import Int64Array, Request, no_slots
from stemcache.cache.slots import UNWRITTEN, StateSlots
from stemcache.errors import InvalidArgumentError, StaleNodeError
from stemcache.pools.hybrid import HybridPools

P = ParamSpec("P")
R = TypeVar("R")


def _exclusive(
    method: Callable[Concatenate["HybridRadixCache", P], R],
) -> Callable[Concatenate["HybridRadixCache", P], R]:
    """One thread at a time: a call moves slots between several owners."""

    @wraps(method)
    def guarded(self: "HybridRadixCache", /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._guard:
            return method(self, *args, **kwargs)

    return guarded  # type: ignore[return-value] # mypy does not see through `wraps` here


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What `match_prefix` found.

    Attributes:
        match: the index's answer: `length`, `slots`, `node`, `kv_length`, `branching_length`, `reason`.
        cow: "none": there was no state to copy, or it was not asked for. "queued": the copy waits to be taken.
            "no slot": a state was found, but no slot for the request; it holds nothing, and may try again.
    """

    match: Match
    cow: Literal["none", "queued", "no slot"] = "none"

    @property
    def length(self) -> int:
        """Usable tokens; 0 without a slot to copy the state into."""
        return 0 if self.cow == "no slot" else self.match.length


class HybridRadixCache:
    """The prefix cache of a hybrid model: which request holds what, and what the tree keeps.

    Args:
        pools: the bytes and the allocators.
        mode: "no_buffer": the running state itself is cached. "extra_buffer": the engine writes states at chunk boundaries
            into one or two track slots of the request. "extra_buffer_lazy": the second one only when it is needed.
        chunk_size: the grid of branching points. None: the smallest multiple of the page that is at least 64.
        policy: which unlocked entry is evicted first.
        events: as for `RadixIndex`.
        disable: cache nothing; requests live all the same.

    Raises:
        InvalidArgumentError: an unknown mode or policy, a chunk that is not whole pages.
    """

    def __init__(
        self,
        pools: HybridPools,
        *,
        mode: str = "no_buffer",
        chunk_size: int | None = None,
        policy: str = "lru",
        events: bool | Literal["states"] = False,
        disable: bool = False,
    ) -> None:
        self.pools = pools
        self.mode = modes.by_name(mode)
        self.index = RadixIndex(pools.page_size, chunk_size=chunk_size, policy=policy, events=events)
        self.disable = disable
        self.page_size = pools.page_size
        self.skips = Skips()
        self._guard = threading.RLock()
        self._running = StateSlots(pools.state_allocator, self._evict_for_running)
        self._cached = self._running
        if pools.checkpoint_allocator is not None:
            self._cached = StateSlots(pools.checkpoint_allocator, self._evict_states)
        self._copies = CopyQueue(self._running, self._cached)
        self._live: dict[int, Request] = {}

    # ---- Before it runs ----

    @_exclusive
    def match_prefix(
        self,
        tokens: Any = None,
        *,
        req: Request | None = None,
        namespace: str | None = None,
        limit: int | None = None,
        lock: bool = False,
        cow_mamba: bool = False,
    ) -> PrefixMatch:
        """Finds the longest prefix that a model can go on from.

        With a request its tokens, its namespace and, unless given, a limit of all but one token are taken from it, what an
        earlier match gave it is given back, and the answer is noted on it.

        Args:
            tokens: [n] ids; left out with `req`.
            req: the request that is to go on from the hit.
            namespace: of `tokens`.
            limit: match at most so many tokens.
            lock: protect the hit in the same call. A request needs that to run.
            cow_mamba: queue a copy of the hit's state into the request's own slot, allocating that if needed.

        Raises:
            InvalidArgumentError: neither or both of tokens and request; a copy without a request or a lock.
        """
        if (tokens is None) == (req is None) or (cow_mamba and (req is None or not lock)):
            raise InvalidArgumentError("match_prefix takes tokens or req; cow_mamba needs req and lock=True")
        if req is None:
            return PrefixMatch(self._match(tokens, namespace, limit, lock))
        self._forget_match(req)
        key = req.tokens(0, len(req))
        found = self._match(key, req.extra_key, len(key) - 1 if limit is None else limit, lock)
        cow: Literal["none", "queued", "no slot"] = "none"
        if cow_mamba and found.node is not None:
            cow = "queued" if self._queue_cow(req, found) else "no slot"
        if cow == "no slot":
            self._unlock(found.lock)
        else:
            self._note_match(req, found)
        return PrefixMatch(found, cow)

    @_exclusive
    def admit(self, req: Request) -> bool:
        """Gives a matched request its row and the state slots that it lacks; False, and nothing, if they cannot be had.

        A running slot that no cached state is copied into is queued to be cleared.

        Raises:
            InvalidArgumentError: the request was not matched with `lock=True`.
        """
        if req.lock is None:
            raise InvalidArgumentError("a request is admitted after match_prefix(req=req, lock=True)")
        if req.req_pool_idx is not None:
            return True
        missing_running = req.mamba_pool_idx is None
        tracks = self._first_tracks()
        slots = self._running.alloc(missing_running + tracks)
        row = self.pools.rows.alloc() if slots is not None else None
        if slots is None or row is None:
            self._running.free(slots or [])
            return False
        self._hold(req)
        req.req_pool_idx = row
        if missing_running:
            req.mamba_pool_idx = slots.pop()
            req.mamba_needs_clear = True
            self._copies.add(Job(Kind.CLEAR, req.mamba_pool_idx, depth=0, request=req))
        req.mamba_ping_pong_track_buffer = [*slots, *[None] * (self.mode.track_slots - tracks)]
        prefix = req.prefix_indices
        self.pools.rows.write(row, 0, prefix)
        req.kv_allocated_len = req.kv_committed_len = len(prefix)
        self._refresh_prefix(req)
        return True

    @_exclusive
    def extend(self, req: Request, total: int) -> bool:
        """KV slots for the request's tokens up to `total`, evicting what is short; False, and nothing, if they cannot be had.

        Raises:
            InvalidArgumentError: the request does not run.
        """
        row = self._row(req)
        have = req.kv_allocated_len
        if total <= have:
            return True
        slots = self._alloc_kv(row, have, total)
        if slots is None:
            return False
        self.pools.rows.write(row, have, slots)
        req.kv_allocated_len = total
        return True

    # ---- What the forward passes write ----

    @_exclusive
    def commit(self, req: Request, length: int, state_length: int | None = None) -> None:
        """The passes launched so far write the KV of `length` tokens, and the running state after `state_length`.

        Args:
            req: the request.
            length: tokens, accepted ones only.
            state_length: tokens that the running state has consumed. None: `length`; more, if drafts were rejected.

        Raises:
            InvalidArgumentError: more tokens than have KV slots; the request does not run.
        """
        self._row(req)
        if not 0 <= length <= req.kv_allocated_len:
            raise InvalidArgumentError(f"length is {length}, but {req.kv_allocated_len} tokens have KV slots")
        req.kv_committed_len = length
        if req.mamba_pool_idx is not None:
            self._running.mark(req.mamba_pool_idx, length if state_length is None else state_length)
        self._refresh_prefix(req)

    @_exclusive
    def track_slot(self, req: Request) -> int | None:
        """The track slot that the next pass may write a state into; None if there is none: then it tracks nothing.

        Raises:
            InvalidArgumentError: a mode without track slots.
        """
        index = self._extra_buffer().writes(req, self._running)
        req.mamba_writing_track_idx = index
        return None if index is None else req.mamba_ping_pong_track_buffer[index]

    @_exclusive
    def tracked(self, req: Request, length: int) -> None:
        """The pass launched last writes the state after `length` tokens into the slot that `track_slot` named.

        Raises:
            InvalidArgumentError: no slot was named since the last report; a mode without track slots.
        """
        mode, index = self._extra_buffer(), req.mamba_writing_track_idx
        slot = None if index is None else req.mamba_ping_pong_track_buffer[index]
        if index is None or slot is None:
            raise InvalidArgumentError("tracked() reports on the slot that track_slot() named; it named none")
        self._running.mark(slot, length)
        mode.written(req, index)
        req.mamba_writing_track_idx = None
        req.mamba_last_track_seqlen = length

    @_exclusive
    def take_pending_copies(self) -> PendingCopies:
        """The copies that wait, as one batch for the forward stream."""
        copies = self._copies.take()
        for job in copies.jobs:
            if job.request is not None:
                job.request.mamba_needs_clear = False
        return copies

    @_exclusive
    def copies_done(self, copies: PendingCopies) -> None:
        """A batch was carried out. States that it wrote into the tree can be matched now, if they are finite.

        This reads the flags of quantised states back: the one place where the host looks at the device. Call it once the
        copies' event has passed, and it does not wait.
        """
        finite = self._finite(copies)
        for job in self._copies.finish(copies):
            if job.request is not None and job.kind is not Kind.CLEAR:
                job.request.mamba_cow_src_index = None
            if job.node is not None:
                self._settle(job.node, finite.get(job.target, True))
            self._unlock(job.pin)

    # ---- Caching ----

    @_exclusive
    def cache_unfinished_req(self, req: Request, chunked: bool = False) -> bool:
        """Caches what the request has computed so far, and moves its lock to the end of that.

        Caching is optional: without a state to cache, or a slot for it, the request stays as it is, and that is counted.

        Args:
            req: a request that runs.
            chunked: more of its prompt follows. (The same is done either way; engines say it.)

        Returns:
            Whether it was cached.

        Raises:
            InvalidArgumentError: the request does not run; the state was never written.
        """
        del chunked
        self._row(req)
        done = not self.disable and self._cache(req, finished=False)
        self._refresh_prefix(req)
        return done

    @_exclusive
    def cache_finished_req(self, req: Request, is_insert: bool = True) -> bool:
        """Caches what the request has computed, unless told not to, and releases it. Finishing twice is fine.

        Returns:
            Whether it was cached.

        Raises:
            InvalidArgumentError: the state was never written; the request then still holds what it held.
        """
        running = req.req_pool_idx is not None
        done = running and is_insert and not self.disable and self._cache(req, finished=True)
        self.release(req)
        return done

    @_exclusive
    def release(self, req: Request) -> None:
        """Takes back everything that a request holds, at any moment of its life, and erases it from the request."""
        self._forget_match(req)
        if req.req_pool_idx is not None:
            own = self.pools.rows.read(req.req_pool_idx, req.cache_protected_len, req.kv_allocated_len)
            self.pools.kv_allocator.free(own)
            self.pools.rows.free(req.req_pool_idx)
        self._running.free(req.state_slots())
        self._live.pop(id(req), None)
        req.req_pool_idx = req.mamba_pool_idx = req.mamba_last_track_seqlen = req.mamba_writing_track_idx = None
        req.mamba_ping_pong_track_buffer = []
        req.mamba_next_track_idx = req.kv_allocated_len = req.kv_committed_len = req.cache_protected_len = 0
        req.mamba_needs_clear = False
        req.prefix_indices = no_slots()

    # ---- The tree ----

    @_exclusive
    def insert(
        self, tokens: Any, slots: Any, state_slot: int, *, namespace: str | None = None, prev_prefix_len: int = 0
    ) -> Insert:
        """Gives the tree KV and a written state of the pool that cached states lie in; duplicates among `slots` are freed.

        The state is the tree's unless `state_exists`.

        Raises:
            InvalidArgumentError: the state was never written, or not for this length; as `RadixIndex.insert`.
            SlotOwnershipError: as `RadixIndex.insert`.
        """
        self._check_written(self._cached, state_slot, len(tokens))
        done = self.index.insert(tokens, slots, state_slot, namespace=namespace, owned=prev_prefix_len)
        self.pools.kv_allocator.free(done.freed_slots)
        return done

    @_exclusive
    def mark_written(self, slot: int, depth: int) -> None:
        """For engines that fill cached states themselves: the state in a slot of that pool has consumed `depth` tokens."""
        self._cached.mark(slot, depth)

    @_exclusive
    def evict(self, num_tokens: int = 0, mamba_num: int = 0) -> Evicted:
        """Frees at least so many tokens, then so many states more, least recently used first."""
        return self._give_back(self.index.evict(tokens=num_tokens, states=mamba_num))

    @_exclusive
    def drop_namespace(self, namespace: str | None) -> Evicted:
        """Drops everything unlocked in a namespace."""
        return self._give_back(self.index.drop_namespace(namespace))

    @_exclusive
    def reset(self) -> Evicted:
        """Empties the tree. Requests that run keep what is their own, and can only be released."""
        self._copies.forget_nodes()
        return self._give_back(self.index.reset())

    def inc_lock_ref(self, node: int) -> Lock:
        """Protects a node's path and state; the receipt is what `dec_lock_ref` takes.

        Raises:
            StaleNodeError: the node is gone.
        """
        return self.index.lock(node)

    def dec_lock_ref(self, lock: Lock) -> None:
        """Gives back what a lock took.

        Raises:
            NotLockedError: it was released already.
            StaleNodeError: it is from before a reset.
        """
        self.index.unlock(lock)

    # ---- What there is ----

    def can_admit(self, tokens: int, states: int) -> bool:
        """Whether allocation plus eviction could give so much now; what is locked does not count."""
        kv = self.pools.kv_allocator.available + self.index.evictable_tokens
        running = self.pools.state_allocator.available
        if self._cached is self._running:
            running += self.index.evictable_states
        return -(-tokens // self.page_size) * self.page_size <= kv and states <= running

    @property
    def states_per_request(self) -> int:
        """The most state slots that a request holds at once: running, tracked, and the one that is handed over."""
        copies_out = self._cached is self._running or self.mode.track_slots > 0
        return 1 + self.mode.track_slots + copies_out

    def stats(self) -> dict[str, int]:
        """Counters since the start, and the levels of the pools now."""
        checkpoints = self.pools.checkpoint_allocator
        return {
            **self.index.stats().as_dict(),
            **self.skips.as_dict(),
            "live_requests": len(self._live),
            "kv_available": self.pools.kv_allocator.available,
            "kv_evictable": self.index.evictable_tokens,
            "kv_protected": self.index.protected_tokens,
            "state_available": self.pools.state_allocator.available,
            "state_evictable": self.index.evictable_states,
            "state_protected": self.index.protected_states,
            "checkpoint_available": checkpoints.available if checkpoints is not None else 0,
        }

    def supports_mamba(self) -> bool:
        """Yes."""
        return True

    def total_size(self) -> tuple[int, int]:
        """Tokens and states in the tree."""
        return self.index.total_tokens, self.index.total_states

    def full_evictable_size(self) -> int:
        """Unlocked tokens in the tree."""
        return self.index.evictable_tokens

    def full_protected_size(self) -> int:
        """Locked tokens in the tree."""
        return self.index.protected_tokens

    def mamba_evictable_size(self) -> int:
        """Unlocked states in the tree."""
        return self.index.evictable_states

    def mamba_protected_size(self) -> int:
        """States in the tree that are locked, or still being written."""
        return self.index.protected_states

    def all_values_flatten(self) -> Int64Array:
        """Every KV slot in the tree."""
        return self.index.all_slots()

    def all_mamba_values_flatten(self) -> Int64Array:
        """Every state slot in the tree."""
        return self.index.all_state_slots()

    def available_and_evictable_str(self) -> str:
        """What could be had of both resources, for logs."""
        kv, states = self.pools.kv_allocator.available, self._cached.allocator.available
        return (
            f"KV tokens: {kv} available + {self.index.evictable_tokens} evictable; "
            f"states: {states} available + {self.index.evictable_states} evictable"
        )

    def pretty_print(self) -> str:
        """The tree as text."""
        return self.index.dump()

    def take_events(self) -> list[Any]:
        """The events since the last call."""
        return self.index.take_events()

    @_exclusive
    def sanity_check(self) -> None:
        """Checks the tree, the allocators, and that every slot is in exactly one place.

        Raises:
            InvariantError: with everything that is wrong.
        """
        self.index.check_invariants()
        audit.check(self.index, self.pools, self._live.values(), self._running, self._cached)

    # ---- Inside: a request's match ----

    def _match(self, tokens: Any, namespace: str | None, limit: int | None, lock: bool) -> Match:
        """A match; in a disabled cache one of nothing."""
        limit = 0 if self.disable else limit
        return self.index.match(tokens, namespace=namespace, limit=limit, lock=lock)

    def _queue_cow(self, req: Request, found: Match) -> bool:
        """Queues the copy of a hit's state into the request's slot; False if there is no slot."""
        if found.node is None or found.state_slot is None:
            return False
        if req.mamba_pool_idx is None:
            slots = self._running.alloc(1)
            if slots is None:
                return False
            self._hold(req)
            req.mamba_pool_idx = slots[0]
        kind = Kind.COPY if self._cached is self._running else Kind.LOAD
        pin = self.index.lock(found.node)
        self._copies.add(
            Job(kind, req.mamba_pool_idx, depth=found.length, source=found.state_slot, pin=pin, request=req)
        )
        req.mamba_cow_src_index = found.state_slot
        req.mamba_needs_clear = False
        return True

    def _note_match(self, req: Request, found: Match) -> None:
        req.prefix_indices = found.slots
        req.cache_protected_len = found.length if found.lock is not None else 0
        req.last_node = found.node
        req.mamba_branching_seqlen = found.branching_length
        req.lock = found.lock
        if found.lock is not None:
            self._hold(req)
            if req.mamba_cow_src_index is not None:
                # The copy has a pin of its own; from here the request needs the KV only.
                self.index.unlock_state(found.lock)

    def _forget_match(self, req: Request) -> None:
        """Gives back the lock of a match and cancels the copy it asked for; a slot that it brought stays, unwritten."""
        for job in self._copies.cancel(req):
            self._unlock(job.pin)
        self._unlock(req.lock)
        req.lock = req.last_node = req.mamba_cow_src_index = req.mamba_branching_seqlen = None

    def _hold(self, req: Request) -> None:
        """From here the request has something to release."""
        self._live[id(req)] = req

    def _unlock(self, lock: Lock | None) -> None:
        """Releases a lock, unless a reset did."""
        if lock is not None and lock.held:
            self.index.unlock(lock)

    # ---- Inside: caching ----

    def _cache(self, req: Request, *, finished: bool) -> bool:
        """Inserts what the request has and its state, all or nothing."""
        source = self.mode.source(req, self._running, self._lag(req))
        if source is None:
            return False
        self._check_written(self._running, source.slot, source.length + self._lag_of(req, source.slot))
        problem = self._problem(req, source.length)
        if problem is not None:
            self.skips.add(problem)
            return False
        give = self._give(req, finished)
        placed = self._place(source.slot, give, finished)
        if placed is None:
            self.skips.add("no_slot")
            return False
        slot, fresh = placed
        done = self._advance(req, source.length, slot, ready=slot == source.slot and self._cached is self._running)
        self._settle_state(req, source, slot, fresh, give=give, exists=done.insert.state_exists)
        return True

    def _problem(self, req: Request, length: int) -> str | None:
        """Why a state after `length` tokens is not worth caching or cannot be."""
        if req.lock is None or not req.lock.held:
            return "stale_lock"
        if length > req.kv_committed_len:
            return "rejected"
        if length < req.cache_protected_len:
            return "behind"
        if length % self.page_size:
            return "unaligned"
        return None

    def _give(self, req: Request, finished: bool) -> bool:
        """Whether the slot that the state lies in can be given away."""
        del req
        return finished or not self.mode.gives_running_state

    def _place(self, source: int, give: bool, finished: bool) -> tuple[int, int | None] | None:
        """Slots for the tree and, for a track slot given away by a request that runs on, for the request; or None."""
        fresh = self._running.alloc(1) if give and not finished else []
        if fresh is None:
            return None
        slot: int | None = source
        if self._cached is not self._running or not give:
            slots = self._cached.alloc(1)
            slot = slots[0] if slots is not None else None
        if slot is None:
            self._running.free(fresh)
            return None
        return slot, fresh[0] if fresh else None

    def _advance(self, req: Request, length: int, slot: int, *, ready: bool) -> Advance:
        """The tree's part: insert, and move the lock, after the request's node."""
        row, start = self._row(req), req.cache_protected_len
        own = self.pools.rows.read(row, start, length)
        if req.lock is None:
            raise StaleNodeError("the request holds no lock")
        done = self.index.advance(
            req.lock, req.tokens(start, length), own, slot, state_length=length, state_ready=ready
        )
        if done.insert.freed_slots.size:
            self.pools.kv_allocator.free(done.insert.freed_slots)
            self.pools.rows.write(row, start, done.slots)
        req.lock, req.last_node = done.lock, done.lock.node
        req.cache_protected_len = length
        req.mamba_last_track_seqlen = None
        return done

    def _settle_state(
        self, req: Request, source: modes.Source, slot: int, fresh: int | None, *, give: bool, exists: bool
    ) -> None:
        """After the insert: copies what was not given, frees what the tree did not take, hands over what was exchanged."""
        moved = slot == source.slot and self._cached is self._running
        if exists and not moved:
            self._cached.free([slot])
        elif not moved and req.last_node is not None:
            kind = Kind.COPY if self._cached is self._running else Kind.STORE
            pin = self.index.lock(req.last_node)
            self._copies.add(
                Job(kind, slot, depth=source.length, source=source.slot, pin=pin, node=req.last_node)
            )
        if give:
            self._take_from(req, source.slot, fresh)
            if exists or not moved:
                self._running.free([source.slot])

    def _take_from(self, req: Request, slot: int, fresh: int | None) -> None:
        """The request does not have this slot any more, but perhaps a fresh one in its place."""
        if slot == req.mamba_pool_idx:
            req.mamba_pool_idx = None
        elif fresh is not None:
            self.mode.exchange(req, fresh)
        else:
            buffer = req.mamba_ping_pong_track_buffer
            req.mamba_ping_pong_track_buffer = [other for other in buffer if other != slot]

    def _settle(self, node: int, finite: bool) -> None:
        """A state was written into the tree: everybody's from now on, or taken out again."""
        if finite:
            self.index.publish_state(node)
        else:
            self.skips.add("not_finite")
            self._give_back(self.index.discard_state(node))

    def _finite(self, copies: PendingCopies) -> dict[int, bool]:
        if self.pools.checkpoints is None or not copies.store.size:
            return {}
        targets = copies.store[1]
        return dict(zip(targets.tolist(), self.pools.checkpoints.take_finite(targets).tolist(), strict=True))

    def _check_written(self, slots: StateSlots, slot: int, length: int) -> None:
        depth = slots.depth(slot)
        if depth == UNWRITTEN:
            raise InvalidArgumentError(
                f"state slot {slot} was never written: report a pass with commit() or tracked() before it is cached"
            )
        if depth != length:
            raise InvalidArgumentError(
                f"state slot {slot} was written for {depth} tokens, not {length}: a state cannot be cut"
            )

    def _lag(self, req: Request) -> int:
        """ReplaySSM: by how many tokens the running state lags behind."""
        return int(self.pools.rows.write_pos.get(self._row(req))[0])

    def _lag_of(self, req: Request, slot: int) -> int:
        return self._lag(req) if slot == req.mamba_pool_idx else 0

    # ---- Inside: slots ----

    def _alloc_kv(self, row: int, have: int, total: int) -> Any:
        """KV slots for positions `have` to `total`, evicting what is short."""
        last = int(self.pools.rows.read(row, have - 1, have)[0]) if have else 0
        slots = self._try_kv(have, total, last)
        if slots is None:
            pages = -(-total // self.page_size) - -(-have // self.page_size)
            self.evict(num_tokens=pages * self.page_size - self.pools.kv_allocator.available)
            slots = self._try_kv(have, total, last)
        return slots

    def _try_kv(self, have: int, total: int, last: int) -> Any:
        allocator = self.pools.kv_allocator
        if isinstance(allocator, PagedKvAllocator):
            return allocator.alloc_extend([have], [total], [last])
        return allocator.alloc(total - have)

    def _give_back(self, evicted: Evicted) -> Evicted:
        """The tree's slots to their allocators."""
        self.pools.kv_allocator.free(evicted.kv_slots)
        self._cached.free(evicted.state_slots.tolist())
        return evicted

    def _evict_states(self, n: int) -> None:
        self.evict(mamba_num=n)

    def _evict_for_running(self, n: int) -> None:
        """Cached states are in the way of running ones only if they share a pool."""
        if self._cached is self._running:
            self._evict_states(n)

    def _first_tracks(self) -> int:
        """Track slots that a request gets when it is admitted."""
        return min(self.mode.track_slots, 1 if isinstance(self.mode, modes.LazyExtraBuffer) else 2)

    def _extra_buffer(self) -> modes.ExtraBuffer:
        if isinstance(self.mode, modes.ExtraBuffer):
            return self.mode
        raise InvalidArgumentError(f"mode {self.mode.name} has no track slots")

    def _row(self, req: Request) -> int:
        if req.req_pool_idx is None:
            raise InvalidArgumentError("the request does not run: admit() it first (or it was released)")
        return req.req_pool_idx

    def _refresh_prefix(self, req: Request) -> None:
        req.prefix_indices = self.pools.rows.view(self._row(req), 0, req.kv_committed_len)


__all__ = ["HybridRadixCache", "PrefixMatch", "Request"]
