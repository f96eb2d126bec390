"""`CachedModel` where memory is short, states are packed, calls fail or come from many threads."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the pools need torch")
pytest.importorskip("transformers", minversion="5.24", reason="the bridge is for transformers 5.24 and newer")

import torch

from cached_models import CHUNK, TOLERANCE, Remember, Tokens, cached, error, model_of, plain, prompt, resume
from hf_models import CONFIGS
from stemcache.errors import OutOfSlotsError
from stemcache.integrations.transformers import CachedModel, make_pools

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def mixed_prompts(count: int, longest: int = 90) -> list[Tokens]:
    """Prompts that share beginnings of several lengths."""
    rng = np.random.default_rng(11)
    stem = prompt(longest)
    parts = rng.integers(1, longest, count), rng.integers(1, 25, count), rng.integers(0, 5, count)
    return [np.concatenate([stem[:cut], prompt(int(n), int(seed))]) for cut, n, seed in zip(*parts, strict=True)]


@pytest.mark.parametrize("family", ["falcon_h1", "mamba2"])
@pytest.mark.parametrize(("kv_tokens", "states", "page_size"), [(96, 3, 1), (128, 2, 1), (160, 1, 1), (128, 4, 4)])
def test_tiny_pools_evict_and_the_answers_stay_right(family: str, kv_tokens: int, states: int, page_size: int) -> None:
    model = model_of(family)
    serving = cached(model, kv_tokens, states, page_size=page_size)
    reused = 0
    for tokens in mixed_prompts(14):
        found = resume(serving, tokens)
        assert error(found, plain(model, tokens)) < TOLERANCE
        serving.cache.sanity_check()
        reused += found.reused
    stats = serving.cache.stats()
    assert stats["live_requests"] == 0
    assert stats["evicted_states"] > 0
    # With one state slot a hit's state has nowhere to be copied to.
    assert (reused > 0) == (states > 1)


@pytest.mark.parametrize("family", ["bamba", "mamba2"])
def test_answers_that_do_not_fit_are_right_and_not_cached(family: str) -> None:
    model = model_of(family)
    serving = cached(model, 40, 4)
    for n in (30, 39, 40, 41, 100):
        remember = Remember()
        asked = prompt(n)
        answer = serving.generate(asked, 15, sample=remember, stop_tokens=())
        assert len(answer.tokens) == 15
        assert remember.error(model, asked, answer.tokens) < TOLERANCE
        serving.cache.sanity_check()
    assert serving.cache.stats()["live_requests"] == 0


def test_an_evicted_state_is_computed_anew() -> None:
    model = model_of("falcon_h1")
    serving = cached(model)
    tokens = prompt(60)
    serving.prefill(tokens)
    serving.cache.evict(mamba_num=2)
    again = resume(serving, tokens)
    assert error(again, plain(model, tokens)) < TOLERANCE
    assert again.reused < 3 * CHUNK


@pytest.mark.parametrize("page_size", [4, 16])
def test_with_pages_the_last_whole_page_of_an_answer_is_cached(page_size: int) -> None:
    model = model_of("qwen3_next")
    serving = cached(model, page_size=page_size)
    asked = prompt(35)
    answer = serving.generate(asked, 20, stop_tokens=())
    longer = np.concatenate([asked, answer.tokens, prompt(6)])
    found = resume(serving, longer)
    assert found.reused == (35 + 19) // page_size * page_size
    assert error(found, plain(model, longer)) < TOLERANCE
    serving.cache.sanity_check()


@pytest.mark.parametrize("family", CONFIGS)
def test_int8_states_cost_little(family: str, record_property: Any) -> None:
    """Forced decoding: free-running answers may part at a near tie, or where a router flips."""
    if CONFIGS[family]().model_type == "lfm2":
        pytest.skip("windows alone are kept as they are: test_windows_are_not_packed")
    model = model_of(family)
    serving = cached(model, checkpoint="int8", checkpoint_states=32)
    tokens = prompt(120)
    serving.prefill(tokens[:70])
    found = resume(serving, tokens)
    assert found.reused == 70
    truth = plain(model, tokens)[70:]
    relative = float((found.logits - truth).square().mean().sqrt() / truth.std())
    agreement = float((found.logits.argmax(-1) == truth.argmax(-1)).float().mean())
    record_property("int8_relative_logit_error", relative)
    record_property("int8_forced_decoding_agreement", agreement)
    print(f"{family}: int8 logit error {relative:.1e} of the spread, agreement {agreement:.2f}")  # noqa: T201
    assert 1e-6 < relative < 0.3
    assert agreement > 0.8
    serving.cache.sanity_check()


def test_windows_are_not_packed() -> None:
    model = model_of("lfm2")
    serving = cached(model, checkpoint="int8", checkpoint_states=8)
    tokens = prompt(50)
    serving.prefill(tokens[:30])
    found = resume(serving, tokens)
    assert found.reused == 30
    assert error(found, plain(model, tokens)) < TOLERANCE


def test_tiny_checkpoint_pools_are_right_too() -> None:
    model = model_of("mamba2")
    serving = cached(model, 128, 2, checkpoint="int8", checkpoint_states=3)
    for tokens in mixed_prompts(14):
        found = resume(serving, tokens)
        assert error(found, plain(model, tokens)) < 100 * TOLERANCE
        serving.cache.sanity_check()
    assert serving.cache.stats()["evicted_states"] > 0


class _StopError(Exception):
    pass


def test_a_call_that_fails_leaves_nothing_behind() -> None:
    serving = cached(model_of("qwen3_next"))
    calls = 0

    def fail(logits: torch.Tensor) -> int:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise _StopError
        return int(logits.argmax())

    with pytest.raises(_StopError):
        serving.generate(prompt(40), 8, sample=fail, stop_tokens=())
    serving.cache.sanity_check()
    assert serving.cache.stats()["live_requests"] == 0
    # What was cached on the way is whole.
    assert serving.prefill(prompt(40)).reused == 2 * CHUNK


def test_a_model_that_fails_leaves_nothing_behind() -> None:
    model = model_of("bamba")
    serving = cached(model)
    with pytest.raises(IndexError):
        serving.prefill(np.array([5, 10_000]))
    serving.cache.sanity_check()
    assert serving.cache.stats()["live_requests"] == 0


@pytest.mark.parametrize("known", [0, 33])
def test_a_cache_that_is_reset_meanwhile_does_no_harm(known: int) -> None:
    model = model_of("bamba")
    serving = cached(model)
    tokens = prompt(50)
    if known:
        serving.prefill(tokens[:known])
    remember = Remember()

    def sample(logits: torch.Tensor) -> int:
        serving.cache.reset()
        return remember(logits)

    answer = serving.generate(tokens, 20, sample=sample, stop_tokens=())
    assert answer.reused == known
    assert remember.error(model, tokens, answer.tokens) < TOLERANCE
    serving.cache.sanity_check()
    assert serving.cache.stats()["live_requests"] == 0
    assert serving.prefill(tokens).reused == 0


def test_what_fails_while_a_prefix_is_restored_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = cached(model_of("bamba"))
    serving.prefill(prompt(20))
    monkeypatch.setattr(serving.pools.state, "gather", _stop)
    with pytest.raises(_StopError):
        serving.prefill(prompt(40))
    serving.cache.sanity_check()
    assert serving.cache.stats()["live_requests"] == 0


def _stop(_: object) -> None:
    raise _StopError


@pytest.mark.parametrize("states", [6, 48])
def test_many_threads_get_the_right_answers(states: int) -> None:
    model = model_of("falcon_h1")
    serving = cached(model, 512, states)
    prompts = mixed_prompts(24, 60)
    with ThreadPoolExecutor(4, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        found = list(pool.map(lambda tokens: resume(serving, tokens), prompts))
    for result, tokens in zip(found, prompts, strict=True):
        assert error(result, plain(model, tokens)) < TOLERANCE
    serving.cache.sanity_check()
    assert serving.cache.stats()["live_requests"] == 0
    assert any(result.reused for result in found)


def test_pools_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OutOfSlotsError, match="bytes on cpu"):
        make_pools(model_of("bamba"), states=10**10)


def test_a_cached_model_makes_its_own_pools() -> None:
    serving = CachedModel(model_of("mamba2"))
    assert serving.pools.kv is None
    assert serving.prefill(prompt(10)).computed == 10
