"""The seeded workloads."""

import hashlib

import numpy as np
import pytest

from stemcache.replay.blocks import check_block
from stemcache.replay.errors import SettingsError
from stemcache.replay.run import replay
from stemcache.replay.settings import Settings
from stemcache.replay.synthesis import BLOCK, Synthesis
from stemcache.replay.trace import Trace
from stemcache.replay.workloads import WORKLOADS, make_workload


def digest(trace: Trace) -> str:
    seen = hashlib.sha256()
    for request in trace.requests:
        assert request.out_ids is not None
        seen.update(repr((request.timestamp, request.input_length, request.output_length)).encode())
        seen.update(request.hash_ids.tobytes() + request.out_ids.tobytes())
    return seen.hexdigest()


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_makes_the_same_requests_and_another_seed_others(name: str) -> None:
    once, again, other = (digest(make_workload(name, 60, seed)) for seed in (1, 1, 2))
    assert once == again
    assert once != other


@pytest.mark.parametrize("name", WORKLOADS)
def test_fewer_requests_are_the_first_of_more(name: str) -> None:
    few, many = make_workload(name, 20, 7), make_workload(name, 40, 7)
    many.requests[20:] = []
    assert digest(few) == digest(many)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_a_sound_trace(name: str) -> None:
    trace = make_workload(name, 100, 3)
    assert check_block(trace.requests, BLOCK) == trace.block
    times = [request.timestamp for request in trace.requests]
    assert times == sorted(times)
    assert min(request.output_length for request in trace.requests) > 0


# What each shape is for: where the hits are, and which states it takes to have them.
SHAPES = {"chat": (75, 95), "agent": (85, 98), "fewshot": (80, 95), "longdoc": (60, 95)}


@pytest.mark.parametrize("name", SHAPES)
def test_a_workload_shares_as_much_as_its_kind_does(name: str) -> None:
    low, high = SHAPES[name]
    counts = replay(make_workload(name, 600, 1), Settings(page_size=BLOCK)).counts
    assert low < counts.share(counts.ideal) < high
    assert counts.share(counts.served) > 0.6 * low


def test_an_unknown_name_and_no_requests_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"'none' is not known; choose from chat, agent, fewshot, longdoc"):
        make_workload("none", 10, 1)
    with pytest.raises(SettingsError, match="at least 1, not 0"):
        make_workload("chat", 0, 1)


def test_blocks_of_texts_are_equal_exactly_where_the_texts_are() -> None:
    make = Synthesis()
    shared, tail, other, answer = (make.segment(n) for n in (40, 20, 20, 9))
    first = make.request(0, (shared, tail), answer)
    second = make.request(0, (shared, other), answer)
    assert first.hash_ids[:2].tolist() == second.hash_ids[:2].tolist()
    assert not set(first.hash_ids[2:].tolist()) & set(second.hash_ids[2:].tolist())
    assert first.out_ids is not None
    turn = make.request(0, (shared, tail, answer, other), answer)
    # 60 input tokens are 3 whole blocks; the answer fills the fourth and begins a fifth.
    assert np.concatenate([first.hash_ids[:3], first.out_ids[:1]]).tolist() == turn.hash_ids[:4].tolist()
    assert first.out_ids[1] not in turn.hash_ids
