"""The two pools of a replay: allocation that evicts exactly what is short, and the proof that no slot is lost."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stemcache import KvAllocator, PagedKvAllocator, RadixIndex, StateAllocator
from stemcache.replay.clock import Clock
from stemcache.replay.record import Int64Array
from stemcache.replay.settings import Settings, Sizes

_NOTHING: Int64Array = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class Evictions:
    """What left the tree to make room."""

    kv_tokens: int = 0
    states: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """Where the slots of one pool are. `problems` is empty when each is in exactly one place."""

    kind: str
    size: int
    free: int
    tree: int
    problems: list[str]


class Pools:
    """The allocators of KV and states, and the index that gives slots back when they are short."""

    def __init__(self, index: RadixIndex, settings: Settings, sizes: Sizes, clock: Clock) -> None:
        """Makes pools of the given sizes."""
        self._index = index
        self._settings = settings
        self._clock = clock
        self._paged = PagedKvAllocator(sizes.kv, settings.page_size) if settings.page_size > 1 else None
        self.kv: KvAllocator | PagedKvAllocator = self._paged or KvAllocator(sizes.kv)
        self.states = StateAllocator(sizes.states)
        self.evictions = Evictions()
        self.peak_kv = 0
        self.peak_states = 0

    @property
    def kv_used(self) -> int:
        """KV slots that are not free."""
        return self.kv.size - self.kv.available

    @property
    def states_used(self) -> int:
        """State slots that are not free."""
        return self.states.size - self.states.available

    def within_reach(self) -> int:
        """KV slots that are free or could be by eviction."""
        return self.kv.available + self._index.evictable_tokens

    def take_kv(self, have: int, total: int, last: int) -> Int64Array | None:
        """Slots for a request's tokens from `have` to `total`; `last` is its last slot so far. None: not to be had."""
        if total == have:
            return _NOTHING
        short = self._settings.pages(total) - self._settings.pages(have) - self.kv.available
        if short > 0:
            self._evict(tokens=short)
        slots = self._alloc(have, total, last)
        self.peak_kv = max(self.peak_kv, self.kv_used)
        return slots

    def take_state(self) -> int | None:
        """A state slot; None if all are held by others."""
        slots = self._clock("alloc state", self.states.alloc, 1)
        if slots is None and self._index.evictable_states:
            self._evict(states=1)
            slots = self._clock("alloc state", self.states.alloc, 1)
        self.peak_states = max(self.peak_states, self.states_used)
        return None if slots is None else int(slots[0])

    def give_kv(self, slots: Int64Array) -> None:
        """Frees KV slots."""
        if len(slots):
            self._clock("free KV", self.kv.free, slots)

    def give_state(self, slot: int) -> None:
        """Frees a state slot."""
        self._clock("free state", self.states.free, [slot])

    def accounts(self) -> tuple[Account, Account]:
        """KV and states, compared slot by slot: what the allocators have handed out must be what the tree holds."""
        tree = self._index
        return _account("KV", self.kv, tree.all_slots()), _account("state", self.states, tree.all_state_slots())

    def _alloc(self, have: int, total: int, last: int) -> Int64Array | None:
        if self._paged is None:
            return self._clock("alloc KV", self.kv.alloc, total - have)
        return self._clock("alloc KV", self._paged.alloc_extend, [have], [total], [last])

    def _evict(self, tokens: int = 0, states: int = 0) -> None:
        gone = self._clock("evict", self._index.evict, tokens=tokens, states=states)
        self.evictions.kv_tokens += len(gone.kv_slots)
        self.evictions.states += len(gone.state_slots)
        self.give_kv(gone.kv_slots)
        if len(gone.state_slots):
            self._clock("free state", self.states.free, gone.state_slots)


def _account(kind: str, allocator: KvAllocator | PagedKvAllocator | StateAllocator, in_tree: Int64Array) -> Account:
    audit = allocator.audit()
    out = np.concatenate([_NOTHING, *audit.owners.values()])
    there, handed_out = _marks(in_tree, out)
    problems = list(audit.problems)
    problems += _unaccounted(kind, np.flatnonzero(handed_out & ~there), "out of the pool, but not in the tree")
    problems += _unaccounted(kind, np.flatnonzero(there & ~handed_out), "in the tree, but free in the pool")
    if audit.available + len(in_tree) != audit.size:
        problems.append(f"{audit.available} free and {len(in_tree)} {kind} slots in the tree are not {audit.size}")
    return Account(kind, audit.size, audit.available, len(in_tree), problems)


def _marks(*kinds: Int64Array) -> list[npt.NDArray[np.bool_]]:
    """For each array which slots are in it: sets of a hundred million slots are compared in no time."""
    marks = np.zeros((len(kinds), 1 + max(int(slots.max(initial=0)) for slots in kinds)), dtype=np.bool_)
    for mark, slots in zip(marks, kinds, strict=True):
        mark[slots] = True
    return list(marks)


def _unaccounted(kind: str, slots: Int64Array, where: str) -> list[str]:
    return [f"{len(slots)} {kind} slots are {where}, the first of them {slots[0]}"] if len(slots) else []
