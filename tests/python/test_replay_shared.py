"""Real traces, when the folder that has them lies beside the checkout."""

from pathlib import Path

import pytest

from replay_traces import recount
from stemcache.replay.checkpoints import Checkpoints
from stemcache.replay.run import replay
from stemcache.replay.settings import Settings
from stemcache.replay.trace import Trace, read_trace

FOLDER = Path(__file__).parents[3] / "shared" / "traces"
MODES = (Checkpoints(ends=True), Checkpoints(ends=True, branches=True), Checkpoints(ends=True, every=512))

# Percent of the input tokens: ideal, then the three modes, as the folder's README.md has them.
WHOLE = {
    "aibrix_8min.hashids": (5.2, 4.6, 4.7, 4.6),
    "bbh_fewshot.hashids": (90.7, 0.0, 89.5, 59.8),
    "lmcache_miniswe.hashids": (93.4, 93.0, 93.0, 93.3),
    "qmsum_longdoc.hashids": (87.4, 34.3, 76.7, 86.2),
    "tau_airline.hashids": (92.4, 92.3, 92.4, 92.4),
}
LIMITED = ("mooncake_conversation", "mooncake_synthetic")

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no traces at {FOLDER}")


def trace_of(name: str, limit: int | None = None) -> Trace:
    return read_trace(FOLDER / f"{name}.jsonl.gz", limit=limit)


def settings(trace: Trace, points: Checkpoints, *, outputs: bool = False) -> Settings:
    return Settings(page_size=trace.block, chunk=trace.block, outputs=outputs, checkpoints=points)


@pytest.mark.parametrize("name", WHOLE)
def test_shares_agree_with_the_published_ones(name: str) -> None:
    trace, (ideal, *served) = trace_of(name), WHOLE[name]
    for points, expected in zip(MODES, served, strict=True):
        result = replay(trace, settings(trace, points))
        counts = result.counts
        assert counts.share(counts.ideal) == pytest.approx(ideal, abs=0.05)
        assert counts.share(counts.served) == pytest.approx(expected, abs=0.5)
        assert result.problems == []


@pytest.mark.parametrize("name", LIMITED)
@pytest.mark.parametrize("points", MODES, ids=str)
def test_the_first_requests_of_the_large_ones_agree_with_a_recount(name: str, points: Checkpoints) -> None:
    trace = trace_of(name, limit=150)
    assert trace.block == 512
    result = replay(trace, settings(trace, points))
    expected = recount(trace, ends=points.ends, branches=points.branches, every=points.every)
    assert (result.counts.ideal, result.counts.served) == expected
    assert result.problems == []


def test_with_outputs_an_agent_s_ideal_is_higher() -> None:
    trace = trace_of("tau_airline.hashids")
    counts = replay(trace, settings(trace, MODES[0], outputs=True)).counts
    assert counts.share(counts.ideal) == pytest.approx(95.0, abs=0.05)


@pytest.mark.parametrize("page", [1, 16])
def test_a_real_trace_through_small_pools_loses_nothing(page: int) -> None:
    trace = trace_of("tau_airline.hashids", limit=800)
    result = replay(trace, Settings(page_size=page, kv_tokens=60_000, states=60, concurrency=8))
    assert result.problems == []
    assert result.counts.refused == 0
    assert result.evictions.states > 0
