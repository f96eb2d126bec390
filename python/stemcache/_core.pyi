"""The Rust core, as Python sees it. `stemcache` re-exports all of it.

Lengths are in tokens (in pairs, for a bigram index), slots are numbers from 1 up, and every length that a
call returns counts from the root. A call that is refused has changed nothing. Arrays are read where they lie, so
nobody may write to them during the call; long calls copy them and give up the GIL.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt

_Int64Array: TypeAlias = npt.NDArray[np.int64]
# int64 and int32 arrays, array('q'), and CPU tensors are read without a copy per element in Python.
_Integers: TypeAlias = npt.NDArray[np.integer[Any]] | Sequence[int] | Any
_Reason: TypeAlias = Literal["namespace", "limit", "state evicted", "no state", "miss"]

__all__ = [
    "Advance",
    "AllBlocksCleared",
    "Audit",
    "BlockRemoved",
    "BlockStored",
    "Evicted",
    "Insert",
    "KvAllocator",
    "Lock",
    "Match",
    "PagedKvAllocator",
    "RadixIndex",
    "StateAllocator",
    "StateRemoved",
    "StateStored",
    "Stats",
    "__version__",
]

__version__: str

@final
class RadixIndex:
    """A radix tree over token ids that knows which KV slots and which recurrent states are kept for which prefixes.

    Args:
        page_size: tokens in a page; matches, edges and splits are whole pages.
        chunk_size: the grid of branching points, a multiple of `page_size`. None: the smallest multiple that is
            at least 64.
        bigram: keys are EAGLE's view of n + 1 tokens as n overlapping pairs; all lengths then count pairs.
        policy: which unlocked entry goes first; only "lru" (exact) so far.
        events: keep the queue that `take_events` drains. "states" adds the events of recurrent states.

    Raises:
        InvalidArgumentError: a size of 0, a chunk that is not whole pages, an unknown policy.
    """

    def __new__(
        cls,
        page_size: int = 1,
        chunk_size: int | None = None,
        bigram: bool = False,
        policy: str = "lru",
        events: bool | Literal["states"] = ...,
    ) -> RadixIndex: ...
    def match(
        self,
        tokens: _Integers,
        namespace: str | None = ...,
        limit: int | None = None,
        after: int | None = None,
        lock: bool = False,
    ) -> Match:
        """Finds the longest prefix of `tokens` from whose end a model can go on, and makes its path most recent.

        Args:
            tokens: [n] token ids; the key is floored to whole pages.
            namespace: LoRA id, tenant, cache salt; None and "" are two namespaces. May be left out with `after`.
            limit: match at most this many tokens (an engine must compute one, so it passes n - 1).
            after: a node to go on from: `tokens` and `limit` then count from its end. The answer is that of the
                whole key, with only the slots past the node.
            lock: take the lock in the same call; `Match.lock` holds the receipt, also after a miss (of nothing).

        Raises:
            StaleNodeError: `after` is gone.
            InvalidArgumentError: a negative limit; another namespace than the node's.
        """
    def peek(
        self,
        tokens: _Integers,
        namespace: str | None = ...,
        limit: int | None = None,
        after: int | None = None,
    ) -> Match:
        """`match` that touches nothing: no recency, no counters, no lock."""
    def insert(
        self,
        tokens: _Integers,
        slots: _Integers,
        state_slot: int,
        namespace: str | None = ...,
        owned: int = 0,
        after: int | None = None,
        state_length: int | None = None,
        state_ready: bool = True,
    ) -> Insert:
        """Gives the tree the KV of `tokens` and the recurrent state after exactly that many.

        The caller gives up `slots` up to the floored length: what the tree had already comes back as `freed_slots`.
        The state is the tree's unless `state_exists`.

        Args:
            tokens: [n] token ids, floored to whole pages.
            slots: [>= floored n] KV slots, one a token. Not read in the first `owned`.
            state_slot: the slot of the state.
            namespace: as for `match`.
            owned: how many slots at the front are the tree's own already (they came from a match).
            after: a node that the caller holds a lock on: tokens, slots and owned count from its end.
            state_length: tokens that the state has consumed, from the root. None: the key's length before flooring.
            state_ready: False if a copy has yet to write the state's bytes: it can neither be matched, locked nor
                evicted until `publish_state`.

        Raises:
            InvalidArgumentError: the state does not lie at the floored end; too few slots; `owned` exceeds what the
                tree holds; with events on, an id that does not fit u32.
            SlotOwnershipError: a slot that the tree owns, one given twice, 0, or a negative one.
            StaleNodeError: `after` is gone.
        """
    def advance(
        self,
        lock: Lock,
        tokens: _Integers,
        slots: _Integers,
        state_slot: int,
        owned: int = 0,
        state_length: int | None = None,
        state_ready: bool = True,
    ) -> Advance:
        """Inserts after the lock's node and moves the lock to the new end, in one step that looks at new tokens only.

        The old lock is used up; nothing happened to it if the call is refused.

        Raises:
            NotLockedError: the lock was released.
            StaleNodeError: the lock is from before a reset.
            InvalidArgumentError, SlotOwnershipError: as for `insert`.
        """
    def publish_state(self, node: int) -> None:
        """The state at a node's end, inserted with `state_ready=False`, was written.

        Raises:
            StaleNodeError: the node is gone.
            InvalidArgumentError: it has no state that waits.
        """
    def discard_state(self, node: int) -> Evicted:
        """The state at a node's end, inserted with `state_ready=False`, is not worth keeping: takes it out.

        The node goes, too, if that leaves it without a state, children and locks.

        Raises:
            StaleNodeError: the node is gone.
            InvalidArgumentError: it has no state that waits.
        """
    def lock(self, node: int) -> Lock:
        """Protects the node's state (if it has one) and the KV of its whole path from eviction.

        Raises:
            StaleNodeError: the node is gone.
        """
    def unlock_state(self, lock: Lock) -> None:
        """Releases the state part of a lock early: the state was copied, the KV is still read.

        Raises:
            NotLockedError: the lock was released, or holds no state.
            StaleNodeError: the lock is from before a reset.
        """
    def unlock(self, lock: Lock) -> None:
        """Gives back exactly what the lock took.

        Raises:
            NotLockedError: it was released already.
            StaleNodeError: the lock is from before a reset.
        """
    def evict(self, tokens: int = ..., states: int = ...) -> Evicted:
        """Frees at least so many tokens, then so many states more, least recently used first, locked ones never.

        Gives what there is when that is less; 0 or less frees nothing.
        """
    def drop_namespace(self, namespace: str | None) -> Evicted:
        """Drops everything unlocked in a namespace: an unloaded LoRA, a tenant gone."""
    def reset(self) -> Evicted:
        """Empties the tree and gives every slot back. Every handle and lock becomes stale."""
    def take_events(self) -> list[BlockStored | BlockRemoved | AllBlocksCleared | StateStored | StateRemoved]:
        """The events since the last call, in order. Empty when events are off.

        The queue has no bound: with events on, drain it every step.
        """
    def all_slots(self) -> _Int64Array:
        """Every KV slot in the tree."""
    def all_state_slots(self) -> _Int64Array:
        """Every state slot in the tree."""
    def stats(self) -> Stats:
        """Counters since the index was made."""
    def check_invariants(self) -> None:
        """Recomputes every count, list and link from scratch.

        Raises:
            InvariantError: with all violations, each by the numbers of `rust/core/src/lib.rs`.
        """
    def dump(self) -> str:
        """The tree and both recency orders as text, the same for equal trees."""
    def digest(self) -> int:
        """64 bits over namespaces, keys, slots, states, locks and both recency orders, the same on every machine."""
    @property
    def page_size(self) -> int: ...
    @property
    def chunk_size(self) -> int: ...
    @property
    def total_tokens(self) -> int: ...
    @property
    def total_states(self) -> int: ...
    @property
    def evictable_tokens(self) -> int: ...
    @property
    def evictable_states(self) -> int: ...
    @property
    def protected_tokens(self) -> int: ...
    @property
    def protected_states(self) -> int: ...
    @property
    def node_count(self) -> int: ...

@final
class Match:
    """What a match found. All lengths count from the root."""

    @property
    def length(self) -> int:
        """Usable tokens: KV and a state at its end."""
    @property
    def slots(self) -> _Int64Array:
        """KV slots of the usable tokens (past `after`, if that was given)."""
    @property
    def node(self) -> int | None:
        """The node whose state a model goes on from; None without a hit."""
    @property
    def state_slot(self) -> int | None: ...
    @property
    def kv_length(self) -> int:
        """Tokens whose KV is there, whatever the states."""
    @property
    def branching_length(self) -> int | None:
        """Where a checkpoint would have made this hit longer: chunk-aligned, past `length`."""
    @property
    def reason(self) -> _Reason | None:
        """Why `length` is short of the key; None if it is not."""
    @property
    def lock(self) -> Lock | None:
        """The receipt, if `lock=True` was asked for."""

@final
class Insert:
    """What an insert did."""

    @property
    def prefix_length(self) -> int:
        """Tokens of the key that the tree had before, from the root."""
    @property
    def state_exists(self) -> bool:
        """The end has a state already: the one given is still the caller's."""
    @property
    def freed_slots(self) -> _Int64Array:
        """Slots given for tokens that the tree had: the caller frees them."""
    @property
    def node(self) -> int | None:
        """The node at the key's end; None for an empty key."""

@final
class Advance:
    """What an advance did."""

    @property
    def insert(self) -> Insert: ...
    @property
    def slots(self) -> _Int64Array:
        """The tree's own slots of the new part."""
    @property
    def lock(self) -> Lock:
        """The lock on the new end."""

@final
class Evicted:
    """The slots that a call took out of the tree: the caller frees them."""

    @property
    def kv_slots(self) -> _Int64Array: ...
    @property
    def state_slots(self) -> _Int64Array: ...

@final
class Lock:
    """The receipt of a lock.

    As a context manager it is released at the end, if it is still held then: a lock that was advanced meanwhile is used
    up, and the lock that `advance` returned is one of its own. A lock that is dropped without being released stays held
    (`stats().locks_held` counts them).
    """

    @property
    def node(self) -> int | None:
        """The locked node; None if there was no hit to lock, or it was released."""
    @property
    def held(self) -> bool: ...
    def __enter__(self) -> Lock: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class Stats:
    """Counters since the index was made; `as_dict` for those who export them."""

    @property
    def matches(self) -> int: ...
    @property
    def matched_tokens(self) -> int:
        """Usable tokens over all matches."""
    @property
    def kv_only_tokens(self) -> int:
        """Tokens whose KV was there but no state: hits lost for want of a checkpoint."""
    @property
    def short_by_namespace(self) -> int: ...
    @property
    def short_by_limit(self) -> int: ...
    @property
    def short_by_state_evicted(self) -> int: ...
    @property
    def short_by_no_state(self) -> int: ...
    @property
    def short_by_miss(self) -> int: ...
    @property
    def inserts(self) -> int: ...
    @property
    def stored_tokens(self) -> int: ...
    @property
    def duplicate_tokens(self) -> int: ...
    @property
    def stored_states(self) -> int: ...
    @property
    def duplicate_states(self) -> int: ...
    @property
    def splits(self) -> int: ...
    @property
    def evicted_tokens(self) -> int: ...
    @property
    def evicted_states(self) -> int: ...
    @property
    def tombstoned_states(self) -> int:
        """Of the evicted states, those whose KV stayed."""
    @property
    def discarded_states(self) -> int:
        """States taken out before they could be used."""
    @property
    def locks_held(self) -> int: ...
    def as_dict(self) -> dict[str, int]: ...

@final
class BlockStored:
    """One page that the tree took."""

    @property
    def block_hashes(self) -> list[int]: ...
    @property
    def parent_block_hash(self) -> int | None: ...
    @property
    def token_ids(self) -> list[int] | list[tuple[int, int]]: ...
    @property
    def block_size(self) -> int: ...
    @property
    def namespace(self) -> str | None: ...

@final
class BlockRemoved:
    """One page that the tree dropped."""

    @property
    def block_hashes(self) -> list[int]: ...

@final
class AllBlocksCleared:
    """The tree was reset."""

@final
class StateStored:
    """A recurrent state was kept at the end of the page with this hash."""

    @property
    def block_hashes(self) -> list[int]: ...

@final
class StateRemoved:
    """The recurrent state at the end of the page with this hash was dropped."""

    @property
    def block_hashes(self) -> list[int]: ...

@final
class Audit:
    """Where every slot of a pool is."""

    @property
    def size(self) -> int: ...
    @property
    def available(self) -> int: ...
    @property
    def pending(self) -> int:
        """Slots freed in an open free group, or reserved by an open alloc group."""
    @property
    def partial(self) -> int:
        """Free slots in pages that are partly handed out."""
    @property
    def owners(self) -> dict[str | None, _Int64Array]:
        """The slots of each owner, ascending; None is who gave no label."""
    @property
    def problems(self) -> list[str]:
        """Every slot in two places or in none, every count that is wrong. Empty in a sound pool."""

@final
class KvAllocator:
    """KV slots 1 to `size`, one by one. A call costs what it moves, whatever the size of the pool.

    Args:
        size: slots, without the dummy slot 0.
        need_sort: sort released slots before they are handed out again, so that allocations stay contiguous.

    Raises:
        InvalidArgumentError: a size of 0, or past 2^30.
    """

    def __new__(cls, size: int, need_sort: bool = False) -> KvAllocator: ...
    def alloc(self, n: int, owner: str | None = None) -> _Int64Array | None:
        """Hands out n slots under a label (say, the request's id), or None when fewer are available.

        Raises:
            InvalidArgumentError: a negative n.
        """
    def free(self, slots: _Integers, owner: str | None = None) -> None:
        """Takes slots back, all or none; with a label only from that owner.

        Raises:
            SlotOwnershipError: a slot that is free already, somebody else's, none of the pool's, or given twice.
        """
    def transfer(self, slots: _Integers, owner: str | None) -> None:
        """Gives slots, whoever has them, to another owner, all or none.

        Raises:
            SlotOwnershipError: a slot that is free, none of the pool's, or given twice.
        """
    def owner_of(self, slot: int) -> str | None:
        """The label that a slot was handed out under; None if it was handed out without one.

        Raises:
            SlotOwnershipError: it is not handed out, or none of the pool's.
        """
    def audit(self) -> Audit:
        """Where every slot is, recomputed from scratch: cost is that of the pool's size."""
    @property
    def available(self) -> int:
        """Slots that could be handed out now."""
    @property
    def size(self) -> int: ...
    def begin_free_group(self) -> None:
        """Collects what is freed until the group ends. Groups nest; the outermost counts."""
    def end_free_group(self) -> int:
        """Ends a free group and returns how many slots became available by that."""

@final
class PagedKvAllocator:
    """KV slots in pages: page 0 is the dummy, so slots go from `page_size` to `size + page_size - 1`.

    Args:
        size: slots, a multiple of `page_size`.
        page_size: slots in a page.
        need_sort: sort released pages before they are handed out again.

    Raises:
        InvalidArgumentError: a size of 0, past 2^30, or not whole pages.
    """

    def __new__(cls, size: int, page_size: int, need_sort: bool = False) -> PagedKvAllocator: ...
    def alloc(self, n: int, owner: str | None = None) -> _Int64Array | None:
        """Hands out n slots under a label (say, the request's id), or None when fewer are available.

        Raises:
            InvalidArgumentError: a negative n, or one that is not whole pages.
        """
    def free(self, slots: _Integers, owner: str | None = None) -> None:
        """Takes slots back, all or none; with a label only from that owner.

        Raises:
            SlotOwnershipError: a slot that is free already, somebody else's, none of the pool's, or given twice.
        """
    def transfer(self, slots: _Integers, owner: str | None) -> None:
        """Gives slots, whoever has them, to another owner, all or none.

        Raises:
            SlotOwnershipError: a slot that is free, none of the pool's, or given twice.
        """
    def owner_of(self, slot: int) -> str | None:
        """The label that a slot was handed out under; None if it was handed out without one.

        Raises:
            SlotOwnershipError: it is not handed out, or none of the pool's.
        """
    def audit(self) -> Audit:
        """Where every slot is, recomputed from scratch: cost is that of the pool's size."""
    @property
    def available(self) -> int:
        """Slots that could be handed out now."""
    @property
    def size(self) -> int: ...
    def begin_free_group(self) -> None:
        """Collects what is freed until the group ends. Groups nest; the outermost counts."""
    def end_free_group(self) -> int:
        """Ends a free group and returns how many slots became available by that."""
    def alloc_extend(
        self,
        prefix_lengths: _Integers,
        total_lengths: _Integers,
        last_slots: _Integers,
        owners: Sequence[str | None] | None = None,
    ) -> _Int64Array | None:
        """Hands out a slot for each token past the prefixes of a batch of requests, or None and nothing to anybody.

        A request goes on right after its last slot, and on new pages when its last one is full.

        Args:
            prefix_lengths: [requests] tokens that have slots.
            total_lengths: [requests] tokens that shall have slots.
            last_slots: [requests] slot of each prefix's last token; not read where a prefix is whole pages.
            owners: [requests] labels.

        Returns:
            The new slots, one request after the other.

        Raises:
            InvalidArgumentError: a total below its prefix, arrays of different lengths.
            SlotOwnershipError: a last slot that such a request cannot have, or after which the page is taken.
        """
    def alloc_decode(
        self, total_lengths: _Integers, last_slots: _Integers, owners: Sequence[str | None] | None = None
    ) -> _Int64Array | None:
        """`alloc_extend` by one token: `total_lengths` count that token."""
    @property
    def page_size(self) -> int: ...

@final
class StateAllocator:
    """State slots 1 to `size`.

    Args:
        size: slots, without the dummy slot 0.

    Raises:
        InvalidArgumentError: a size of 0, or past 2^30.
    """

    def __new__(cls, size: int) -> StateAllocator: ...
    def alloc(self, n: int, owner: str | None = None) -> _Int64Array | None:
        """Hands out n slots under a label (say, the request's id), or None when fewer are available.

        Raises:
            InvalidArgumentError: a negative n.
        """
    def free(self, slots: _Integers, owner: str | None = None) -> None:
        """Takes slots back, all or none; with a label only from that owner.

        Raises:
            SlotOwnershipError: a slot that is free already, somebody else's, none of the pool's, or given twice.
        """
    def transfer(self, slots: _Integers, owner: str | None) -> None:
        """Gives slots, whoever has them, to another owner, all or none.

        Raises:
            SlotOwnershipError: a slot that is free, none of the pool's, or given twice.
        """
    def owner_of(self, slot: int) -> str | None:
        """The label that a slot was handed out under; None if it was handed out without one.

        Raises:
            SlotOwnershipError: it is not handed out, or none of the pool's.
        """
    def audit(self) -> Audit:
        """Where every slot is, recomputed from scratch: cost is that of the pool's size."""
    @property
    def available(self) -> int:
        """Slots that could be handed out now."""
    @property
    def size(self) -> int: ...
    def begin_alloc_group(self, n: int) -> bool:
        """Reserves n slots for the allocations to come; False, and no group, when fewer are available."""
    def end_alloc_group(self) -> int:
        """Ends an alloc group and returns how many reserved slots were left and are available again."""
