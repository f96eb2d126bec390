"""Public faults of caches of this kind, as stories; the number is that of the case in our list of them.

Impossible by construction, or another part's:
    8, 14, 35, 38, 40-42, 47, 48, 50, 60, 61, 64, 66: the index and its allocators, tested there. 11, 27, 29-31, 52:
    there is no tier outside the device. 20: a state is addressed by its slot, never by a place in a batch. 21:
    `RadixIndex` refuses a chunk that is not whole pages (test_index). 32: namespaces, tested with the index, and by
    test_cache_machine byte by byte. 56, 58, 59: the checkpoint pool's (test_quant, test_checkpoint, test_pools). 65: no
    call here waits for the device (test_cache_nosync).
"""

import logging
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the cache needs torch")

import torch

from cache_world import World
from stemcache import SlotOwnershipError, StaleNodeError
from stemcache.cache.hybrid import HybridRadixCache, Request
from stemcache.errors import InvalidArgumentError, InvariantError

MODES = ["no_buffer", "extra_buffer", "extra_buffer_lazy"]
T = list(range(1, 41))


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=[None, "int8"])
def checkpoint(request: pytest.FixtureRequest) -> str | None:
    name: str | None = request.param
    return name


def skipped(world: World) -> dict[str, int]:
    return {reason: count for reason, count in world.cache.skips.as_dict().items() if count}


def take_slots(world: World, n: int) -> list[int]:
    """Slots that the test holds, so that pools run dry."""
    slots = world.pools.state_allocator.alloc(n)
    assert slots is not None
    return [int(slot) for slot in slots]


# ---- A. Accounting and leaks ----


def test_case_01_slot_of_a_match_that_was_not_admitted() -> None:
    world = World(requests=1)
    world.turn(T[:8], [8])
    busy, life = world.start(T[20:24]), world.request(T[:10])
    free = world.pools.state_allocator.available
    assert world.match(life).cow == "queued"
    slot = life.req.mamba_pool_idx
    assert not world.admit(life)
    world.cache.sanity_check()
    assert world.match(life).cow == "queued"
    assert (life.req.mamba_pool_idx, world.pools.state_allocator.available) == (slot, free - 1)
    world.cache.release(life.req)
    assert world.pools.state_allocator.available == free
    world.cache.release(busy.req)
    world.assert_whole()


@pytest.mark.parametrize("launched", [False, True])
def test_case_02_abort_while_waiting(launched: bool) -> None:
    world = World()
    world.turn(T[:8], [8])
    life = world.request(T[:10])
    world.match(life)
    world.cache.sanity_check()
    if launched:
        world.launch_copies()
    world.cache.release(life.req)
    world.cache.sanity_check()
    world.assert_holds_nothing(life)
    world.assert_whole()


def test_case_03_freed_by_a_chunk_and_again_at_the_end(mode: str) -> None:
    world = World(mode)
    life = world.start(T[:8])
    world.forward(life, 4, track=4 if world.tracks else None)
    world.cache_unfinished(life)
    slot = life.req.mamba_pool_idx
    world.cache_finished(life, is_insert=False)
    assert not world.cache.cache_finished_req(life.req)
    world.settle()
    with pytest.raises(SlotOwnershipError):
        world.pools.state_allocator.free([slot])
    world.assert_whole()


def test_case_04_a_released_request_knows_no_slots(mode: str) -> None:
    world = World(mode)
    first = world.start(T[:4])
    world.cache.release(first.req)
    world.assert_holds_nothing(first)
    second = world.start(T[4:8])
    world.match(first)
    assert world.admit(first)
    assert not {*first.req.state_slots()} & {*second.req.state_slots()}
    world.cache.sanity_check()


def test_case_05_many_sessions_do_not_shrink_the_pools(mode: str, checkpoint: str | None) -> None:
    world = World(mode, 4, checkpoint)
    for turn in range(25):
        world.turn([turn, *T[:11]], [4, 8, 12])
    world.assert_whole()


@pytest.mark.parametrize("abort_first", [True, False])
def test_case_06_a_late_result_after_the_abort(abort_first: bool, mode: str) -> None:
    world = World(mode)
    life = world.start(T[:12])
    world.forward(life, 4, track=4 if world.tracks else None)
    world.cache_unfinished(life)
    assert world.cache.extend(life.req, 8)
    if not abort_first:
        world.cache.commit(life.req, 4)
    world.cache.release(life.req)
    with pytest.raises(InvalidArgumentError, match="does not run"):
        world.cache.commit(life.req, 8)
    with pytest.raises(InvalidArgumentError, match="does not run"):
        world.cache.track_slot(life.req)
    world.cache.release(life.req)
    world.assert_whole()


def test_case_07_slots_that_are_free_already_in_the_tree() -> None:
    world = World()
    (state,) = take_slots(world, 1)
    world.cache.mark_written(state, 3)
    world.cache.insert(T[:3], [1, 2, 3], state)
    with pytest.raises(InvariantError, match=r"KV slots \[1, 2, 3\] are held, but free"):
        world.cache.sanity_check()


def test_case_09_and_12_states_that_a_request_holds_have_a_bound(mode: str, checkpoint: str | None) -> None:
    """The published number is enough for a whole life without a skip, however long, and one less is not."""
    needed = World(mode, 1, checkpoint).cache.states_per_request
    world = World(mode, 1, checkpoint, states=needed, checkpoint_states=1)
    life = world.start(T)
    for stop in range(4, 41, 4):
        world.forward(life, stop, track=stop if world.tracks else None)
        # A second tracked state before the first was cached: the lazy slot is needed.
        world.forward(life, stop, track=stop if world.tracks else None)
        assert world.cache_unfinished(life)
        world.settle()
        world.cache.sanity_check()
    assert not skipped(world)
    short = World(mode, 1, checkpoint, states=needed - 1, checkpoint_states=1) if needed > 1 else None
    if short is not None:
        late = short.request(T)
        short.match(late)
        cached = short.admit(late)
        for stop in (4, 8) if cached else ():
            cached = short.forward(late, stop, track=stop if short.tracks else None) and cached
            cached = short.cache_unfinished(late) and cached
        assert not cached or skipped(short) or None in late.req.mamba_ping_pong_track_buffer


def test_case_10_nothing_of_before_a_reset_is_restored(mode: str, checkpoint: str | None) -> None:
    world = World(mode, 1, checkpoint)
    world.turn(T[:8], [4, 8])
    world.cache.reset()
    assert world.cache.total_size() == (0, 0)
    assert world.cache.match_prefix(T[:8]).length == 0
    world.assert_whole()


def test_case_13_reset_while_copies_are_under_way(mode: str, checkpoint: str | None) -> None:
    world = World(mode, 1, checkpoint, states=8, checkpoint_states=2)
    world.turn(T[:8], [8])
    life, waiting = world.start(T[:12]), world.request(T[:10])
    world.forward(life, 12, track=12 if world.tracks else None)
    world.cache_unfinished(life)
    assert world.match(waiting).cow == "queued"
    source = waiting.req.mamba_cow_src_index
    world.launch_copies()
    world.cache.reset()
    cached = world.pools.checkpoint_allocator or world.pools.state_allocator
    rest = cached.alloc(cached.available)
    assert rest is not None
    assert source not in rest.tolist()
    cached.free(rest)
    with pytest.raises(StaleNodeError, match="match it again"):
        world.cache.admit(waiting.req)
    with pytest.raises(StaleNodeError, match="release it"):
        world.cache.extend(life.req, 13)
    assert not world.cache_finished(life)
    world.cache.release(waiting.req)
    world.settle()
    assert world.cache.index.stats().locks_held == 0


def test_after_a_reset_a_request_without_a_prefix_is_cached_all_the_same(mode: str) -> None:
    world = World(mode)
    life = world.start(T[:8])
    world.forward(life, 8, track=8 if world.tracks else None)
    world.cache.reset()
    assert world.cache_finished(life)
    world.look()
    assert world.cache.match_prefix(T[:8]).length == 8


# ---- B. Wrong states ----


def test_case_15_a_state_of_another_length() -> None:
    world = World()
    (state,) = take_slots(world, 1)
    slots = world.pools.kv_allocator.alloc(4)
    world.cache.mark_written(state, 8)
    with pytest.raises(InvalidArgumentError, match="written for 8 tokens, not 4"):
        world.cache.insert(T[:4], slots, state)
    assert world.cache.total_size() == (0, 0)


def test_case_16_the_next_chunk_is_launched_before_the_copy_has_run(mode: str, checkpoint: str | None) -> None:
    world = World(mode, 1, checkpoint, states=16)
    life = world.start(T[:12])
    for stop in (4, 8, 12):
        world.forward(life, stop, track=stop if world.tracks else None)
        world.cache_unfinished(life)
    world.launch_copies()
    world.settle()
    world.look()
    for stop in (4, 8, 12):
        assert world.cache.match_prefix(T[:stop]).length == stop
        other = world.start([*T[:stop], 99, 98])
        assert other.req.cache_protected_len == stop
        world.forward(other, stop + 1)
        world.cache.release(other.req)
    world.settle()


def test_case_16_a_pass_must_not_overtake_the_copies() -> None:
    world = World()
    life = world.start(T[:8])
    world.cache.extend(life.req, 4)
    with pytest.raises(InvalidArgumentError, match="take_pending_copies"):
        world.cache.commit(life.req, 4)
    world.forward(life, 4)
    world.cache_unfinished(life)
    world.cache.extend(life.req, 8)
    with pytest.raises(InvalidArgumentError, match="take_pending_copies"):
        world.cache.commit(life.req, 8)
    assert life.req.kv_committed_len == 4


def test_case_16_nor_a_track_slot_that_is_stored_in_place() -> None:
    world = World("extra_buffer", checkpoint="int8", track_slots=1)
    life = world.start(T[:8])
    world.forward(life, 4, track=4)
    world.cache_unfinished(life)
    world.cache.extend(life.req, 8)
    world.cache.track_slot(life.req)
    world.cache.commit(life.req, 8)
    with pytest.raises(InvalidArgumentError, match="take_pending_copies"):
        world.cache.tracked(life.req, 8)


def test_case_17_drafts_that_were_rejected() -> None:
    world = World()
    life = world.start(T[:8])
    world.forward(life, 6, drafts=2, restore=False)
    assert not world.cache_unfinished(life)
    assert skipped(world) == {"skipped_rejected": 1}
    assert not world.cache_finished(life)
    assert world.cache.match_prefix(T[:8]).length == 0
    world.assert_whole()


@pytest.mark.parametrize("mode", MODES[1:])
def test_case_17_a_state_tracked_over_rejected_drafts(mode: str) -> None:
    """Not even when other tokens come in their place; the older one is kept."""
    world = World(mode)
    life = world.start(T[:12])
    world.forward(life, 4, track=4)
    world.forward(life, 6, drafts=4, track=8)
    assert skipped(world) == {"skipped_rejected": 1}
    world.forward(life, 12)
    assert world.cache_finished(life)
    world.look()
    assert world.cache.match_prefix(T[:12]).length == 4


@pytest.mark.parametrize("mode", MODES[1:])
def test_case_17_tokens_taken_back_below_a_tracked_state(mode: str) -> None:
    world = World(mode)
    life = world.start(T[:2])
    life.req.output_ids += [1, 2, 1, 2]
    world.forward(life, 6, track=6)
    world.roll_back(life, 4)
    world.forward(life, 6)
    assert not world.cache_finished(life)
    assert skipped(world) == {"skipped_rejected": 1}


@pytest.mark.parametrize("mode", MODES[1:])
def test_case_18_track_fields_are_for_one_pass(mode: str) -> None:
    world = World(mode)
    life = world.start(T[:12])
    world.forward(life, 8, track=8)
    world.forward(life, 10)
    with pytest.raises(InvalidArgumentError, match="named none"):
        world.cache.tracked(life.req, 10)
    assert life.req.mamba_last_track_seqlen == 8
    world.cache_finished(life)
    assert world.cache.match_prefix(T[:12]).length == 8


def test_case_19_nothing_to_cache_makes_no_node(mode: str, checkpoint: str | None) -> None:
    world = World(mode, 1, checkpoint)
    life = world.start(T[:4])
    world.launch_copies()
    world.cache.commit(life.req, 0)
    assert not world.cache_unfinished(life)
    assert not world.cache_finished(life)
    assert world.cache.index.node_count == 0
    early = world.start(T[:4])
    assert not world.cache_finished(early)
    world.assert_whole()


def test_case_22_a_slot_that_nobody_wrote() -> None:
    world = World("extra_buffer")
    life = world.start(T[:8])
    assert world.cache.track_slot(life.req) is not None
    world.forward(life, 8)
    assert not world.cache_unfinished(life)
    (state,) = take_slots(world, 1)
    with pytest.raises(InvalidArgumentError, match="never written"):
        world.cache.insert(T[:4], world.pools.kv_allocator.alloc(4), state)


def test_case_23_a_new_request_starts_from_zeros(mode: str) -> None:
    world = World(mode, states=4)
    assert world.pools.state.temporal is not None
    world.pools.state.temporal.fill_(float("nan"))
    world.pools.state.conv[0].fill_(float("nan"))
    life = world.start(T[:4])
    assert life.req.mamba_needs_clear
    world.forward(life, 4)
    assert not life.req.mamba_needs_clear
    world.settle()


def test_case_23_also_when_a_first_match_brought_its_slot_and_the_second_hits_nothing() -> None:
    world = World()
    world.turn(T[:8], [8])
    life = world.request(T[:10])
    world.match(life)
    world.launch_copies()
    assert world.match(life, limit=0).length == 0
    assert world.admit(life)
    world.forward(life, 4)
    world.settle()


def test_a_hit_whose_state_was_not_copied_does_not_run() -> None:
    world = World()
    world.turn(T[:8], [8])
    life = world.request(T[:10])
    world.match(life)
    world.settle()
    assert world.match(life, cow=False).length == 8
    with pytest.raises(InvalidArgumentError, match="cow_mamba=True"):
        world.cache.admit(life.req)


def test_case_24_the_length_is_what_the_caller_says() -> None:
    """A padded pass computes 4 places, 1 of them real."""
    world = World()
    life = world.start(T[:5])
    world.cache.extend(life.req, 8)
    world.forward(life, 5)
    assert world.cache_finished(life)
    world.look()
    assert world.cache.match_prefix(T[:8]).length == 5


def test_case_25_a_retracted_request_starts_from_what_is_cached(mode: str, checkpoint: str | None) -> None:
    world = World(mode, 1, checkpoint)
    life = world.start(T[:8])
    world.forward(life, 8, track=8 if world.tracks else None)
    life.req.output_ids.append(9)
    world.forward(life, 9)
    life.req.output_ids.append(10)
    world.cache_finished(life)
    world.settle()
    other = world.start(T[20:28])
    world.forward(other, 8)
    world.match(life)
    assert life.req.cache_protected_len == (8 if world.tracks else 9)
    assert world.admit(life)
    assert world.forward(life, 10)
    world.settle()


def test_case_26_a_key_that_is_shorter_than_the_state() -> None:
    world = World()
    life = world.start(T[:4])
    life.req.output_ids += [7, 7, 7]
    world.forward(life, 4)
    world.cache_unfinished(life)
    world.forward(life, 7)
    world.cache.commit(life.req, 5)
    assert not world.cache_finished(life)
    assert skipped(world) == {"skipped_rejected": 1}
    world.settle()
    assert world.cache.match_prefix([*T[:4], 7, 7, 7]).length == 4
    with pytest.raises(InvalidArgumentError, match="length is 3"):
        world.cache.commit(world.start(T[:6]).req, 3)


def test_case_28_a_hit_needs_both() -> None:
    world = World()
    world.turn(T[:8], [4, 8])
    world.cache.evict(mamba_num=1)
    found = world.cache.match_prefix(T[:6]).match
    assert (found.length, found.kv_length, found.reason) == (0, 6, "state evicted")


def test_case_33_the_source_of_a_copy_is_pinned(checkpoint: str | None) -> None:
    world = World("no_buffer", 1, checkpoint)
    world.turn(T[:8], [8])
    life = world.request(T[:10])
    world.match(life)
    source = life.req.mamba_cow_src_index
    assert len(world.cache.evict(num_tokens=100, mamba_num=100).state_slots) == 0
    world.admit(life)
    world.forward(life, 9)
    assert len(world.cache.evict(mamba_num=100).state_slots) == 0
    world.device()
    world.report()
    assert life.req.mamba_cow_src_index is None
    assert world.cache.evict(mamba_num=100).state_slots.tolist() == [source]
    world.cache.release(life.req)
    world.assert_whole()


# ---- C. Eviction and starvation ----


def test_case_34_no_slot_is_no_error(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World(mode)
    world.turn(T[:8], [8])
    locks = [world.cache.inc_lock_ref(node) for node in [world.cache.match_prefix(T[:8]).match.node] if node]
    life = world.start(T[20:30])
    world.forward(life, 4, track=4 if world.tracks else None)
    take_slots(world, world.pools.state_allocator.available)
    held = life.req.state_slots()
    with caplog.at_level(logging.WARNING, logger="stemcache"):
        assert not world.cache_unfinished(life)
        assert not world.cache_unfinished(life)
    assert [record.message.split(":")[0] for record in caplog.records] == ["a state was not cached"]
    assert skipped(world) == {"skipped_no_slot": 2}
    assert (life.req.state_slots(), life.req.cache_protected_len) == (held, 0)
    assert life.req.prefix_indices.tolist() == world.pools.rows.read(life.req.req_pool_idx or 0, 0, 4).tolist()
    waiting = world.request(T[:9])
    assert world.match(waiting).cow == "no slot"
    assert (waiting.req.lock, waiting.req.mamba_pool_idx) == (None, None)
    assert world.match(waiting, limit=0).cow == "none"
    assert not world.admit(waiting)
    for lock in locks:
        world.cache.dec_lock_ref(lock)
    world.cache.release(waiting.req)
    # A finished request gives its own slot, and needs no other.
    assert world.cache_finished(life)


def test_nothing_is_evicted_in_vain(mode: str) -> None:
    world = World(mode, states=5, kv_tokens=20)
    world.turn(T[:8], [8])
    assert world.cache.total_size() == (8, 1)
    busy = world.start(T[20:30])
    taken = take_slots(world, world.pools.state_allocator.available)
    assert not world.cache.can_admit(0, 2)
    waiting = world.request(T[30:34])
    world.match(waiting)
    if world.cache.mode.first_tracks:
        assert not world.admit(waiting)
    assert not world.cache.extend(busy.req, 21)
    assert world.cache.total_size() == (8, 1)
    world.pools.state_allocator.free(taken)


def test_a_state_that_the_tree_has_already_needs_no_room(mode: str, checkpoint: str | None) -> None:
    """Two requests compute the same; the second one's call evicts nobody."""
    world = World(mode, 1, checkpoint, states=10, checkpoint_states=2)
    first, second = world.start(T[:8]), world.start(T[:8])
    world.turn(T[30:34], [4])
    for life in (first, second):
        world.forward(life, 8, track=8 if world.tracks else None)
    world.cache_unfinished(first)
    world.settle()
    cached = world.pools.checkpoint_allocator or world.pools.state_allocator
    if cached.available:
        cached.alloc(cached.available)
    assert world.cache_unfinished(second)
    assert world.cache.total_size()[1] == 2
    assert second.req.prefix_indices.tolist() == first.req.prefix_indices.tolist()


def test_case_36_the_identical_prompt_again(mode: str) -> None:
    """All but one token may be matched, so a checkpoint must lie below the end; the first repetition is told where."""
    world = World(mode)
    world.turn(T[:12], [12])
    again = world.start(T[:12])
    assert again.req.cache_protected_len == 0
    branch = again.req.mamba_branching_seqlen
    assert branch == 10
    for stop in (branch, 12):
        world.forward(again, stop, track=stop if world.tracks else None)
        world.cache_unfinished(again)
    world.cache_finished(again)
    world.settle()
    assert world.turn(T[:12], [12]) == branch


def test_case_37_a_shared_prefix_with_tails_of_their_own(mode: str, checkpoint: str | None) -> None:
    world = World(mode, 1, checkpoint)
    shared, tails = T[:8], ([30, 31, 32], [33, 34, 35], [36, 37, 38])
    world.turn([*shared, *tails[0]], [11])
    second = world.start([*shared, *tails[1]])
    assert (second.req.cache_protected_len, second.req.mamba_branching_seqlen) == (0, 8)
    world.forward(second, 8, track=8 if world.tracks else None)
    world.cache_unfinished(second)
    world.forward(second, 11)
    world.cache_finished(second)
    world.settle()
    assert world.turn([*shared, *tails[2]], [11]) == 8


def test_case_39_can_admit_tells_the_truth(mode: str) -> None:
    world = World(mode, 4, kv_tokens=32, states=6)
    world.turn(T[:8], [8])
    most = 4 + world.cache.index.evictable_states + world.pools.state_allocator.available
    states = next(n for n in range(most, -1, -1) if world.cache.can_admit(0, n))
    tokens = next(n for n in range(100, -1, -1) if world.cache.can_admit(n, 0))
    assert (tokens, states) == (32, 6)
    assert world.cache.can_admit(32, 6)
    life = world.start(T[20:30])
    assert world.cache.extend(life.req, tokens)
    assert not world.cache.can_admit(1, 0)
    assert not world.cache.extend(life.req, tokens + 1)
    with pytest.raises(InvalidArgumentError, match="do not fit a row"):
        world.cache.extend(life.req, 49)
    world.cache.sanity_check()


# ---- D. Locking ----


@pytest.mark.parametrize("evict_before_unlock", [True, False])
def test_case_43_a_state_that_comes_back_under_a_lock(evict_before_unlock: bool) -> None:
    world = World()
    world.turn(T[:8], [4, 8])
    node = world.cache.index.peek(T[:4]).node
    assert node is not None
    world.cache.evict(mamba_num=1)
    lock = world.cache.inc_lock_ref(node)
    assert world.turn(T[:4], [4]) == 0
    assert world.cache.match_prefix(T[:4]).length == 4
    if evict_before_unlock:
        world.cache.evict(num_tokens=100, mamba_num=100)
        assert world.cache.total_size() == (4, 0)
    world.cache.dec_lock_ref(lock)
    world.cache.evict(num_tokens=100)
    assert world.cache.total_size() == (0, 0)
    world.assert_whole()


def test_case_44_an_eviction_within_a_match_leaves_the_locks_of_others() -> None:
    world = World(states=4)
    world.turn(T[:8], [4, 8])
    running = world.start(T[:9])
    world.settle()
    locked = world.cache.full_protected_size()
    taken = take_slots(world, world.pools.state_allocator.available)
    other = world.request(T[:6])
    assert world.match(other).cow == "queued"
    assert world.cache.total_size() == (8, 1)
    world.cache.release(other.req)
    assert world.cache.full_protected_size() == locked == 8
    world.pools.state_allocator.free(taken)
    world.cache.release(running.req)
    world.assert_whole()


def test_case_45_a_running_request_pins_no_state(mode: str, checkpoint: str | None) -> None:
    world = World(mode, 1, checkpoint)
    world.turn(T[:8], [8])
    life = world.start(T[:12])
    world.launch_copies()
    world.settle()
    assert (world.cache.mamba_protected_size(), world.cache.full_protected_size()) == (0, 8)
    world.forward(life, 10, track=10 if world.tracks else None)
    assert world.cache_unfinished(life)
    world.settle()
    assert (world.cache.mamba_protected_size(), world.cache.full_protected_size()) == (0, 10)
    assert len(world.cache.evict(mamba_num=10).state_slots) == 2
    world.forward(life, 12, track=12 if world.tracks else None)
    assert world.cache_finished(life)
    world.settle()
    assert world.cache.match_prefix(T[:12]).length == 12


def test_case_46_a_handle_of_something_that_is_gone() -> None:
    world = World()
    world.turn(T[:8], [8])
    node = world.cache.match_prefix(T[:8]).match.node
    assert node is not None
    world.cache.evict(num_tokens=8)
    with pytest.raises(StaleNodeError):
        world.cache.inc_lock_ref(node)
    assert world.cache.full_evictable_size() == 0


# ---- E. Pages, chunks, keys ----


@pytest.mark.parametrize("page_size", [2, 4, 16])
def test_case_49_any_page_size_in_every_mode(mode: str, page_size: int) -> None:
    world = World(mode, page_size, kv_tokens=64)
    life = world.start(T[:35])
    world.forward(life, 32, track=32 if world.tracks else None)
    assert world.cache_unfinished(life)
    world.forward(life, 35, track=35 if world.tracks else None)
    assert not world.cache_finished(life)
    assert skipped(world) == {"skipped_unaligned": 1}
    world.settle()
    assert world.turn(T[:40], []) == 32


def test_keys_are_floored_and_a_miss_changes_nothing() -> None:
    world = World("no_buffer", 4)
    world.turn(T[:8], [8])
    for stop in range(1, 8):
        assert world.cache.match_prefix([*T[:stop], 99]).length == 0
    assert world.cache.index.node_count == 1
    state, slots = take_slots(world, 1)[0], world.pools.kv_allocator.alloc(12)
    world.cache.mark_written(state, 12)
    done = world.cache.insert(T[:14], slots, state, state_length=12)
    assert (done.prefix_length, world.cache.total_size()) == (8, (12, 2))
    world.cache.sanity_check()


def test_case_51_the_path_has_a_hole(mode: str, checkpoint: str | None) -> None:
    """Another request's KV reaches further than its states: what this one caches is exact all the same."""
    world = World(mode, 1, checkpoint, states=16)
    world.turn(T[:16], [4, 16])
    first, second = world.start(T[:20]), world.start(T[:12])
    world.cache.evict(mamba_num=10)
    for life, stop in ((first, 20), (second, 12)):
        world.forward(life, stop, track=stop if world.tracks else None)
        assert world.cache_unfinished(life)
        world.cache.sanity_check()
        assert life.req.cache_protected_len == stop
        assert set(life.req.prefix_indices.tolist()) <= set(world.cache.all_values_flatten().tolist())
    world.settle()
    world.look()
    assert first.req.prefix_indices[:12].tolist() == second.req.prefix_indices.tolist()
    for life in (first, second):
        world.cache.release(life.req)
    world.assert_whole()


def test_case_53_an_exact_hit_leaves_a_token_to_compute(mode: str) -> None:
    world = World(mode)
    world.turn(T[:12], [8, 12])
    life = world.start(T[:12])
    assert life.req.cache_protected_len == 8 < len(life.req)
    world.forward(life, 12)
    world.settle()
    with pytest.raises(InvalidArgumentError, match="one dimension"):
        Request(origin_input_ids=np.zeros((2, 2), dtype=np.int64))


# ---- F. Checkpoints apart ----


def test_case_54_checkpoints_do_not_make_room_for_running_states(mode: str) -> None:
    world = World(mode, 1, "int8", states=6, checkpoint_states=3)
    world.turn(T[:12], [4, 8, 12])
    life = world.start(T[20:28])
    world.forward(life, 4, track=4 if world.tracks else None)
    take_slots(world, world.pools.state_allocator.available)
    assert world.match(world.request(T[:10])).cow == "no slot"
    assert world.cache.total_size()[1] == 3
    # Its own checkpoint needs no running slot, but a checkpoint's.
    assert world.cache_unfinished(life)
    assert world.cache.total_size()[1] == 3


def test_case_55_all_checkpoints_are_locked(mode: str) -> None:
    world = World(mode, 1, "int8", checkpoint_states=1)
    world.turn(T[:4], [4])
    node = world.cache.match_prefix(T[:4]).match.node
    assert node is not None
    lock = world.cache.inc_lock_ref(node)
    life = world.start(T[20:28])
    world.forward(life, 4, track=4 if world.tracks else None)
    assert not world.cache_unfinished(life)
    assert not world.cache_finished(life)
    assert skipped(world) == {"skipped_no_slot": 2}
    world.cache.dec_lock_ref(lock)
    world.assert_whole()


@pytest.mark.parametrize("quantiser", ["none", "int8"])
def test_case_57_a_state_that_is_not_finite_is_never_served(quantiser: str, mode: str) -> None:
    world = World(mode, 1, quantiser)
    life = world.start(T[:8])
    world.forward(life, 8, track=8 if world.tracks else None)
    world.device()
    assert world.pools.state.temporal is not None
    for slot in life.req.state_slots():
        world.pools.state.temporal[1, slot, 0, 2, 3] = float("nan")
    assert world.cache_finished(life)
    world.launch_copies()
    world.device()
    assert world.cache.match_prefix(T[:8]).length == 0
    world.settle()
    assert (world.cache.match_prefix(T[:8]).length, world.cache.total_size()[1]) == (0, 0)
    assert skipped(world) == {"skipped_not_finite": 1}
    world.cache.sanity_check()
    # The next one that is finite is kept.
    world.turn(T[:8], [8])
    assert world.cache.match_prefix(T[:8]).length == 8
    world.assert_whole()


# ---- H. Cost ----


def test_case_62_and_63_a_chunk_costs_its_own_tokens(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    world = World(mode, states=40)
    life = world.start(T)
    real, spans = Request.tokens, []

    def tokens(req: Request, start: int, stop: int) -> Any:
        spans.append(stop - start)
        return real(req, start, stop)

    for stop in range(4, 41, 4):
        world.forward(life, stop, track=stop if world.tracks else None)
        with monkeypatch.context() as patch:
            patch.setattr(Request, "tokens", tokens)
            assert world.cache.cache_unfinished_req(life.req)
    assert spans == [4] * 10


# ---- What is refused loses nothing ----


def test_a_finish_that_is_refused_loses_nothing(mode: str, checkpoint: str | None) -> None:
    """The engine has committed more than it has tokens for."""
    world = World(mode, 1, checkpoint)
    life = world.start(T[:4])
    world.cache.extend(life.req, 6)
    if world.tracks:
        world.cache.track_slot(life.req)
    world.launch_copies()
    world.cache.commit(life.req, 6)
    if world.tracks:
        world.cache.tracked(life.req, 6)
    for call in (world.cache.cache_unfinished_req, world.cache.cache_finished_req):
        with pytest.raises(InvalidArgumentError, match="state_length is 6"):
            call(life.req)
        world.cache.sanity_check()
        assert life.runs
    life.req.output_ids += [7, 8]
    assert world.cache.cache_finished_req(life.req)
    world.assert_whole()


def test_replayssm_caches_what_the_state_has_consumed() -> None:
    world = World()
    life = world.start(T[:12])
    world.forward(life, 8, lag=2)
    assert world.cache_unfinished(life)
    assert life.req.cache_protected_len == 6
    row = life.req.req_pool_idx
    assert row is not None
    world.forward(life, 12, lag=3)
    assert world.cache_finished(life)
    assert world.pools.rows.write_pos.get(row).tolist() == [0]
    world.settle()
    world.look()
    assert world.cache.match_prefix(T[:12]).length == 9


def test_a_disabled_cache_keeps_nothing(mode: str) -> None:
    world = World(mode, disable=True)
    assert world.turn(T[:8], [4, 8]) == 0
    assert world.turn(T[:8], [4, 8]) == 0
    state, slots = take_slots(world, 1)[0], world.pools.kv_allocator.alloc(4)
    done = world.cache.insert(T[:4], slots, state)
    assert (done.prefix_length, done.state_exists, done.node) == (0, True, None)
    assert world.cache.total_size() == (0, 0)
    assert world.cache.match_prefix(T[:4], lock=True).length == 0


def test_one_track_slot_gives_up_a_state_that_was_not_cached() -> None:
    world = World("extra_buffer", track_slots=1)
    life = world.start(T[:12])
    world.forward(life, 4, track=4)
    world.forward(life, 8, track=8)
    assert world.cache_unfinished(life)
    assert world.cache.track_slot(life.req) is not None
    assert not world.cache_unfinished(life)
    world.cache_finished(life)
    world.look()
    assert [world.cache.match_prefix(T[:n]).length for n in (4, 8, 12)] == [0, 8, 8]
    for wrong in (
        {"mode": "no_buffer", "track_slots": 1},
        {"mode": "extra_buffer", "track_slots": 3},
        {"mode": "none"},
    ):
        with pytest.raises(InvalidArgumentError):
            HybridRadixCache(world.pools, **wrong)


def test_a_running_request_is_not_matched_and_a_waiting_one_not_extended() -> None:
    world = World()
    life = world.start(T[:4])
    with pytest.raises(InvalidArgumentError, match="before it runs"):
        world.match(life)
    waiting = world.request(T[:4])
    with pytest.raises(InvalidArgumentError, match="admit"):
        world.cache.extend(waiting.req, 2)
    with pytest.raises(InvalidArgumentError, match="lock=True"):
        world.cache.admit(waiting.req)
    calls: list[dict[str, Any]] = [{}, {"tokens": [1], "req": waiting.req}, {"req": waiting.req, "cow_mamba": True}]
    for arguments in calls:
        with pytest.raises(InvalidArgumentError):
            world.cache.match_prefix(**arguments)
    with pytest.raises(InvalidArgumentError, match="no track slots"):
        world.cache.track_slot(life.req)


def test_stats_say_why_things_were_evicted() -> None:
    world = World(states=2, kv_tokens=10)
    world.turn(T[:8], [8])
    world.turn(T[10:14], [4])
    world.cache.evict(num_tokens=1)
    stats = world.cache.stats()
    assert (stats["evicted_tokens_kv_needed"], stats["evicted_tokens_asked"]) == (8, 4)
    assert (stats["kv_available"], stats["kv_total"], stats["state_available"]) == (10, 10, 2)
    assert torch.equal(world.pools.rows.req_to_token, torch.zeros_like(world.pools.rows.req_to_token))


# ---- Threads ----


def serve(world: World, worker: int) -> int:
    """Requests with a shared prefix, in pools that are too small for all; how many were served."""
    rng, served, cache = random.Random(worker), 0, world.cache
    for _ in range(60):
        life = world.request([1, 2, 3, *(rng.randrange(4) for _ in range(rng.randrange(1, 9)))])
        found = cache.match_prefix(req=life.req, lock=True, cow_mamba=True)
        if found.cow != "no slot" and cache.admit(life.req) and cache.extend(life.req, len(life.req)):
            copies = cache.take_pending_copies()
            copies.run(world.pools)
            slot = cache.track_slot(life.req) if world.tracks else None
            cache.commit(life.req, len(life.req))
            if slot is not None:
                cache.tracked(life.req, len(life.req))
            cache.cache_unfinished_req(life.req)
            cache.copies_done(copies)
            served += 1
        cache.cache_finished_req(life.req, is_insert=rng.random() < 0.7)
        if rng.random() < 0.1:
            cache.sanity_check()
    return served


def test_many_threads_lose_nothing(mode: str, checkpoint: str | None) -> None:
    world = World(mode, 1, checkpoint, kv_tokens=40, states=12, checkpoint_states=3)
    with ThreadPoolExecutor(4) as pool:
        served = [pool.submit(serve, world, worker) for worker in range(4)]
        assert sum(future.result(timeout=60) for future in served)
    world.settle()
    assert (world.cache.stats()["live_requests"], world.cache.index.stats().locks_held) == (0, 0)
    world.assert_whole()
