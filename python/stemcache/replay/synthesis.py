"""Makes block-hash requests out of texts that share parts, without making a single token.

A text is a list of segments. The same segment is the same tokens wherever it stands, and each segment that is not
shared is new. A block is told by the block before it and by the pieces of segments in it, as a real hash chain would.
"""

from typing import NamedTuple

import numpy as np

from stemcache.replay.record import Int64Array, Request

BLOCK = 16


class Segment(NamedTuple):
    """A run of tokens."""

    name: int
    length: int


Text = tuple[Segment, ...]
_Piece = tuple[int, int, int]


class _End(NamedTuple):
    """Where a text stands: its last whole block (-1 for none) and the pieces of the one begun."""

    block: int
    pieces: tuple[_Piece, ...]
    room: int


_BEGIN = _End(-1, (), BLOCK)


class Synthesis:
    """Names segments and blocks, and turns texts into requests."""

    def __init__(self) -> None:
        """Starts with no names given."""
        self._segments = 0
        self._blocks: dict[tuple[int, tuple[_Piece, ...]], int] = {}
        self._steps: dict[tuple[_End, Segment], tuple[list[int], _End]] = {}

    def segment(self, length: int) -> Segment:
        """New text of so many tokens."""
        self._segments += 1
        return Segment(self._segments, length)

    def request(self, timestamp: float, prompt: Text, output: Segment) -> Request:
        """The request that answers a prompt with an output."""
        length = sum(part.length for part in prompt)
        whole = self._ids((*prompt, output))
        return Request(
            line=0,
            timestamp=round(timestamp, 3),
            input_length=length,
            output_length=output.length,
            hash_ids=self._ids(prompt),
            out_ids=whole[length // BLOCK :],
        )

    def _ids(self, text: Text) -> Int64Array:
        ids: list[int] = []
        end = _BEGIN
        for segment in text:
            more, end = self._step(end, segment)
            ids += more
        if end.pieces:
            ids.append(self._name(end.block, end.pieces))
        return np.array(ids, dtype=np.int64)

    def _step(self, end: _End, segment: Segment) -> tuple[list[int], _End]:
        """The whole blocks that a segment fills. Texts share beginnings, so each step is worked out once."""
        if (end, segment) not in self._steps:
            self._steps[end, segment] = self._fill(end, segment)
        return self._steps[end, segment]

    def _fill(self, end: _End, segment: Segment) -> tuple[list[int], _End]:
        ids: list[int] = []
        block, pieces, room = end
        start = 0
        while segment.length - start >= room:
            block = self._name(block, (*pieces, (segment.name, start, start + room)))
            ids.append(block)
            start, pieces, room = start + room, (), BLOCK
        if start < segment.length:
            pieces = (*pieces, (segment.name, start, segment.length))
        return ids, _End(block, pieces, room - segment.length + start)

    def _name(self, before: int, pieces: tuple[_Piece, ...]) -> int:
        return self._blocks.setdefault((before, pieces), len(self._blocks))
