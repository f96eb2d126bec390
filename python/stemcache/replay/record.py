"""One line of a trace: what must be in it, and what is said when it is not.

A line is a JSON object with `timestamp` (milliseconds), `input_length` and `output_length` (tokens), and
`hash_ids` (one id a block of the input). `out_ids` is optional: the blocks of input and output together, from block
`input_length // block` on. Other fields are left alone.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

# Far above any context window; it keeps a slip of the pen from asking for a terabyte.
LONGEST = 1 << 27
# An id becomes `block` tokens, id * block and up, and these must fit an int64.
LARGEST_ID = 1 << 40


class BadRecord(ValueError):  # noqa: N818 - it never leaves this package: the reader adds file and line
    """What is wrong with a line."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace. `line` says where it stood, from 1 on."""

    line: int
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: Int64Array
    out_ids: Int64Array | None

    @property
    def total_length(self) -> int:
        """Tokens of input and output together."""
        return self.input_length + self.output_length


def parse_record(text: str, line: int) -> Request:
    """The request that a line describes.

    Raises:
        BadRecord: not a JSON object, a field missing, of the wrong type, or out of its range.
    """
    fields = _object(text)
    request = Request(
        line=line,
        timestamp=_timestamp(fields),
        input_length=_length(fields, "input_length", least=1),
        output_length=_length(fields, "output_length", least=0),
        hash_ids=_ids("hash_ids", _field(fields, "hash_ids")),
        out_ids=None if fields.get("out_ids") is None else _ids("out_ids", fields["out_ids"]),
    )
    if request.total_length > LONGEST:
        raise BadRecord(f"input and output have {request.total_length} tokens, more than {LONGEST}")
    return request


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRecord(f"not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"not JSON that can be read: {error}") from None
    if not isinstance(value, dict):
        raise BadRecord(f"not a JSON object, but {_shown(value)}")
    return value


def _field(fields: dict[str, Any], name: str) -> object:
    if name not in fields:
        raise BadRecord(f"the field {name!r} is missing")
    return fields[name]


def _length(fields: dict[str, Any], name: str, least: int) -> int:
    value = _field(fields, name)
    if type(value) is not int:  # a bool is an int, but not a length
        raise BadRecord(f"{name!r} must be a whole number, not {_shown(value)}")
    if value < least:
        raise BadRecord(f"{name!r} must be at least {least}, not {_shown(value)}")
    return value


def _timestamp(fields: dict[str, Any]) -> float:
    value = _field(fields, "timestamp")
    if type(value) not in (int, float):
        raise BadRecord(f"'timestamp' must be a number, not {_shown(value)}")
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0:
        raise BadRecord(f"'timestamp' must be a number of milliseconds from 0 up, not {_shown(value)}")
    return number


def _ids(name: str, value: object) -> Int64Array:
    if not isinstance(value, list):
        raise BadRecord(f"{name!r} must be a list of block ids, not {_shown(value)}")
    for place, number in enumerate(value):
        if type(number) is not int or not 0 <= number < LARGEST_ID:
            raise BadRecord(f"{name}[{place}] must be a whole number from 0 to {LARGEST_ID - 1}, not {_shown(number)}")
    return np.array(value, dtype=np.int64)


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except ValueError:
        return "a very large number"
    return text if len(text) <= 40 else f"{text[:37]}..."
