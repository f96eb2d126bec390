"""What it costs to store and to load an int8 checkpoint, beside a plain copy of the same state, on one CPU thread.

Needs torch. All contestants take turns in each round, so that a noisy neighbour hits them alike; `times (median)` is
the median of the rounds' own ratios to the plain copy of that round. `whole` is the same arithmetic without tiles:
float32 temporaries as large as the state. Every answer is checked once before it is timed.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from stemcache.pools.checkpoint import CheckpointPool
from stemcache.pools.layout import StateLayout
from stemcache.pools.state import StatePool

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
Call = Callable[[], object]


def arguments() -> argparse.Namespace:
    """The size of the state, and how often."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--dim", type=int, default=128, help="d_v and d_k")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--rounds", type=int, default=60)
    return parser.parse_args()


def whole_store(state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 and scale of a state, all at once."""
    numbers = state.float()
    scale = numbers.abs().amax(-2, keepdim=True).clamp(min=1e-8) / 127
    return (numbers / scale).round().to(torch.int8), scale


def contestants(layout: StateLayout) -> dict[str, Call]:
    """What takes part, by name; each works on a state of its own size. Slot 1 is the source, slot 2 the target."""
    states = StatePool(layout, 2)
    state, other = (states.temporal[:, i] for i in (1, 2))  # type: ignore[index]
    torch.manual_seed(0)
    for layer in state:
        layer.copy_(torch.randn(layer.shape))
    int8, plain = CheckpointPool(layout, 1), CheckpointPool(layout, 1, quantiser="none")
    packed = whole_store(state)
    check(states, int8, packed)
    return {
        "plain copy": lambda: other.copy_(state),
        "int8 store": lambda: int8.store_from(states, [1], [1]),
        "int8 load": lambda: int8.load_into(states, [1], [2]),
        "none store": lambda: plain.store_from(states, [1], [1]),
        "none load": lambda: plain.load_into(states, [1], [2]),
        "whole int8 store": lambda: whole_store(state),
        "whole int8 load": lambda: other.copy_(packed[0].float() * packed[1]),
    }


def check(states: StatePool, pool: CheckpointPool, packed: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The pool's answer is that of the clumsy way, bit for bit."""
    pool.store_from(states, [1], [1])
    pool.load_into(states, [1], [2])
    loaded = (packed[0].float() * packed[1]).to(pool.layout.temporal_dtype)
    assert pool.take_finite([1]).all()  # noqa: S101
    assert torch.equal(states.gather(2).temporal, loaded)  # type: ignore[arg-type]  # noqa: S101


def times(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call in each round, after two rounds that are not counted."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn >= 2:
                taken[name].append(time.perf_counter() - start)
    return taken


def show(taken: dict[str, list[float]], title: str) -> None:
    """The table."""
    table = Table("", "least ms", "median ms", "times (least)", "times (median)", title=title)
    copy = taken["plain copy"]
    for name, seconds in taken.items():
        ratio = statistics.median(mine / theirs for mine, theirs in zip(seconds, copy, strict=True))
        figures = min(seconds) * 1e3, statistics.median(seconds) * 1e3, min(seconds) / min(copy), ratio
        table.add_row(name, *(f"{figure:.2f}" for figure in figures))
    Console().print(table)


def main() -> None:
    """Measures and prints."""
    args = arguments()
    torch.set_num_threads(1)
    layout = StateLayout(args.layers, (args.heads, args.dim, args.dim), DTYPES[args.dtype])
    size = CheckpointPool.bytes_needed(layout, 1) / CheckpointPool.bytes_needed(layout, 1, "none")
    shape = f"{args.layers} x {args.heads} x {args.dim} x {args.dim} {args.dtype}"
    taken = times(contestants(layout), args.rounds)
    show(taken, f"{shape}, one thread of {os.cpu_count()}, {args.rounds} rounds; int8 takes {size:.3f} of the bytes")


if __name__ == "__main__":
    main()
