"""The allocators from Python: what they hand out, whom they refuse, where every slot is."""

from typing import Any

import numpy as np
import pytest

import stemcache
from stemcache import KvAllocator, PagedKvAllocator, StateAllocator


@pytest.mark.parametrize("make", [KvAllocator, StateAllocator])
def test_slots_begin_at_1_and_come_back(make: type[KvAllocator | StateAllocator]) -> None:
    pool = make(4)
    slots = pool.alloc(4)
    assert slots is not None
    assert slots.tolist() == [1, 2, 3, 4]
    assert slots.dtype == np.int64
    assert pool.alloc(1) is None
    pool.free(slots)
    assert pool.available == pool.size == 4


@pytest.mark.parametrize("make", [KvAllocator, StateAllocator])
def test_a_double_free_is_refused_with_its_slot(make: type[KvAllocator | StateAllocator]) -> None:
    """SGLang 0.5.15 takes it silently, and then hands one slot to two requests (sglang#12432)."""
    pool = make(4)
    pool.alloc(4)
    pool.free([2])
    with pytest.raises(stemcache.SlotOwnershipError, match="slot 2 is free already"):
        pool.free([1, 2])
    with pytest.raises(stemcache.SlotOwnershipError, match="slot 3 is given twice"):
        pool.free([3, 3])
    assert pool.available == 1
    assert pool.audit().problems == []


def test_a_slot_is_freed_by_its_owner_only() -> None:
    pool = KvAllocator(4)
    pool.alloc(2, owner="r1")
    with pytest.raises(stemcache.SlotOwnershipError, match='slot 1 belongs to "r1", not to "r2"'):
        pool.free([1], owner="r2")
    pool.transfer([1], "tree")
    assert [pool.owner_of(1), pool.owner_of(2)] == ["tree", "r1"]
    with pytest.raises(stemcache.SlotOwnershipError, match="slot 3 is not handed out"):
        pool.owner_of(3)
    owners = pool.audit().owners
    assert {label: slots.tolist() for label, slots in owners.items()} == {"tree": [1], "r1": [2]}


def test_a_free_group_releases_at_once() -> None:
    pool = KvAllocator(4)
    slots = pool.alloc(4)
    assert slots is not None
    pool.begin_free_group()
    pool.free(slots[:3])
    assert (pool.available, pool.audit().pending) == (0, 3)
    assert pool.end_free_group() == 3
    assert pool.available == 3


def test_an_alloc_group_reserves() -> None:
    pool = StateAllocator(4)
    assert pool.begin_alloc_group(3)
    assert not pool.begin_alloc_group(2)
    assert (pool.available, pool.audit().pending) == (1, 3)
    pool.alloc(1)
    assert pool.end_alloc_group() == 2
    assert pool.available == 3


def test_sorted_reuse() -> None:
    pool = KvAllocator(6, need_sort=True)
    pool.alloc(6)
    for slot in (5, 2, 6, 1):
        pool.free([slot])
    again = pool.alloc(4)
    assert again is not None
    assert again.tolist() == [1, 2, 5, 6]


def test_pages_are_continued_and_go_back_whole() -> None:
    pool = PagedKvAllocator(32, 4)
    first = pool.alloc_extend([0, 0], [6, 3], [0, 0], owners=["a", "b"])
    assert first is not None
    assert first.tolist() == [4, 5, 6, 7, 8, 9, 12, 13, 14]
    more = pool.alloc_decode([7, 4], [9, 14], owners=["a", "b"])
    assert more is not None
    assert more.tolist() == [10, 15]
    pool.free([4, 5, 6])
    assert pool.available == 32 - 12
    pool.free([7])
    assert pool.available == 32 - 8
    assert pool.audit().problems == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda pool: pool.alloc(3), "count is 3, but a page is 4 slots"),
        (lambda pool: pool.alloc(-4), "n is -4"),
        (lambda pool: pool.alloc_extend([4], [3], [0]), "total_length is 3"),
        (lambda pool: pool.alloc_extend([1], [3, 4], [0]), "have lengths"),
        (lambda pool: pool.alloc_extend([1], [3], [7]), "slot 7 is free already"),
        (lambda pool: pool.free([1]), "dummy page"),
        (lambda pool: pool.free([99]), "slot 99 is not a slot"),
    ],
)
def test_pages_refuse(call: Any, message: str) -> None:
    pool = PagedKvAllocator(32, 4)
    with pytest.raises(ValueError, match=message):
        call(pool)
    assert pool.available == 32


def test_impossible_pools() -> None:
    for make in (
        lambda: KvAllocator(0),
        lambda: StateAllocator(-1),
        lambda: KvAllocator(2**31),
        lambda: PagedKvAllocator(10, 4),
        lambda: PagedKvAllocator(8, 0),
    ):
        with pytest.raises(stemcache.InvalidArgumentError):
            make()
