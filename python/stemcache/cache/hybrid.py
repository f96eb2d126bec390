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
from typing import TYPE_CHECKING, Any, Literal

from stemcache._core import Evicted, Insert, Lock, RadixIndex
from stemcache.cache import modes
from stemcache.cache.caching import Cacher, check_written
from stemcache.cache.copies import CopyQueue, PendingCopies
from stemcache.cache.counters import Skips
from stemcache.cache.guard import exclusive
from stemcache.cache.inspection import Inspection
from stemcache.cache.matching import Matcher, PrefixMatch
from stemcache.cache.request import Request
from stemcache.cache.resources import Resources
from stemcache.cache.running import RunningRequests
from stemcache.errors import InvalidArgumentError
from stemcache.pools.hybrid import HybridPools

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class HybridRadixCache(Inspection):
    """The prefix cache of a hybrid model: which request holds what, and what the tree keeps.

    Args:
        pools: the bytes and the allocators.
        mode: "no_buffer": the running state itself is cached. "extra_buffer": the engine writes states at chunk
            boundaries into one or two track slots of the request. "extra_buffer_lazy": the second one only when needed.
        track_slots: of extra_buffer, 1 or 2. None: 2.
        chunk_size: the grid of branching points. None: the smallest multiple of the page that is at least 64.
        policy: which unlocked entry is evicted first.
        events: as for `RadixIndex`.
        metrics: show `stats()` to Prometheus, in this registry or, if True, in its default one.
        disable: cache nothing; requests live all the same.

    Raises:
        InvalidArgumentError: an unknown mode or policy, a chunk that is not whole pages, a registry with metrics of
            another cache.
        ImportError: metrics without prometheus-client.
    """

    def __init__(
        self,
        pools: HybridPools,
        *,
        mode: str = "no_buffer",
        track_slots: int | None = None,
        chunk_size: int | None = None,
        policy: str = "lru",
        events: bool | Literal["states"] = False,
        metrics: "bool | CollectorRegistry" = False,
        disable: bool = False,
    ) -> None:
        self.pools = pools
        self.mode = modes.by_name(mode, track_slots)
        self.index = RadixIndex(pools.page_size, chunk_size=chunk_size, policy=policy, events=events)
        self.disable = disable
        self.page_size = pools.page_size
        self.skips = Skips()
        self._guard = threading.RLock()
        self._resources = Resources(self.index, pools)
        self._copies = CopyQueue(self._resources.running, self._resources.cached)
        self._requests = RunningRequests(self._resources, self._copies, self.mode, self.skips)
        self._matcher = Matcher(self._resources, self._copies, self._requests.hold)
        self._cacher = Cacher(self._resources, self._copies, self._requests, self.mode, self.skips)
        if metrics is not False:
            from stemcache.cache.metrics import show  # noqa: PLC0415 # prometheus-client is an extra

            show(self, None if metrics is True else metrics)

    # ---- Before it runs ----

    @exclusive
    def match_prefix(
        self,
        tokens: Any = None,
        *,
        req: Request | None = None,
        namespace: str | None = None,
        limit: int | None = None,
        after: int | None = None,
        lock: bool = False,
        cow_mamba: bool = False,
    ) -> PrefixMatch:
        """Finds the longest prefix that a model can go on from.

        With a request its tokens, its namespace and, unless given, a limit of all but one token are taken from it; what
        an earlier match gave it is given back, and the answer is noted on it.

        Args:
            tokens: [n] ids; left out with `req`.
            req: the request that is to go on from the hit; it does not run yet.
            namespace: of `tokens`.
            limit: match at most so many tokens.
            after: a node to go on from, as for `RadixIndex.match`; not with `req`.
            lock: protect the hit in the same call. A request needs that to run.
            cow_mamba: queue a copy of the hit's state into the request's own slot, allocating that if needed. A request
                with a hit needs that to run.

        Raises:
            InvalidArgumentError: neither or both of tokens and request; a copy without a request or a lock; a request
                that runs.
            StaleNodeError: `after` is gone.
        """
        if (tokens is None) == (req is None) or (cow_mamba and (req is None or not lock)):
            raise InvalidArgumentError("match_prefix takes tokens or req; cow_mamba needs req and lock=True")
        if req is None:
            return PrefixMatch(self._matcher.find(tokens, namespace, limit, after, lock))
        if req.req_pool_idx is not None or after is not None:
            raise InvalidArgumentError("a request is matched before it runs: release() it first; and from the root")
        return self._matcher.match(req, limit, lock, cow_mamba)

    @exclusive
    def admit(self, req: Request) -> bool:
        """Gives a matched request its row and the state slots it lacks; False, and nothing, if they cannot be had.

        A running slot that no cached state is copied into is queued to be cleared.

        Raises:
            InvalidArgumentError: the request was not matched with `lock=True`; it has a hit, but no copy of the state.
            StaleNodeError: the cache was reset since it was matched.
        """
        return self._requests.admit(req)

    @exclusive
    def extend(self, req: Request, total: int) -> bool:
        """KV slots for a request's tokens up to `total`, evicting what is short; False, and nothing, if in vain.

        Raises:
            InvalidArgumentError: the request does not run; more tokens than a row has.
            StaleNodeError: the cache was reset, and the request's prefix with it.
        """
        return self._requests.extend(req, total)

    # ---- What the forward passes write ----

    @exclusive
    def commit(self, req: Request, length: int, state_length: int | None = None) -> None:
        """The passes launched so far write the KV of `length` tokens, and the running state after `state_length`.

        Args:
            req: the request.
            length: tokens, accepted ones only; never less than `cache_protected_len`.
            state_length: tokens that the running state has consumed. None: `length`, or as before if that is more (a
                state does not go back). More than `length`, if drafts were rejected; less, if it was restored.

        Raises:
            InvalidArgumentError: more tokens than have KV slots; the request does not run; copies from or to its state
                were not taken before the pass.
        """
        self._requests.commit(req, length, state_length)

    @exclusive
    def track_slot(self, req: Request) -> int | None:
        """The track slot that the next pass may write a state into; None if there is none: then it tracks nothing.

        Raises:
            InvalidArgumentError: a mode without track slots; the request does not run.
        """
        return self._requests.track_slot(req)

    @exclusive
    def tracked(self, req: Request, length: int) -> None:
        """The pass launched last writes the state after `length` tokens into the slot that `track_slot` named.

        Call it after that pass's `commit`: a state past the committed tokens, of rejected drafts, is dropped.

        Raises:
            InvalidArgumentError: no slot was named since the last report; a mode without track slots; a length that the
                request cannot have; copies from that slot were not taken before the pass.
        """
        self._requests.tracked(req, length)

    @exclusive
    def take_pending_copies(self) -> PendingCopies:
        """The copies that wait, as one batch for the forward stream; run it before the next pass."""
        return self._copies.take()

    @exclusive
    def copies_done(self, copies: PendingCopies) -> None:
        """A batch was carried out. States that it wrote into the tree can be matched now, if they are finite.

        This reads the flags of quantised states back: the one place where the host looks at the device. Call it once
        the copies' event has passed, and it does not wait. Reporting a batch twice is fine.
        """
        jobs = self._copies.outstanding(copies)
        self._cacher.settle(jobs)
        for job in jobs:
            self._resources.unlock(*job.pins)
        self._copies.finish(jobs)

    # ---- Caching ----

    @exclusive
    def cache_unfinished_req(self, req: Request, chunked: bool = False) -> bool:
        """Caches what the request has computed so far, and moves its lock to the end of that.

        Caching is optional: without a state to cache, or a slot for it, the request stays as it is, and it is counted.

        Args:
            req: a request that runs.
            chunked: more of its prompt follows; the same is done either way.

        Returns:
            Whether it was cached.

        Raises:
            InvalidArgumentError: the request does not run; the state was never written.
        """
        del chunked
        self._requests.row(req)
        done = not self.disable and self._cacher.cache(req, finished=False)
        self._requests.refresh_prefix(req)
        return done

    @exclusive
    def cache_finished_req(self, req: Request, is_insert: bool = True) -> bool:
        """Caches what the request has computed, unless told not to, and releases it. Finishing twice is fine.

        Returns:
            Whether it was cached.

        Raises:
            InvalidArgumentError: the state was never written; the request then still holds what it held.
        """
        wanted = is_insert and not self.disable and req.req_pool_idx is not None
        done = wanted and self._cacher.cache(req, finished=True)
        self.release(req)
        return done

    @exclusive
    def release(self, req: Request) -> None:
        """Takes back everything that a request holds, at any moment of its life, and erases it from the request."""
        self._matcher.forget(req)
        self._requests.release(req)

    # ---- The tree ----

    @exclusive
    def insert(
        self,
        tokens: Any,
        slots: Any,
        state_slot: int,
        *,
        namespace: str | None = None,
        prev_prefix_len: int = 0,
        state_length: int | None = None,
    ) -> Insert:
        """Gives the tree KV and a written state of the pool that cached states lie in; duplicates in `slots` are freed.

        The state is the tree's unless `state_exists`. A disabled cache takes nothing.

        Args:
            tokens: [n] ids.
            slots: KV slots, one a token; given up, up to the whole pages of tokens.
            state_slot: the state's slot.
            namespace: LoRA id, tenant, cache salt.
            prev_prefix_len: how many slots at the front are the tree's own already.
            state_length: tokens that the state has consumed. None: n.

        Raises:
            InvalidArgumentError: the state was never written, or not for this length; as `RadixIndex.insert`.
            SlotOwnershipError: as `RadixIndex.insert`.
        """
        if self.disable:
            return self.index.insert((), (), state_slot, namespace=namespace)
        length = len(tokens) if state_length is None else state_length
        check_written(self._resources.cached, state_slot, length)
        done = self.index.insert(
            tokens, slots, state_slot, namespace=namespace, owned=prev_prefix_len, state_length=length
        )
        self.pools.kv_allocator.free(done.freed_slots)
        return done

    @exclusive
    def mark_written(self, slot: int, depth: int) -> None:
        """For engines that fill cached states themselves: the state in a slot there has consumed `depth` tokens."""
        self._resources.cached.mark(slot, depth)

    @exclusive
    def evict(self, num_tokens: int = 0, mamba_num: int = 0) -> Evicted:
        """Frees at least so many tokens, then so many states more, least recently used first."""
        return self._resources.evict(num_tokens, mamba_num, "asked")

    @exclusive
    def drop_namespace(self, namespace: str | None) -> Evicted:
        """Drops everything unlocked in a namespace."""
        return self._resources.take_back(self.index.drop_namespace(namespace), "namespace")

    @exclusive
    def reset(self) -> Evicted:
        """Empties the tree. A request that runs on a prefix of it can only be released; one that waits is matched anew.

        Slots that copies still read or write go back to their pool when those are reported done.
        """
        self._copies.forget_nodes()
        return self._resources.take_back(self.index.reset(), "reset")

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

    @property
    def states_per_request(self) -> int:
        """The most slots of the state pool that a request needs at once: running, tracked, and the one handed over."""
        return 1 + self.mode.track_slots + (not self._resources.apart)

    @exclusive
    def stats(self) -> dict[str, int]:
        """Counters since the start, and the levels of the pools now."""
        return self._stats()

    @exclusive
    def sanity_check(self) -> None:
        """Checks the tree, the allocators, and that every slot is in exactly one place.

        Raises:
            InvariantError: with everything that is wrong.
        """
        self._check()


__all__ = ["HybridRadixCache", "PrefixMatch", "Request"]
