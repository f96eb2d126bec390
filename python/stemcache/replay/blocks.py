"""How many tokens a block has: guessed from the lengths, or checked against them.

A request of n tokens in k blocks of b has `(k - 1) * b < n <= k * b`, so each line leaves a range for b. All lines
together nearly always leave one power of two.
"""

from collections.abc import Sequence

from stemcache.replay.record import BadRecord, Request

_LARGEST_BLOCK = 1 << 20


def guess_block(requests: Sequence[Request]) -> int:
    """The one block that fits every line, or the one power of two that does.

    Raises:
        BadRecord: (line, problem): no block fits, or several do.
    """
    low, high = 1, _LARGEST_BLOCK
    for request in requests:
        least, most = _range(request)
        if least > high or most < low:
            raise BadRecord(request.line, _misfit(request, low, high))
        low, high = max(low, least), min(high, most)
    return check_block(requests, _only(low, high))


def check_block(requests: Sequence[Request], block: int) -> int:
    """The block, when every line agrees with it.

    Raises:
        BadRecord: (line, problem): a line has another number of blocks, or the block is out of range.
    """
    if not 1 <= block <= _LARGEST_BLOCK:
        raise BadRecord(None, f"the block must have from 1 to {_LARGEST_BLOCK} tokens, not {block}")
    for request in requests:
        _check_inputs(request, block)
        _check_outputs(request, block)
    return block


def _range(request: Request) -> tuple[int, int]:
    tokens, count = request.input_length, len(request.hash_ids)
    if not count:
        raise BadRecord(request.line, f"'hash_ids' is empty, but the input has {tokens} tokens")
    return -(-tokens // count), (tokens - 1) // (count - 1) if count > 1 else _LARGEST_BLOCK


def _misfit(request: Request, low: int, high: int) -> str:
    return (
        f"{len(request.hash_ids)} block ids for {request.input_length} input tokens fit no block that the lines before "
        f"allow ({low} to {high} tokens)"
    )


def _only(low: int, high: int) -> int:
    powers = [1 << n for n in range(_LARGEST_BLOCK.bit_length()) if low <= 1 << n <= high]
    if low == high or len(powers) == 1:
        return low if low == high else powers[0]
    raise BadRecord(None, f"blocks of {low} to {high} tokens fit all its lines: say which with --block")


def _check_inputs(request: Request, block: int) -> None:
    expected = -(-request.input_length // block)
    if len(request.hash_ids) != expected:
        problem = f"{request.input_length} input tokens in blocks of {block} need {expected} hash_ids"
        raise BadRecord(request.line, f"{problem}, not {len(request.hash_ids)}")


def _check_outputs(request: Request, block: int) -> None:
    if request.out_ids is None:
        return
    expected = -(-request.total_length // block) - request.input_length // block
    if len(request.out_ids) != expected:
        problem = f"input and output, {request.total_length} tokens in blocks of {block}, need {expected} out_ids"
        raise BadRecord(request.line, f"{problem}, not {len(request.out_ids)}")
