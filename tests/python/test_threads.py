"""Everything may be called from many threads: no panic, no lost slot, no deadlock with the GIL."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from stemcache import KvAllocator, RadixIndex, StateAllocator

WORKERS = 4
REQUESTS = 150


def serve(worker: int, index: RadixIndex, kv: KvAllocator, states: StateAllocator) -> None:
    """Requests with a shared prefix and a tail of their own, over pools that are too small for all."""
    rng = random.Random(worker)
    for _ in range(REQUESTS):
        tokens = np.array([1, 2, 3, *(rng.randrange(4) for _ in range(rng.randrange(1, 9)))], dtype=np.int64)
        hit = index.match(tokens, limit=len(tokens) - 1, lock=True)
        assert hit.lock is not None
        new = len(tokens) - hit.length
        slots, state = kv.alloc(new), states.alloc(1)
        while slots is None or state is None:
            evicted = index.evict(tokens=new, states=1)
            kv.free(evicted.kv_slots)
            states.free(evicted.state_slots)
            slots = kv.alloc(new) if slots is None else slots
            state = states.alloc(1) if state is None else state
        done = index.advance(hit.lock, tokens[hit.length :], slots, int(state[0]))
        kv.free(done.insert.freed_slots)
        if done.insert.state_exists:
            states.free(state)
        assert len(done.slots) == new
        index.unlock(done.lock)


def test_many_threads_lose_nothing() -> None:
    index, kv, states = RadixIndex(), KvAllocator(200), StateAllocator(40)
    with ThreadPoolExecutor(WORKERS) as pool:
        for future in [pool.submit(serve, worker, index, kv, states) for worker in range(WORKERS)]:
            future.result(timeout=60)
    index.check_invariants()
    assert index.total_tokens + kv.available == kv.size
    assert index.total_states + states.available == states.size
    assert (index.protected_tokens, index.stats().locks_held) == (0, 0)


def test_long_and_short_calls_side_by_side() -> None:
    """Long calls give up the GIL, short ones do not: whoever waits for the other must not hold it."""
    index = RadixIndex()
    tokens = np.arange(100_000, dtype=np.int64)
    index.insert(tokens, tokens + 1, 1)
    stop = threading.Event()

    def long_calls() -> None:
        while not stop.is_set():
            index.check_invariants()
            index.digest()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(long_calls)
        for _ in range(200):
            assert index.match(tokens[:10]).kv_length == 10
        assert index.match(tokens).length == len(tokens)
        stop.set()
        future.result(timeout=60)
