"""The reader: what it accepts, and what it says of everything else."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from replay_traces import Record, lines, record, write
from stemcache.replay.errors import TraceError
from stemcache.replay.trace import Trace, read_trace

GOOD = [record(40, [1, 2, 3], 5), record(33, [1, 2, 4], 0)]


def read(tmp_path: Path, records: list[Record], block: int | None = 16, limit: int | None = None) -> Trace:
    return read_trace(write(tmp_path / "t.jsonl", records), block, limit)


def refusal(path: Path, block: int | None = 16) -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(path, block)
    return str(caught.value)


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_trace_is_read_plain_or_gzipped(tmp_path: Path, name: str) -> None:
    trace = read_trace(write(tmp_path / name, GOOD))
    assert (trace.name, trace.block) == (name, 16)
    first, second = trace.requests
    assert (first.line, first.input_length, first.output_length, first.timestamp) == (1, 40, 5, 0.0)
    assert first.hash_ids.tolist() == [1, 2, 3]
    assert first.hash_ids.dtype == np.int64
    assert first.out_ids is None
    assert second.line == 2


def test_gzip_is_known_by_its_bytes_not_its_name(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(gzip.compress(lines(GOOD).encode()))
    assert len(read_trace(path).requests) == 2


def test_blank_lines_are_skipped_and_still_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n" + lines(GOOD[:1]) + "\n\n" + lines(GOOD[1:]))
    assert [request.line for request in read_trace(path).requests] == [2, 5]


def test_the_limit_reads_no_further(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(lines(GOOD) + "not json\n")
    assert len(read_trace(path, limit=2).requests) == 2


def test_a_crlf_trace_and_unknown_fields_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes((json.dumps({**GOOD[0], "session": "a", "x": [1]}) + "\r\n").encode())
    assert read_trace(path, 16).requests[0].input_length == 40


BAD_LINES = {
    "not json": ("{", "not JSON: "),
    "cut line": (lines(GOOD)[:30], "not JSON: "),
    "a list": ("[1, 2]", "not a JSON object, but [1, 2]"),
    "a number": ("7", "not a JSON object, but 7"),
    "deep": ("[" * 100_000, "not JSON that can be read"),
    "long number": ('{"timestamp": ' + "9" * 5000 + "}", "not JSON that can be read"),
    "no hash_ids": (json.dumps({k: v for k, v in GOOD[0].items() if k != "hash_ids"}), "'hash_ids' is missing"),
    "no input_length": ("{}", "'timestamp' is missing"),
    "text length": (json.dumps({**GOOD[0], "input_length": "40"}), "'input_length' must be a whole number, not \"40\""),
    "bool length": (json.dumps({**GOOD[0], "input_length": True}), "'input_length' must be a whole number, not true"),
    "float length": (json.dumps({**GOOD[0], "input_length": 40.0}), "'input_length' must be a whole number, not 40.0"),
    "zero input": (json.dumps({**GOOD[0], "input_length": 0}), "'input_length' must be at least 1, not 0"),
    "negative output": (json.dumps({**GOOD[0], "output_length": -1}), "'output_length' must be at least 0, not -1"),
    "huge output": (json.dumps({**GOOD[0], "output_length": 1 << 60}), "more than 134217728"),
    "text time": (json.dumps({**GOOD[0], "timestamp": "now"}), "'timestamp' must be a number, not \"now\""),
    "nan time": (json.dumps({**GOOD[0], "timestamp": float("nan")}), "'timestamp' must be a number of milliseconds"),
    "negative time": (json.dumps({**GOOD[0], "timestamp": -5}), "'timestamp' must be a number of milliseconds"),
    "huge time": (json.dumps({**GOOD[0], "timestamp": 10**400}), "'timestamp' must be a number of milliseconds"),
    "ids not a list": (json.dumps({**GOOD[0], "hash_ids": 3}), "'hash_ids' must be a list of block ids, not 3"),
    "id is text": (json.dumps({**GOOD[0], "hash_ids": [1, "2", 3]}), "hash_ids[1] must be a whole number"),
    "id is negative": (json.dumps({**GOOD[0], "hash_ids": [1, 2, -3]}), "hash_ids[2] must be a whole number from 0"),
    "id is huge": (json.dumps({**GOOD[0], "hash_ids": [1 << 70, 2, 3]}), "hash_ids[0] must be a whole number from 0"),
    "out_ids is text": (json.dumps({**GOOD[0], "out_ids": "x"}), "'out_ids' must be a list of block ids"),
    "too few ids": (json.dumps({**GOOD[0], "hash_ids": [1, 2]}), "need 3 hash_ids, not 2"),
    "no ids": (json.dumps({**GOOD[0], "hash_ids": []}), "need 3 hash_ids, not 0"),
    "too many out_ids": (json.dumps({**GOOD[0], "out_ids": [1, 2, 3]}), "need 1 out_ids, not 3"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path: Path, case: str) -> None:
    text, problem = BAD_LINES[case]
    path = tmp_path / "t.jsonl"
    path.write_text(lines(GOOD) + text + "\n")
    message = refusal(path)
    assert message.startswith(f"{path}: line 3: ")
    assert problem in message
    assert len(message) < 400


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(lines(GOOD).encode() + b'{"timestamp": "\xff"}\n')
    assert f"{path}: line 3: not UTF-8 text" in refusal(path)


@pytest.mark.parametrize("keep", [12, 200, 1500])
def test_a_gzip_cut_off_anywhere_is_refused_with_the_line_it_reached(tmp_path: Path, keep: int) -> None:
    rng = np.random.default_rng(1)
    many = [record(640, rng.integers(0, 1 << 40, 40).tolist()) for _ in range(50)]
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(lines(many).encode())[:keep])
    message = refusal(path)
    assert "the gzip data is broken or cut off" in message
    assert f"{path}: line " in message


def test_a_broken_gzip_is_refused(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(lines(GOOD).encode()))
    whole[-6] ^= 0xFF
    path = tmp_path / "t.gz"
    path.write_bytes(bytes(whole))
    assert "the gzip data is broken or cut off" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"\n\n", gzip.compress(b"")])
def test_an_empty_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    assert refusal(path) == f"{path}: there is no request in it"


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.jsonl")
    assert "Is a directory" in refusal(tmp_path)


@pytest.mark.parametrize("block", [1, 16, 64, 512])
def test_the_block_is_guessed_from_the_lengths(tmp_path: Path, block: int) -> None:
    lengths = [block * 7 + 1, block * 3, block * 9 - block // 3]
    records = [record(n, list(range(-(-n // block)))) for n in lengths]
    assert read(tmp_path, records, None).block == block


def test_a_block_that_is_no_power_of_two_is_guessed_when_nothing_else_fits(tmp_path: Path) -> None:
    records = [record(100 * n + extra, list(range(n + (extra > 0)))) for n in (5, 200) for extra in (0, 1)]
    assert read(tmp_path, records, None).block == 100


def test_a_block_that_cannot_be_guessed_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [record(10, [1])])
    assert "say which with --block" in refusal(path, None)
    assert read_trace(path, 16).block == 16


def test_lines_that_agree_on_no_block_are_refused_at_the_first_that_differs(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [record(160, list(range(10))), record(512, [1])])
    assert f"{path}: line 2: 1 block ids for 512 input tokens fit no block" in refusal(path, None)


@pytest.mark.parametrize("block", [0, -16, 1 << 30])
def test_a_block_out_of_range_is_refused(tmp_path: Path, block: int) -> None:
    assert "the block must have from 1 to" in refusal(write(tmp_path / "t.jsonl", GOOD), block)


def test_a_given_block_is_held_against_every_line(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", GOOD)
    assert f"{path}: line 1: 40 input tokens in blocks of 32 need 2 hash_ids, not 3" in refusal(path, 32)
