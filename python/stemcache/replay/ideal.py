"""What a cache of infinite memory would serve: the yardstick that every replay is held against."""

from dataclasses import dataclass

import numpy as np

from stemcache.replay.record import Int64Array, Request
from stemcache.replay.tokens import block_ids
from stemcache.replay.trace import Trace


@dataclass(frozen=True, slots=True)
class Ideal:
    """The ideal of a trace.

    Attributes:
        served: [requests] tokens of each input that earlier requests had already brought, in whole blocks, the last
            token never among them.
        distinct_tokens: a bound on the distinct tokens of all requests together: what a tree of them would hold.
    """

    served: Int64Array
    distinct_tokens: int


def ideal_of(trace: Trace, *, outputs: bool) -> Ideal:
    """Walks every request's blocks down one trie."""
    trie = _BlockTrie()
    served = [_served(trie, request, trace.block, outputs=outputs) for request in trace.requests]
    partial = sum(_unshared(request, trace.block, outputs=outputs) for request in trace.requests)
    return Ideal(np.array(served, dtype=np.int64), trie.size * trace.block + partial)


class _BlockTrie:
    """Which blocks were seen after which: right also for traces whose ids are not chained."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}

    @property
    def size(self) -> int:
        return len(self._children)

    def add(self, ids: list[int]) -> int:
        """Adds a path and returns how many of its blocks were there already."""
        node, known, children = 0, 0, self._children
        for block in ids:
            before = len(children)
            node = children.setdefault((node, block), before + 1)
            known += len(children) == before
        return known


def _served(trie: _BlockTrie, request: Request, block: int, *, outputs: bool) -> int:
    ids, length = request.hash_ids, request.input_length
    if outputs and request.out_ids is not None:
        ids, length = block_ids(request, block), request.total_length
    known = trie.add(ids[: length // block].tolist())
    return block * min(known, (request.input_length - 1) // block)


def _unshared(request: Request, block: int, *, outputs: bool) -> int:
    """Tokens past the whole blocks with ids."""
    length = request.total_length if outputs else request.input_length
    named = length if request.out_ids is not None else request.input_length
    return length - named // block * block
