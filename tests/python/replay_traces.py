"""Small traces for the tests of the replay, and a naive recount of what they can serve."""

import gzip
import json
from pathlib import Path
from typing import Any

from stemcache.replay.trace import Trace

Record = dict[str, Any]


def record(input_length: int, hash_ids: list[int], output_length: int = 0, **more: Any) -> Record:
    """One line of a trace, at time 0."""
    fields: Record = {"timestamp": 0, "input_length": input_length, "output_length": output_length}
    return {**fields, "hash_ids": hash_ids, **more}


def lines(records: list[Record]) -> str:
    return "".join(json.dumps(one) + "\n" for one in records)


def write(path: Path, records: list[Record]) -> Path:
    """Writes a trace, gzipped if the name says so."""
    raw = lines(records).encode()
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
    return path


def recount(trace: Trace, *, ends: bool = False, branches: bool = False, every: int = 0) -> tuple[int, int]:
    """(ideal, served) tokens of a trace's inputs, with sets of block ids only.

    Pages and chunks are the block, nothing is evicted, outputs do not count, ids are chained.
    """
    block, ideal, served = trace.block, 0, 0
    known: set[int] = set()
    cached: set[int] = set()
    states: set[int] = set()
    for request in trace.requests:
        ids = request.hash_ids.tolist()
        usable = ids[: (request.input_length - 1) // block]
        kv = _leading(usable, cached)
        hit = max((n for n in range(1, kv + 1) if usable[n - 1] in states), default=0)
        ideal += block * _leading(usable, known)
        served += block * hit
        whole = request.input_length // block
        points = {whole} if ends else set()
        points |= {kv} if branches and kv > hit else set()
        points |= set(range(every // block, whole + 1, every // block)) if every else set()
        states |= {ids[point - 1] for point in points if point}
        cached |= set(ids[: max(points, default=0)])
        known |= set(ids[:whole])
    return ideal, served


def _leading(ids: list[int], known: set[int]) -> int:
    count = 0
    while count < len(ids) and ids[count] in known:
        count += 1
    return count
