"""What slots move between: the tree, the pools and their allocators. The only place that evicts."""

from collections import Counter
from typing import Literal, TypeAlias

from stemcache._core import Evicted, Lock, PagedKvAllocator, RadixIndex
from stemcache.cache.request import Int64Array
from stemcache.cache.slots import Nothing, StateSlots
from stemcache.pools.hybrid import HybridPools

Cause: TypeAlias = Literal["kv_needed", "state_needed", "asked", "namespace", "reset", "not_finite"]
CAUSES: tuple[Cause, ...] = ("kv_needed", "state_needed", "asked", "namespace", "reset", "not_finite")


class Resources:
    """The tree and the pools.

    Args:
        index: which slots are kept for which tokens.
        pools: the bytes and the allocators.

    Attributes:
        running: the slots of the state pool.
        cached: the slots of the pool that cached states lie in; the same object without checkpoints.
        evicted_tokens: KV slots that left the tree, by cause.
        evicted_states: states that left the tree, by cause.
    """

    def __init__(self, index: RadixIndex, pools: HybridPools) -> None:
        self.index = index
        self.pools = pools
        self.page_size = pools.page_size
        self.evicted_tokens: Counter[Cause] = Counter()
        self.evicted_states: Counter[Cause] = Counter()
        if pools.checkpoint_allocator is None:
            self.running = self.cached = StateSlots(pools.state_allocator, _CachedStates(self))
        else:
            # Cached states lie in a pool of their own, and are never in the way of running ones.
            self.running = StateSlots(pools.state_allocator, Nothing())
            self.cached = StateSlots(pools.checkpoint_allocator, _CachedStates(self))

    @property
    def apart(self) -> bool:
        """Whether cached states lie in a pool of their own."""
        return self.cached is not self.running

    def evict(self, tokens: int, states: int, cause: Cause) -> Evicted:
        """Frees at least so many tokens, then so many states more, least recently used first."""
        return self.take_back(self.index.evict(tokens=tokens, states=states), cause)

    def take_back(self, evicted: Evicted, cause: Cause) -> Evicted:
        """The tree's slots to their allocators."""
        self.pools.kv_allocator.free(evicted.kv_slots)
        self.cached.free(evicted.state_slots.tolist())
        self.evicted_tokens[cause] += len(evicted.kv_slots)
        self.evicted_states[cause] += len(evicted.state_slots)
        return evicted

    def unlock(self, *locks: Lock | None) -> None:
        """Releases locks, unless a reset did."""
        for lock in locks:
            if lock is not None and lock.held:
                self.index.unlock(lock)

    def alloc_kv(self, row: int, have: int, total: int) -> Int64Array | None:
        """KV slots for positions `have` to `total`, evicting what is short; None, and no eviction, if in vain."""
        last = int(self.pools.rows.read(row, have - 1, have)[0]) if have else 0
        pages = -(-total // self.page_size) - -(-have // self.page_size)
        short = pages * self.page_size - self.pools.kv_allocator.available
        if short > self.index.evictable_tokens:
            return None
        if short > 0:
            self.evict(short, 0, "kv_needed")
        allocator = self.pools.kv_allocator
        if isinstance(allocator, PagedKvAllocator):
            return allocator.alloc_extend([have], [total], [last])
        return allocator.alloc(total - have)

    def could_give(self, tokens: int, states: int) -> bool:
        """Whether allocation plus eviction could give so much now; what is locked does not count."""
        kv = self.pools.kv_allocator.available + self.index.evictable_tokens
        running = self.running.allocator.available + (0 if self.apart else self.index.evictable_states)
        return -(-tokens // self.page_size) * self.page_size <= kv and states <= running


class _CachedStates:
    """Cached states as the supply of the pool that they lie in."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def evictable(self) -> int:
        """Unlocked states in the tree."""
        return self._resources.index.evictable_states

    def evict(self, n: int) -> None:
        """Takes so many out."""
        self._resources.evict(0, n, "state_needed")
