"""What a call costs from Python, beside the core alone, on the same inputs as `benches/tree.rs`.

Run `cargo bench` first: the core's medians are read from Criterion's files (`make bench` does both). Medians of
`time.perf_counter_ns` around one call each, microseconds; the garbage collector is off meanwhile. Every answer is
checked once before it is timed.
"""

import argparse
import gc
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from stemcache import RadixIndex

Numbers = npt.NDArray[np.int64]
NODES = (1000, 10_000, 100_000)
LENGTHS = (128, 1024, 8192, 32_768, 131_072)


def tokens(seed: int, n: int) -> Numbers:
    """`n` token ids below 150 000: the generator of `benches/tree.rs` (splitmix64)."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, n + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) % np.uint64(150_000)).astype(np.int64)


def slots(first: int, n: int) -> Numbers:
    """`n` consecutive slots."""
    return np.arange(first, first + n, dtype=np.int64)


def median_us(call: Callable[[], object], repeats: int = 500) -> float:
    """The median time of one call, after a few that are not counted."""
    times = []
    gc.collect()
    gc.disable()
    for turn in range(repeats + 10):
        start = time.perf_counter_ns()
        call()
        if turn >= 10:
            times.append(time.perf_counter_ns() - start)
    gc.enable()
    return statistics.median(times) / 1e3


def path(key: Numbers, nodes: int) -> tuple[RadixIndex, int]:
    """One path of `nodes` equal edges over `key`, and its end."""
    index, end = RadixIndex(), None
    every = slots(1, len(key))
    for i in range(1, nodes + 1):
        start, stop = len(key) * (i - 1) // nodes, len(key) * i // nodes
        end = index.insert(key[:stop], every[:stop], i, owned=start).node
    if end is None:
        raise AssertionError("a path has at least one node")
    return index, end


def core_us(criterion: Path, name: str) -> float | None:
    """Criterion's median for a benchmark, if it was run."""
    file = criterion / name / "new" / "estimates.json"
    if not file.exists():
        return None
    return float(json.loads(file.read_text())["median"]["point_estimate"]) / 1e3


def match_us(index: RadixIndex, query: Numbers) -> float:
    """A match that hits the whole key."""
    if index.match(query).slots.tolist() != slots(1, len(query)).tolist():
        raise AssertionError("a wrong answer is not worth timing")
    return median_us(lambda: index.match(query))


def floor_us(key: Numbers, query: Numbers) -> float:
    """What no cache can avoid: one compare and one copy."""
    return median_us(lambda: (np.array_equal(query, key), query.copy()))


def matches() -> dict[str, float]:
    """Match, by tokens and nodes."""
    found = {}
    for length in LENGTHS:
        key = tokens(length, length)
        for nodes in (1, 64):
            found[f"match/{nodes}_nodes/{length}"] = match_us(path(key, nodes)[0], key.copy())
        found[f"match/floor/{length}"] = floor_us(key, key.copy())
    return found


def inserts() -> dict[str, float]:
    """A duplicate of 9k tokens: the tree keeps its own slots, so each call sees the same tree."""
    key = tokens(1, 9216)
    index, _ = path(key, 1)
    fresh = slots(20_000, 9216)
    if index.insert(key, fresh, 99).freed_slots.tolist() != fresh.tolist():
        raise AssertionError("a wrong answer is not worth timing")
    return {"insert/duplicate_9k": median_us(lambda: index.insert(key, fresh, 99))}


def locks() -> dict[str, float]:
    """A lock and its release, by depth."""
    found = {}
    for depth in (1, 64, 1024):
        index, end = path(tokens(4, 64 * depth), depth)
        found[f"lock_and_unlock/depth/{depth}"] = median_us(lambda: index.unlock(index.lock(end)))  # noqa: B023
    return found


def flat(n: int) -> tuple[RadixIndex, list[int]]:
    """`n` leaves of 16 tokens below the root, the first the oldest."""
    index = RadixIndex()
    nodes = [index.insert(np.full(16, i), slots(1 + 16 * i, 16), 1 + i).node or 0 for i in range(n)]
    return index, nodes


def by_nodes() -> dict[str, float]:
    """Calls on leaves all over a tree of many."""
    found: dict[str, float] = {}
    for n in NODES:
        (index, nodes), turns = flat(n), itertools.cycle(range(0, n * 7919, 7919))
        keys = [np.full(16, i) for i in range(n)]
        if index.match(keys[5]).length != 16:
            raise AssertionError("a wrong answer is not worth timing")
        found |= calls_by_nodes(n, index, nodes, keys, turns)
    return found


def calls_by_nodes(
    n: int, index: RadixIndex, nodes: list[int], keys: list[Numbers], turns: Iterator[int]
) -> dict[str, float]:
    """The calls on one such tree; the eviction comes last, as it empties a tenth of it."""

    def evict_and_insert() -> None:
        evicted = index.evict(tokens=1)
        index.insert(np.full(16, n + next(turns)), evicted.kv_slots, int(evicted.state_slots[0]))

    found = {
        f"by_nodes/match/{n}": median_us(lambda: index.match(keys[next(turns) % n])),
        f"by_nodes/lock_and_unlock/{n}": median_us(lambda: index.unlock(index.lock(nodes[next(turns) % n]))),
        f"by_nodes/evict_one_and_insert_one/{n}": median_us(evict_and_insert),
        f"by_nodes/evict_one/{n}": median_us(lambda: index.evict(tokens=1), repeats=n // 10),
    }
    if index.total_tokens != 16 * (n - n // 10 - 10):
        raise AssertionError("each call evicts one leaf")
    return found


def main() -> None:
    """Prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    arguments.add_argument("--criterion", type=Path, default=target / "criterion", help="Criterion's folder")
    criterion = arguments.parse_args().criterion
    table = Table("call", "core, us", "from Python, us", "binding, us")
    for group in (matches, inserts, locks, by_nodes):
        for name, us in group().items():
            core = None if "floor" in name else core_us(criterion, name)
            row = ("", "") if core is None else (f"{core:.2f}", f"{us - core:.2f}")
            table.add_row(name, row[0], f"{us:.2f}", row[1])
    Console().print(table)


if __name__ == "__main__":
    main()
