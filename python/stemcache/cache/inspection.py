"""What there is in the cache: sizes, contents, counters, checks. Nothing here changes anything."""

from typing import Any

from stemcache.cache import audit
from stemcache.cache.counters import Skips
from stemcache.cache.request import Int64Array
from stemcache.cache.resources import CAUSES, Resources
from stemcache.cache.running import RunningRequests


class Inspection:
    """The verbs that only look, under the names that serving code uses."""

    _resources: Resources
    _requests: RunningRequests
    skips: Skips

    def supports_mamba(self) -> bool:
        """Yes."""
        return True

    def can_admit(self, tokens: int, states: int) -> bool:
        """Whether allocation plus eviction could give so much now; what is locked does not count."""
        return self._resources.could_give(tokens, states)

    def total_size(self) -> tuple[int, int]:
        """Tokens and states in the tree."""
        return self._resources.index.total_tokens, self._resources.index.total_states

    def full_evictable_size(self) -> int:
        """Unlocked tokens in the tree."""
        return self._resources.index.evictable_tokens

    def full_protected_size(self) -> int:
        """Locked tokens in the tree."""
        return self._resources.index.protected_tokens

    def mamba_evictable_size(self) -> int:
        """Unlocked states in the tree."""
        return self._resources.index.evictable_states

    def mamba_protected_size(self) -> int:
        """States in the tree that are locked, or still being written."""
        return self._resources.index.protected_states

    def all_values_flatten(self) -> Int64Array:
        """Every KV slot in the tree."""
        return self._resources.index.all_slots()

    def all_mamba_values_flatten(self) -> Int64Array:
        """Every state slot in the tree."""
        return self._resources.index.all_state_slots()

    def available_and_evictable_str(self) -> str:
        """What could be had of both resources, for logs."""
        index, pools = self._resources.index, self._resources.pools
        kv, states = pools.kv_allocator.available, self._resources.cached.allocator.available
        return (
            f"KV tokens: {kv} available + {index.evictable_tokens} evictable; "
            f"states: {states} available + {index.evictable_states} evictable"
        )

    def pretty_print(self) -> str:
        """The tree as text."""
        return self._resources.index.dump()

    def take_events(self) -> list[Any]:
        """The events since the last call."""
        return self._resources.index.take_events()

    def _stats(self) -> dict[str, int]:
        return {
            **self._resources.index.stats().as_dict(),
            **self.skips.as_dict(),
            **{f"evicted_tokens_{cause}": self._resources.evicted_tokens[cause] for cause in CAUSES},
            **{f"evicted_states_{cause}": self._resources.evicted_states[cause] for cause in CAUSES},
            "live_requests": len(self._requests.live),
            "running_requests": sum(req.req_pool_idx is not None for req in self._requests.live),
            **{f"{pool}_{state}": size for (pool, state), size in self._levels().items()},
        }

    def _levels(self) -> dict[tuple[str, str], int]:
        """Slots of each pool: free, in the tree and unlocked, in the tree and locked, all that there are."""
        index, pools = self._resources.index, self._resources.pools
        in_tree = {"evictable": index.evictable_states, "protected": index.protected_states}
        nothing = dict.fromkeys(in_tree, 0)
        kv = {"evictable": index.evictable_tokens, "protected": index.protected_tokens}
        allocators: dict[str, Any] = {"kv": pools.kv_allocator, "state": pools.state_allocator}
        levels = {"kv": kv, "state": nothing if self._resources.apart else in_tree}
        if pools.checkpoint_allocator is not None:
            allocators["checkpoint"], levels["checkpoint"] = pools.checkpoint_allocator, in_tree
        return {
            (pool, state): size
            for pool, allocator in allocators.items()
            for state, size in {"available": allocator.available, **levels[pool], "total": allocator.size}.items()
        }

    def _check(self) -> None:
        self._resources.index.check_invariants()
        audit.check(self._resources, self._requests)
