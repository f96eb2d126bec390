"""No call of a scheduler waits for the device."""

import pytest

pytest.importorskip("torch", reason="the cache needs torch")

from cache_world import World
from guards import SyncError, no_sync

T = list(range(1, 33))


@pytest.mark.parametrize("checkpoint", [None, "none", "int8"])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("mode", ["no_buffer", "extra_buffer", "extra_buffer_lazy"])
def test_a_life_without_a_sync(mode: str, page_size: int, checkpoint: str | None) -> None:
    world = World(mode, page_size, checkpoint)
    cache = world.cache
    world.turn(T[:8], [8])
    life = world.request(T[:20])
    with no_sync():
        found = cache.match_prefix(req=life.req, lock=True, cow_mamba=True)
        assert (found.length, cache.admit(life.req)) == (8, True)
        for stop in (12, 16, 20):
            assert cache.extend(life.req, stop)
            slot = cache.track_slot(life.req) if world.tracks else None
            copies = cache.take_pending_copies()
            copies.run(world.pools)
            cache.commit(life.req, stop)
            if slot is not None:
                cache.tracked(life.req, stop)
            if checkpoint is None:
                cache.copies_done(copies)
            assert cache.cache_unfinished_req(life.req)
        assert cache.match_prefix(T).match.kv_length == 20
        cache.dec_lock_ref(cache.inc_lock_ref(found.match.node or 0))
        cache.cache_finished_req(life.req)
        cache.evict(num_tokens=4, mamba_num=1)
        cache.stats()
    cache.sanity_check()


def test_an_insert_without_a_sync() -> None:
    world = World()
    state, slots = world.pools.state_allocator.alloc(1), world.pools.kv_allocator.alloc(4)
    assert state is not None
    assert slots is not None
    with no_sync():
        world.cache.mark_written(int(state[0]), 4)
        assert world.cache.insert(T[:4], slots, int(state[0])).prefix_length == 0
        world.cache.drop_namespace(None)
        world.cache.reset()


def test_the_guard_sees_the_one_place_that_reads_the_device() -> None:
    """Flags of checkpoints, in `copies_done`: after the copies' event, where there is nothing to wait for."""
    world = World(checkpoint="int8")
    life = world.start(T[:8])
    world.forward(life, 8)
    world.cache_unfinished(life)
    world.device()
    world.report()
    copies = world.cache.take_pending_copies()
    copies.run(world.pools)
    with pytest.raises(SyncError), no_sync():
        world.cache.copies_done(copies)
    world.cache.copies_done(copies)
    assert world.cache.match_prefix(T[:8]).length == 8
