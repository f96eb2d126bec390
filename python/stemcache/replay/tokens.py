"""From block ids to token ids: each id stands for a fixed run of `block` tokens of its own.

A trace says only whether whole blocks are equal. Two partial blocks, or a partial block and the whole one that it
became a turn later, have different ids and so different tokens from their first one on.
"""

import numpy as np

from stemcache.replay.record import Int64Array, Request
from stemcache.replay.trace import Trace


class Texts:
    """The token ids of a trace's requests.

    With outputs, a request that has `out_ids` is made of its whole input blocks and those, so that the next turn,
    which names the same blocks, finds them. An output without ids is made of tokens that occur nowhere else.
    """

    def __init__(self, trace: Trace, *, outputs: bool) -> None:
        """Sets aside ids for the outputs that have none."""
        self._block = trace.block
        self._outputs = outputs
        self._requests = trace.requests
        self._fresh = _fresh_tokens(trace)

    def length(self, number: int) -> int:
        """Tokens of the request: its input, and its output if outputs are asked for."""
        request = self._requests[number]
        return request.total_length if self._outputs else request.input_length

    def tokens(self, number: int) -> Int64Array:
        """The request's token ids, input first."""
        request = self._requests[number]
        if not self._outputs:
            return self._run(request.hash_ids, request.input_length)
        if request.out_ids is not None:
            return self._run(block_ids(request, self._block), request.total_length)
        start = int(self._fresh[number])
        fresh = np.arange(start, start + request.output_length, dtype=np.int64)
        return np.concatenate([self._run(request.hash_ids, request.input_length), fresh])

    def _run(self, ids: Int64Array, length: int) -> Int64Array:
        grid = ids[:, None] * self._block + np.arange(self._block, dtype=np.int64)
        return grid.reshape(-1)[:length]


def block_ids(request: Request, block: int) -> Int64Array:
    """The ids of input and output together, for a request that has `out_ids`."""
    if request.out_ids is None:
        return request.hash_ids
    return np.concatenate([request.hash_ids[: request.input_length // block], request.out_ids])


def _fresh_tokens(trace: Trace) -> Int64Array:
    """For each request the first of `output_length` tokens that no id and no other output has."""
    lengths = np.array([request.output_length for request in trace.requests], dtype=np.int64)
    first = (1 + max(_largest(request) for request in trace.requests)) * trace.block
    return first + np.cumsum(lengths) - lengths


def _largest(request: Request) -> int:
    largest = int(request.hash_ids.max(initial=0))
    return largest if request.out_ids is None else max(largest, int(request.out_ids.max(initial=0)))
