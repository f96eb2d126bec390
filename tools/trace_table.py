"""Replays every trace of a folder in each checkpoint mode and prints the shares served as Markdown tables.

    python tools/trace_table.py [FOLDER]        (default: ../shared/traces)

Pools are unlimited. The first table has pages and chunks of the trace's block and no outputs: there the folder's own
README.md, if it is there, says what each share must be, and its figure stands in brackets. The other tables show what
changes at page size 1, and with outputs.
"""

import argparse
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stemcache.replay.checkpoints import parse_checkpoints
from stemcache.replay.errors import ReplayError
from stemcache.replay.run import replay
from stemcache.replay.settings import Settings
from stemcache.replay.trace import Trace, read_trace

MODES = ("ends", "ends,branches", "ends,every:512")
TOLERANCE = 0.5
HEADS = ("trace", "requests", "input tokens", "ideal", *(f"`{mode}`" for mode in MODES))


@dataclass(frozen=True)
class Section:
    """One table: what it is called, whether pages are the trace's blocks (else 1), whether outputs are decoded."""

    title: str
    block_pages: bool
    outputs: bool


SECTIONS = (
    Section("Page = chunk = the trace's block, inputs only", block_pages=True, outputs=False),
    Section("Page = chunk = the trace's block, with outputs", block_pages=True, outputs=True),
    Section("Page 1, chunk = the trace's block, inputs only", block_pages=False, outputs=False),
    Section("Page 1, chunk = the trace's block, with outputs", block_pages=False, outputs=True),
)


def published(folder: Path) -> dict[str, list[float]]:
    """The percentages in the folder's README.md, by trace: ideal, then one for each mode. Empty without one."""
    readme = folder / "README.md"
    rows = re.findall(r"^\| (\w+) \|(.*)\|$", readme.read_text("utf-8"), re.MULTILINE) if readme.exists() else []
    figures = {name: [float(number) for number in re.findall(r"([\d.]+) %", cells)] for name, cells in rows}
    return {name: numbers for name, numbers in figures.items() if len(numbers) == 1 + len(MODES)}


def traces(folder: Path) -> Iterator[tuple[str, Path]]:
    """The traces of a folder, by the name that its README.md has for them."""
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")]):
        yield path.name.split(".")[0], path


def shares(trace: Trace, section: Section) -> list[float]:
    """Percent of the input tokens: the ideal, then what each mode served."""
    found: list[float] = []
    for mode in MODES:
        started = time.perf_counter()
        result = replay(trace, settings(trace, section, mode))
        if result.problems:
            sys.exit(f"{trace.name}, {mode}: {'; '.join(result.problems)}")
        counts = result.counts
        found = found or [counts.share(counts.ideal)]
        found.append(counts.share(counts.served))
        print(f"{section.title}: {trace.name} {mode} {time.perf_counter() - started:.1f} s", file=sys.stderr)
    return found


def settings(trace: Trace, section: Section, mode: str) -> Settings:
    """How a table replays a trace in one mode."""
    page = trace.block if section.block_pages else 1
    return Settings(page_size=page, chunk=trace.block, outputs=section.outputs, checkpoints=parse_checkpoints(mode))


def cells(ours: list[float], theirs: list[float]) -> list[str]:
    """Our figures, with the published ones in brackets; bold where the two disagree."""
    if not theirs:
        return [f"{number:.1f} %" for number in ours]
    pairs = zip(ours, theirs, strict=True)
    return [f"{a:.1f} % ({b:.1f})" if abs(a - b) <= TOLERANCE else f"**{a:.1f} %** ({b:.1f})" for a, b in pairs]


def line(parts: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(parts) + " |"


def print_section(folder: Path, section: Section) -> None:
    """Replays all traces for one table, and prints it."""
    compared = published(folder) if section.block_pages and not section.outputs else {}
    print(f"{section.title}:\n")
    print(line(HEADS))
    print(line(["---"] * len(HEADS)))
    for name, path in traces(folder):
        trace = read_trace(path)
        tokens = sum(request.input_length for request in trace.requests)
        row = cells(shares(trace, section), compared.get(name, []))
        print(line([name, f"{len(trace.requests):,}", f"{tokens:,}", *row]), flush=True)
    print()


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("../shared/traces"), help="a folder of traces")
    folder = parser.parse_args().folder
    if not any(traces(folder)):
        sys.exit(f"{folder}: there is no *.jsonl or *.jsonl.gz in it")
    try:
        for section in SECTIONS:
            print_section(folder, section)
    except ReplayError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
