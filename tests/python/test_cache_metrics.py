"""The cache's numbers as Prometheus shows them, and what needs torch or prometheus-client."""

import gc
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch", reason="the cache needs torch")
pytest.importorskip("prometheus_client", reason="metrics need prometheus-client")

from prometheus_client import CollectorRegistry, generate_latest

from cache_world import World
from stemcache.errors import InvalidArgumentError

T = list(range(1, 33))


def test_what_is_shown() -> None:
    registry = CollectorRegistry()
    world = World(states=4, kv_tokens=16, metrics=registry)
    world.turn(T[:8], [8])
    world.turn(T[:10], [10])
    life = world.start(T[20:24])

    def value(name: str, **labels: str) -> Any:
        return registry.get_sample_value(f"stemcache_{name}", labels)

    assert value("match_total", reason="namespace") == 1
    assert value("match_total", reason="miss") == 2
    assert value("match_total", reason="hit") == 0
    assert value("matched_tokens_total") == 8
    assert value("evicted_tokens_total", cause="kv_needed") == 0
    assert value("skipped_states_total", reason="no_slot") == 0
    assert value("live_requests") == value("running_requests") == 1
    levels = {state: value("pool_slots", pool="kv", state=state) for state in ("available", "evictable", "protected")}
    assert levels == {"available": 6, "evictable": 10, "protected": 0}
    assert value("pool_slots", pool="state", state="in_use") == len(life.req.state_slots())
    assert value("pool_slots", pool="checkpoint", state="available") is None


def test_checkpoints_are_a_pool_of_their_own() -> None:
    registry = CollectorRegistry()
    world = World(checkpoint="int8", checkpoint_states=4, metrics=registry)
    world.turn(T[:8], [8])
    assert registry.get_sample_value("stemcache_pool_slots", {"pool": "checkpoint", "state": "evictable"}) == 1
    assert registry.get_sample_value("stemcache_pool_slots", {"pool": "state", "state": "evictable"}) == 0


def test_one_cache_a_registry_as_long_as_it_lives() -> None:
    registry = CollectorRegistry()
    world = World(metrics=registry)
    with pytest.raises(InvalidArgumentError, match="give each its own"):
        World(metrics=registry)
    assert b"stemcache_match_total" in generate_latest(registry)
    del world
    gc.collect()
    assert b"stemcache" not in generate_latest(registry)
    World(metrics=registry)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def test_what_needs_torch_is_imported_late() -> None:
    names = "HybridRadixCache", "HybridPools", "StateLayout", "KvLayout", "Request"
    code = f"""
import sys, stemcache
assert "torch" not in sys.modules
assert {{*{names}}} <= {{*dir(stemcache)}} & {{*stemcache.__all__}}
print(*[getattr(stemcache, name).__name__ for name in {names}])
"""
    assert run(code).split() == [*names]


def test_without_torch_the_message_says_what_to_install() -> None:
    code = """
import sys
sys.modules["torch"] = None
import stemcache
stemcache.RadixIndex()
try:
    stemcache.HybridRadixCache
except ImportError as error:
    print(error)
"""
    assert "pip install stemcache[torch]" in run(code)


def test_without_prometheus_client_the_message_says_what_to_install() -> None:
    code = """
import sys
sys.modules["prometheus_client"] = None
try:
    import stemcache.cache.metrics
except ImportError as error:
    print(error)
"""
    assert "pip install stemcache[metrics]" in run(code)
