"""State slots with what the host must know of them: how far they were written, and who still copies."""

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from stemcache._core import StateAllocator

# The mark of a slot that nobody wrote since it was handed out.
UNWRITTEN = -1


class Supply(Protocol):
    """Where more slots come from when a pool is empty."""

    def evictable(self) -> int:
        """How many could be freed now."""

    def evict(self, n: int) -> None:
        """Frees at least so many, if it can."""


class Nothing:
    """The supply of a pool that no cached state lies in."""

    def evictable(self) -> int:
        """None."""
        return 0

    def evict(self, n: int) -> None:
        """Frees nothing."""


class StateSlots:
    """The slots of one state pool.

    Two things are kept beside the allocator. *Depth marks*: how many tokens the state in a slot has consumed, so that a
    slot that nobody wrote, or one written for another length, is never given to the tree. *Holds*: a slot that a copy
    reads or writes is not handed out, even when its owner frees it; it goes back when the last copy is done.

    Args:
        allocator: who owns which slot.
        supply: cached states of this pool, which may be evicted.
    """

    def __init__(self, allocator: StateAllocator, supply: Supply) -> None:
        self.allocator = allocator
        self._supply = supply
        self._depth = np.full(allocator.size + 1, UNWRITTEN, dtype=np.int64)
        self._holds: Counter[int] = Counter()
        self._retired: set[int] = set()

    def alloc(self, n: int) -> list[int] | None:
        """N unwritten slots, evicting what is short; None if they cannot be had, and then nothing was evicted."""
        short = n - self.allocator.available
        if short > 0:
            if short > self._supply.evictable():
                return None
            self._supply.evict(short)
        slots = self.allocator.alloc(n)
        if slots is None:
            return None
        self._depth[slots] = UNWRITTEN
        return [int(slot) for slot in slots]

    def free(self, slots: Iterable[int]) -> None:
        """The owner is done with these; what a copy still holds goes back later."""
        given = {int(slot) for slot in slots}
        held = {slot for slot in given if self.is_held(slot)}
        if given - held:
            self.allocator.free(sorted(given - held))
        self._retired |= held

    def hold(self, slot: int) -> None:
        """A copy will read or write this slot."""
        self._holds[slot] += 1

    def is_held(self, slot: int) -> bool:
        """Whether a copy reads or writes this slot."""
        return slot in self._holds

    def let_go(self, slot: int) -> None:
        """That copy is done, or will not happen."""
        self._holds[slot] -= 1
        if self._holds[slot] == 0:
            del self._holds[slot]
            if slot in self._retired:
                self._retired.remove(slot)
                self.allocator.free([slot])

    def mark(self, slot: int, depth: int) -> None:
        """The state in the slot has consumed `depth` tokens."""
        self._depth[slot] = depth

    def depth(self, slot: int) -> int:
        """Tokens that the state in the slot has consumed; `UNWRITTEN` if nobody wrote it."""
        return int(self._depth[slot])

    @property
    def waiting(self) -> frozenset[int]:
        """Slots that were freed, but that a copy still holds."""
        return frozenset(self._retired)
