"""Reads block-hash traces: one JSON object a line, plain or gzipped."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from stemcache.replay.blocks import check_block, guess_block
from stemcache.replay.errors import TraceError
from stemcache.replay.record import BadRecord, Request, parse_record

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival, and how many tokens a block has."""

    name: str
    block: int
    requests: list[Request]


def read_trace(path: Path, block: int | None = None, limit: int | None = None) -> Trace:
    """Reads a trace whole.

    Args:
        path: the file; gzip is known by its first bytes, not by its name.
        block: tokens in a block. None: guessed from the lengths.
        limit: read only this many requests.

    Raises:
        TraceError: the file cannot be read, a line is not a request, or the lengths fit no block.
    """
    requests = list(_requests(path, limit))
    if not requests:
        raise TraceError(path, None, "there is no request in it")
    try:
        block = guess_block(requests) if block is None else check_block(requests, block)
    except BadRecord as error:
        raise TraceError(path, *error.args) from None
    return Trace(path.name, block, requests)


def _requests(path: Path, limit: int | None) -> Iterator[Request]:
    taken = 0
    for number, raw in _lines(path):
        if limit is not None and taken >= limit:
            return
        if raw.strip():
            taken += 1
            yield _request(path, number, raw)


def _request(path: Path, number: int, raw: bytes) -> Request:
    try:
        return parse_record(raw.decode("utf-8"), number)
    except UnicodeDecodeError as error:
        raise TraceError(path, number, f"not UTF-8 text: {error.reason} at byte {error.start + 1}") from None
    except BadRecord as error:
        raise TraceError(path, number, str(error)) from None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with _opened(path) as file:
            for number, raw in enumerate(file, 1):
                yield number, raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(path, number + 1, f"the gzip data is broken or cut off: {error}") from None
    except OSError as error:
        raise TraceError(path, None, error.strerror or str(error)) from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP_MAGIC
        file.seek(0)
        if packed:
            with gzip.open(file) as unpacked:
                yield cast("IO[bytes]", unpacked)
        else:
            yield file
