"""From block ids to tokens, and the ideal share."""

import random
from pathlib import Path

import numpy as np
import pytest

from replay_traces import Record, record, recount, write
from stemcache.replay.ideal import ideal_of
from stemcache.replay.tokens import Texts
from stemcache.replay.trace import Trace, read_trace
from stemcache.replay.workloads import WORKLOADS, make_workload


def trace_of(tmp_path: Path, records: list[Record], block: int = 4) -> Trace:
    return read_trace(write(tmp_path / "t.jsonl", records), block)


def test_each_id_is_a_run_of_tokens_of_its_own(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [record(10, [7, 0, 3]), record(8, [7, 1])])
    texts = Texts(trace, outputs=False)
    assert texts.tokens(0).tolist() == [28, 29, 30, 31, 0, 1, 2, 3, 12, 13]
    assert texts.tokens(1).tolist() == [28, 29, 30, 31, 4, 5, 6, 7]


def test_an_output_with_ids_goes_on_in_the_block_that_the_input_began(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [record(6, [1, 2], 5, out_ids=[3, 4])])
    whole = Texts(trace, outputs=True)
    assert whole.length(0) == 11
    assert whole.tokens(0).tolist() == [4, 5, 6, 7, 12, 13, 14, 15, 16, 17, 18]
    assert Texts(trace, outputs=False).tokens(0).tolist() == [4, 5, 6, 7, 8, 9]


def test_outputs_without_ids_share_no_token_with_anything(tmp_path: Path) -> None:
    records = [record(6, [1, 2], 5), record(6, [1, 2], 3), record(5, [1, 9], 2)]
    texts = Texts(trace_of(tmp_path, records), outputs=True)
    outputs = np.concatenate([texts.tokens(n)[records[n]["input_length"] :] for n in range(3)])
    inputs = np.concatenate([texts.tokens(n)[: records[n]["input_length"]] for n in range(3)])
    assert len(set(outputs.tolist())) == 10
    assert not set(outputs.tolist()) & set(inputs.tolist())


def test_the_ideal_counts_whole_blocks_and_never_the_last_token(tmp_path: Path) -> None:
    same = record(8, [1, 2])
    trace = trace_of(tmp_path, [same, same, record(9, [1, 2, 3]), record(7, [1, 4]), record(9, [1, 4, 5])])
    # The last block of an equal input holds its last token; partial blocks never count.
    assert ideal_of(trace, outputs=False).served.tolist() == [0, 4, 8, 4, 4]


def test_with_outputs_the_next_turn_finds_the_answer(tmp_path: Path) -> None:
    turns = [record(6, [1, 2], 5, out_ids=[3, 4]), record(13, [1, 3, 5, 6])]
    trace = trace_of(tmp_path, turns)
    assert ideal_of(trace, outputs=False).served.tolist() == [0, 4]
    assert ideal_of(trace, outputs=True).served.tolist() == [0, 8]


def test_ids_that_are_not_chained_count_only_after_the_same_blocks(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [record(9, [1, 2, 3]), record(9, [5, 2, 3])])
    assert ideal_of(trace, outputs=False).served.tolist() == [0, 0]


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_ideal_equals_a_naive_recount(name: str) -> None:
    trace = make_workload(name, 150, 4)
    assert int(ideal_of(trace, outputs=False).served.sum()) == recount(trace)[0]


def test_distinct_tokens_bound_what_a_tree_of_all_texts_holds(tmp_path: Path) -> None:
    rng = random.Random(3)
    records = [record(n, [100 * (n % 3) + k for k in range(-(-n // 4))], rng.randint(0, 9)) for n in range(1, 60)]
    trace = trace_of(tmp_path, records)
    for outputs in (False, True):
        texts = Texts(trace, outputs=outputs)
        prefixes = {
            tuple(texts.tokens(n)[:k].tolist()) for n in range(len(records)) for k in range(1, texts.length(n) + 1)
        }
        assert len(prefixes) <= ideal_of(trace, outputs=outputs).distinct_tokens
