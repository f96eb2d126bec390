"""The figures of a replay as rows, and the rows as a table for the terminal."""

from collections.abc import Iterable

from rich import box
from rich.console import Group
from rich.table import Table

from stemcache.replay.clock import Operation
from stemcache.replay.figures import Result

Row = tuple[str, str, str]


def title(result: Result) -> str:
    """What was replayed, and how."""
    settings = result.settings
    outputs = "with outputs" if settings.outputs else "inputs only"
    grid = f"page {settings.page_size}, chunk {settings.chunk}, states at {settings.checkpoints}"
    return f"{result.trace.name} (blocks of {result.trace.block}): {outputs}, {grid}, {settings.concurrency} in flight"


def rows(result: Result) -> list[Row]:
    """Name, number, remark."""
    counts = result.counts
    return [
        ("requests", f"{counts.requests:,}", ""),
        ("refused: larger than the KV pool", f"{counts.refused:,}", ""),
        ("input tokens", f"{counts.input_tokens:,}", ""),
        ("served from the cache", f"{counts.served:,}", f"{counts.share(counts.served):.1f} %"),
        ("ideal: infinite memory", f"{counts.ideal:,}", f"{counts.share(counts.ideal):.1f} %"),
        ("KV-only hits lost: no state", f"{counts.kv_only:,}", f"{counts.share(counts.kv_only):.1f} %"),
        ("prefill steps", f"{counts.prefill_steps:,}", ""),
        *_states(result),
        *_memory(result),
        ("operations a second", f"{result.operations_a_second:,.0f}", f"{result.seconds:.1f} s in all"),
    ]


def _states(result: Result) -> list[Row]:
    return [
        ("states kept", f"{result.counts.checkpoints_kept:,}", ""),
        ("states skipped: no slot free", f"{result.counts.checkpoints_skipped:,}", ""),
        ("hits given up for a state slot", f"{result.counts.hits_given_up:,}", ""),
    ]


def _memory(result: Result) -> list[Row]:
    evictions, stayed, asked = result.evictions, result.stats.tombstoned_states, result.settings
    return [
        ("evicted KV tokens", f"{evictions.kv_tokens:,}", ""),
        ("evicted states", f"{evictions.states:,}", f"{stayed:,} left their KV there"),
        ("peak KV slots", f"{result.peak_kv:,}", _of(result.peak_kv, result.sizes.kv, asked.kv_tokens)),
        ("peak state slots", f"{result.peak_states:,}", _of(result.peak_states, result.sizes.states, asked.states)),
    ]


def _of(peak: int, size: int, asked: int | None) -> str:
    if asked is None:
        return "of as many as needed"
    return f"of {size:,} ({100 * peak / size:.1f} %)"


def operation_rows(result: Result) -> list[tuple[str, str, str, str]]:
    """Name, calls, microseconds a call, microseconds a request; the most costly first."""
    kinds = sorted(result.operations.items(), key=lambda item: -item[1].nanoseconds)
    total = Operation(
        sum(operation.calls for _, operation in kinds), sum(operation.nanoseconds for _, operation in kinds)
    )
    return [_operation_row(result, name, operation) for name, operation in [*kinds, ("all", total)]]


def _operation_row(result: Result, name: str, operation: Operation) -> tuple[str, str, str, str]:
    each = operation.nanoseconds / 1000 / max(1, operation.calls)
    return name, f"{operation.calls:,}", f"{each:.2f}", f"{result.microseconds(operation):.2f}"


OPERATION_HEADS = ("operation", "calls", "CPU us a call", "CPU us a request")
OPERATION_NOTE = "Calls into the index and the allocators only; the reading of the clock is included."


def verdict(result: Result) -> str:
    """One line: every slot accounted for, or what is wrong."""
    if result.problems:
        return "NOT SOUND: " + "; ".join(result.problems)
    kv, states = (f"= {account.tree:,} tree + {account.free:,} free" for account in result.accounts)
    slots = f"{result.sizes.kv:,} KV {kv}, {result.sizes.states:,} states {states}"
    return f"every slot accounted for: {slots}; all invariants hold, no lock is held"


def render(result: Result) -> Group:
    """Both tables for the terminal."""
    figures = _table(title(result), ("", "", ""), rows(result))
    operations = _table("", OPERATION_HEADS, operation_rows(result))
    operations.caption = OPERATION_NOTE
    return Group(figures, operations)


def _table(caption: str, heads: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=caption or None, title_justify="left", box=box.SIMPLE, show_header=any(heads))
    table.caption_justify = "left"
    for place, head in enumerate(heads):
        number = place == 1 or (place > 1 and any(heads))
        table.add_column(head, justify="right" if number else "left", no_wrap=place < 2)
    for line in lines:
        table.add_row(*line)
    return table
