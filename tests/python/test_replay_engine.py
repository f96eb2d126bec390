"""The replay itself: known answers, tiny pools, pages, concurrency, and that no slot is ever lost."""

import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay_traces import Record, record, recount, write
from stemcache import InvariantError
from stemcache.replay.checkpoints import Checkpoints, parse_checkpoints
from stemcache.replay.engine import Engine
from stemcache.replay.errors import SettingsError
from stemcache.replay.figures import Result
from stemcache.replay.ideal import ideal_of
from stemcache.replay.run import replay
from stemcache.replay.settings import Settings, Sizes
from stemcache.replay.table import operation_rows, rows, title, verdict
from stemcache.replay.trace import Trace, read_trace
from stemcache.replay.workloads import WORKLOADS, make_workload


def trace_of(tmp_path: Path, records: list[Record], block: int = 4) -> Trace:
    return read_trace(write(tmp_path / "t.jsonl", records), block)


def run(trace: Trace, modes: str = "ends", **settings: Any) -> Result:
    result = replay(trace, Settings(checkpoints=parse_checkpoints(modes), **settings))
    assert result.problems == []
    return result


# Three requests on one document of two blocks, with a question of one block each; blocks of 4 tokens.
QUESTIONS = [record(13, [1, 2, 10 * n, 10 * n + 1]) for n in (1, 2, 3)]


def test_states_at_ends_only_miss_a_shared_document(tmp_path: Path) -> None:
    result = run(trace_of(tmp_path, QUESTIONS), "ends", page_size=4, chunk=4, outputs=False)
    counts = result.counts
    assert (counts.requests, counts.input_tokens, counts.served, counts.ideal) == (3, 39, 0, 16)
    assert counts.kv_only == 16
    assert (counts.checkpoints_kept, counts.checkpoints_skipped, counts.refused) == (3, 0, 0)
    # The document once and three questions; the last request ran on four pages of its own beside two of them.
    assert (result.accounts[0].tree, result.accounts[1].tree) == (20, 3)
    assert result.peak_kv == 16 + 16


def test_a_branch_point_serves_the_third_question(tmp_path: Path) -> None:
    counts = run(trace_of(tmp_path, QUESTIONS), "ends,branches", page_size=4, chunk=4, outputs=False).counts
    assert (counts.served, counts.kv_only, counts.checkpoints_kept) == (8, 8, 4)


def test_a_state_at_every_block_reaches_the_ideal(tmp_path: Path) -> None:
    counts = run(trace_of(tmp_path, QUESTIONS), "every:4", page_size=4, chunk=4, outputs=False).counts
    assert (counts.served, counts.kv_only, counts.checkpoints_kept) == (16, 0, 5)


def test_branch_points_alone_keep_nothing_for_nothing_is_there_to_branch_from(tmp_path: Path) -> None:
    result = run(trace_of(tmp_path, QUESTIONS), "branches", page_size=4, chunk=4, outputs=False)
    assert (result.counts.served, result.accounts[0].tree) == (0, 0)


def test_a_branch_point_lies_on_the_chunk_grid(tmp_path: Path) -> None:
    documents = [record(17, [1, 2, 3, 10 * n, 10 * n + 1]) for n in (1, 2, 3)]
    coarse = run(trace_of(tmp_path, documents), "ends,branches", page_size=4, chunk=8, outputs=False).counts
    assert coarse.served == 8


TURNS = [record(6, [1, 2], 5, out_ids=[3, 4]), record(13, [1, 3, 5, 6], 3, out_ids=[7])]


def test_the_next_turn_starts_from_the_end_of_the_last(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, TURNS)
    assert run(trace, page_size=4).counts.served == 8
    assert run(trace, page_size=4, outputs=False).counts.served == 4


def test_at_page_1_a_state_inside_a_block_is_found_by_nobody(tmp_path: Path) -> None:
    """The trace cannot say that a partial block begins the whole one that it became: 11 tokens, 8 in whole blocks."""
    counts = run(trace_of(tmp_path, TURNS), page_size=1).counts
    assert (counts.served, counts.ideal, counts.kv_only) == (0, 8, 8)


def test_an_equal_prompt_serves_all_but_its_last_token_only_with_a_state_there(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [record(8, [1, 2])] * 3)
    assert run(trace, "ends", page_size=4, chunk=4, outputs=False).counts.served == 0
    assert run(trace, "ends,branches", page_size=4, chunk=4, outputs=False).counts.served == 4
    assert run(trace, "every:1", page_size=1, outputs=False).counts.served == 14


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("modes", ["ends", "ends,branches", "ends,every:512", "every:64"])
def test_shares_equal_a_recount_with_sets(name: str, modes: str) -> None:
    trace = make_workload(name, 120, 5)
    points = asdict(parse_checkpoints(modes))
    counts = run(trace, modes, page_size=16, chunk=16, outputs=False).counts
    assert (counts.ideal, counts.served) == recount(trace, **points)


def test_prefill_steps_are_chunks_and_stops_at_checkpoints(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [record(40, list(range(10)))])
    assert run(trace, "ends", page_size=4, chunk=16, outputs=False).counts.prefill_steps == 3
    # Stops at 12, 24, 36, then the rest.
    assert run(trace, "every:12", page_size=4, chunk=16, outputs=False).counts.prefill_steps == 4


@pytest.mark.parametrize("page", [1, 4, 16])
def test_unlimited_pools_never_evict(page: int) -> None:
    for outputs in (False, True):
        result = run(
            make_workload("agent", 120, 2), "ends,branches,every:64", page_size=page, outputs=outputs, concurrency=5
        )
        assert (result.evictions.kv_tokens, result.evictions.states) == (0, 0)
        assert result.counts.checkpoints_skipped == 0
        assert result.peak_kv <= result.sizes.kv


def test_a_page_that_does_not_divide_the_block_never_evicts_either(tmp_path: Path) -> None:
    rng = random.Random(1)
    records = [record(4 * n, [rng.randrange(2) + 2 * k for k in range(n)]) for n in rng.choices(range(1, 20), k=80)]
    result = run(trace_of(tmp_path, records), "ends,branches", page_size=6, chunk=12, outputs=False)
    assert (result.evictions.kv_tokens, result.evictions.states) == (0, 0)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("concurrency", [1, 7])
def test_small_pools_evict_and_lose_nothing(name: str, page: int, concurrency: int) -> None:
    trace = make_workload(name, 80, 6)
    longest = max(request.total_length for request in trace.requests)
    settings: dict[str, Any] = {"page_size": page, "kv_tokens": longest + 32, "concurrency": concurrency}
    result = run(trace, "ends,branches,every:128", states=9, **settings)
    assert result.counts.refused == 0
    assert result.evictions.states > 0
    assert result.evictions.kv_tokens > 0
    assert result.peak_kv <= result.sizes.kv
    assert result.peak_states <= 9


@pytest.mark.parametrize("seed", range(40))
def test_any_small_pool_serves_what_fits_and_loses_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    block, page = rng.choice([(4, 1), (4, 2), (4, 4), (4, 8)])
    lengths = [rng.randint(1, 40) for _ in range(60)]
    records = [
        record(n, [rng.randrange(2) + 10 * k for k in range(-(-n // block))], rng.randint(0, 12)) for n in lengths
    ]
    kv_tokens = rng.randint(page, 90)
    every = page * rng.randint(1, 6)
    result = run(
        trace_of(tmp_path, records, block),
        rng.choice(["ends", "ends,branches", f"every:{every}", f"ends,branches,every:{every}"]),
        page_size=page,
        kv_tokens=kv_tokens,
        states=rng.randint(1, 6),
        concurrency=rng.randint(1, 5),
        outputs=rng.random() < 0.8,
    )
    outputs = result.settings.outputs
    needs = [-(-(one["input_length"] + outputs * one["output_length"]) // page) * page for one in records]
    assert result.counts.refused == sum(need > result.sizes.kv for need in needs)
    assert result.counts.served <= result.counts.input_tokens


def test_a_request_larger_than_the_pool_is_refused_and_the_others_are_not(tmp_path: Path) -> None:
    records = [record(8, [1, 2]), record(100, list(range(25))), record(9, [1, 2, 3])]
    counts = run(trace_of(tmp_path, records), page_size=4, kv_tokens=40, outputs=False).counts
    assert (counts.requests, counts.refused, counts.served) == (3, 1, 8)
    assert counts.input_tokens == 117


def test_an_output_counts_when_a_request_is_refused(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [record(8, [1, 2], 40)])
    assert run(trace, page_size=4, kv_tokens=40).counts.refused == 1
    assert run(trace, page_size=4, kv_tokens=40, outputs=False).counts.refused == 0


def test_with_one_state_a_hit_is_given_up_rather_than_the_request(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [record(8, [1, 2]), record(12, [1, 2, 3])])
    one = run(trace, page_size=4, states=1, outputs=False).counts
    assert (one.served, one.hits_given_up, one.refused) == (0, 1, 0)
    assert run(trace, page_size=4, states=2, outputs=False).counts.served == 8


def test_a_checkpoint_without_a_free_state_is_skipped_and_counted(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [record(9, [1, 2, 3]), record(9, [4, 5, 6])])
    result = run(trace, page_size=4, chunk=4, states=2, concurrency=2, outputs=False)
    # Both run, each with a state of its own; the first to end has no slot for its checkpoint, the second has.
    assert (result.counts.checkpoints_skipped, result.counts.checkpoints_kept) == (1, 1)


def test_requests_in_flight_do_not_see_what_has_not_ended(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [record(8, [1, 2]), record(9, [1, 2, 3]), record(9, [1, 2, 4])])
    served = [run(trace, page_size=4, outputs=False, concurrency=k).counts.served for k in (1, 2, 3)]
    assert served == [16, 8, 0]


def test_equal_requests_in_flight_give_their_duplicates_back(tmp_path: Path) -> None:
    result = run(trace_of(tmp_path, [record(8, [1, 2])] * 4), page_size=4, outputs=False, concurrency=4)
    assert (result.accounts[0].tree, result.accounts[1].tree) == (8, 1)
    assert result.stats.duplicate_tokens == 24


def test_the_same_replay_gives_the_same_figures() -> None:
    trace = make_workload("chat", 100, 9)
    settings = Settings(page_size=16, kv_tokens=20_000, states=30, concurrency=4)
    once, again = replay(trace, settings), replay(trace, settings)
    assert once.counts == again.counts
    assert once.evictions == again.evictions
    assert once.series == again.series


def test_the_series_adds_up_to_the_totals() -> None:
    result = run(make_workload("chat", 50, 9), page_size=16, kv_tokens=20_000, states=30, concurrency=4)
    series, counts = result.series, result.counts
    assert (sum(series.served), sum(series.ideal)) == (counts.served, counts.ideal)
    assert (sum(series.input_tokens), len(series.seconds)) == (counts.input_tokens, counts.requests)
    assert all(tree <= used for tree, used in zip(series.kv_tree, series.kv_used, strict=True))
    assert max(series.states_used) <= result.peak_states


def test_progress_is_told_after_every_request(tmp_path: Path) -> None:
    seen: list[int] = []
    replay(trace_of(tmp_path, QUESTIONS), Settings(page_size=4), seen.append)
    assert seen == [1, 2, 3]


def test_the_figures_agree_with_the_index_s_own_counters() -> None:
    result = run(make_workload("chat", 80, 2), page_size=16, kv_tokens=20_000, states=30, concurrency=4)
    assert result.stats.stored_states == result.counts.checkpoints_kept
    assert result.stats.evicted_states == result.evictions.states
    assert result.stats.evicted_tokens == result.evictions.kv_tokens
    assert result.stats.locks_held == 0


def test_the_rows_say_the_figures(tmp_path: Path) -> None:
    result = run(trace_of(tmp_path, QUESTIONS), "ends,branches", page_size=4, chunk=4, kv_tokens=400, outputs=False)
    told = {name: (number, remark) for name, number, remark in rows(result)}
    assert told["requests"] == ("3", "")
    assert told["served from the cache"] == ("8", "20.5 %")
    assert told["ideal: infinite memory"] == ("16", "41.0 %")
    assert told["KV-only hits lost: no state"] == ("8", "20.5 %")
    assert told["peak KV slots"] == ("28", "of 400 (7.0 %)")
    assert told["peak state slots"][1] == "of as many as needed"
    assert title(result).startswith("t.jsonl (blocks of 4): inputs only, page 4, chunk 4, states at ends,branches")
    assert verdict(result).startswith("every slot accounted for: 400 KV = 20 tree + 380 free, ")


def test_the_operations_add_up() -> None:
    result = run(make_workload("chat", 30, 2), page_size=16)
    *each, total = operation_rows(result)
    assert {"match", "insert", "alloc KV", "alloc state", "unlock"} <= {name for name, *_ in each}
    assert int(total[1].replace(",", "")) == sum(operation.calls for operation in result.operations.values())
    assert result.operations["match"].calls == 30
    assert result.operations_a_second > 0


@pytest.fixture
def ended(tmp_path: Path) -> Engine:
    """A replay that has just ended."""
    trace = trace_of(tmp_path, QUESTIONS)
    settings = Settings(page_size=4, chunk=4, outputs=False, checkpoints=Checkpoints(ends=True))
    engine = Engine(trace, settings, Sizes(400, 20), ideal_of(trace, outputs=False))
    engine.run()
    return engine


def problems(engine: Engine) -> list[str]:
    return [problem for account in engine.pools.accounts() for problem in account.problems]


def test_a_slot_that_nobody_gave_back_is_found(ended: Engine) -> None:
    assert problems(ended) == []
    slots = ended.pools.kv.alloc(8)
    state = ended.pools.states.alloc(1)
    assert slots is not None
    assert state is not None
    found = "\n".join(problems(ended))
    assert f"8 KV slots are out of the pool, but not in the tree, the first of them {slots.min()}" in found
    assert f"1 state slots are out of the pool, but not in the tree, the first of them {state[0]}" in found


def test_a_slot_of_the_tree_that_was_freed_is_found(ended: Engine) -> None:
    page = np.sort(ended.index.all_slots())[:4]
    ended.pools.kv.free(page)
    assert f"4 KV slots are in the tree, but free in the pool, the first of them {page[0]}" in problems(ended)[0]


def test_a_lost_slot_or_lock_or_a_broken_invariant_makes_a_result_unsound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = trace_of(tmp_path, QUESTIONS)

    def leave(engine: Engine, progress: Any) -> None:
        ended_run(engine, progress)
        engine.pools.kv.alloc(4)
        engine.index.match([1], lock=True)
        engine.index.insert(range(900, 904), [396, 397, 398, 399], 19)

    ended_run = Engine.run
    monkeypatch.setattr(Engine, "run", leave)
    result = replay(trace, Settings(page_size=4, kv_tokens=400, states=20))
    assert any("4 KV slots are out of the pool" in problem for problem in result.problems)
    assert any("in the tree, but free in the pool" in problem for problem in result.problems)
    assert verdict(result).startswith("NOT SOUND: ")

    def broken(_: object) -> None:
        raise InvariantError("planted")

    monkeypatch.setattr("stemcache.replay.run._check", broken)
    assert "planted" in replay(trace, Settings(page_size=4)).problems


def test_pools_that_cannot_be_made_are_a_setting_s_fault(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, QUESTIONS)
    with pytest.raises(SettingsError, match="see --kv-tokens, --states, --chunk and --policy"):
        replay(trace, Settings(page_size=4, kv_tokens=1 << 40))
    with pytest.raises(SettingsError, match="mru"):
        replay(trace, Settings(page_size=4, policy="mru"))
