"""`CachedModel` over eleven families: the answer from a cached prefix is the answer."""

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the pools need torch")
pytest.importorskip("transformers", minversion="5.24", reason="the bridge is for transformers 5.24 and newer")

import torch

from cached_models import CHUNK, TOLERANCE, Remember, Tokens, cached, error, model_of, plain, prompt, resume, state_slot
from hf_models import CONFIGS
from stemcache.errors import InvalidArgumentError
from stemcache.integrations.transformers import CachedModel

# transformers itself deprecates and warns as it imports its models.
pytestmark = pytest.mark.filterwarnings("default")

# Delta rule, mixed layers, experts; windows alone; no attention; KV in unequal widths.
SOME = ["qwen3_next", "falcon_h1", "lfm2", "mamba2", "kimi_linear"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def serving_of(family: str) -> CachedModel:
    """One for many tests, each in namespaces of its own."""
    return cached(model_of(family), 8192, 256)


def cut_twice(serving: CachedModel, tokens: Tokens, cut: int, namespace: str) -> list[int]:
    """Caches the first `cut` tokens, and other tokens of the same number; the slots of both states."""
    both = (tokens[:cut], prompt(cut, seed=99))
    for part in both:
        serving.prefill(part, namespace=namespace)
    return [state_slot(serving, part, namespace) for part in both]


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("cut", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 57])
def test_a_cached_prefix_gives_the_plain_logits(family: str, cut: int) -> None:
    model, serving = model_of(family), serving_of(family)
    tokens = prompt(60, seed=cut)
    serving.prefill(tokens[:cut], namespace=f"cut at {cut}")
    found = resume(serving, tokens, f"cut at {cut}")
    assert (found.reused, found.computed) == (cut, 60 - cut)
    assert error(found, plain(model, tokens)) < TOLERANCE
    serving.cache.sanity_check()


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("cut", [CHUNK - 1, 3 * CHUNK + 1])
def test_the_tests_see_a_zeroed_state_and_a_stale_one(family: str, cut: int) -> None:
    model, serving = model_of(family), serving_of(family)
    tokens = prompt(60, seed=5)
    truth = plain(model, tokens)
    slot, _ = cut_twice(serving, tokens, cut, f"zeroed {cut}")
    serving.pools.state.clear_slots(slot)
    zeroed = resume(serving, tokens, f"zeroed {cut}")
    slot, other = cut_twice(serving, tokens, cut, f"stale {cut}")
    serving.pools.state.copy_from(other, slot)
    stale = resume(serving, tokens, f"stale {cut}")
    assert zeroed.reused == stale.reused == cut
    assert error(zeroed, truth) > 100 * TOLERANCE
    assert error(stale, truth) > 100 * TOLERANCE


@pytest.mark.parametrize("family", CONFIGS)
def test_a_conversation_pays_for_its_new_tokens_only(family: str) -> None:
    model, serving = model_of(family), serving_of(family)
    history = prompt(37)
    known = 0
    for turn in range(4):
        remember = Remember()
        answer = serving.generate(history, 6, namespace="conversation", sample=remember, stop_tokens=())
        assert answer.reused == known
        assert answer.reused + answer.computed == len(history)
        assert remember.error(model, history, answer.tokens) < TOLERANCE
        # The last token was never run.
        known = len(history) + 5
        history = np.concatenate([history, answer.tokens, prompt(9, seed=turn)])
    serving.cache.sanity_check()


@pytest.mark.parametrize("family", SOME)
def test_many_prompts_with_common_beginnings(family: str) -> None:
    model = model_of(family)
    serving = cached(model)
    rng = np.random.default_rng(3)
    stems = [prompt(n, seed=n) for n in (5, 20, 33, 64)]
    for i in range(16):
        stem = stems[rng.integers(len(stems))]
        tokens = np.concatenate([stem[: rng.integers(1, len(stem) + 1)], prompt(int(rng.integers(1, 50)), seed=i % 7)])
        assert error(resume(serving, tokens), plain(model, tokens)) < TOLERANCE
    serving.cache.sanity_check()
    assert serving.cache.stats()["live_requests"] == 0


def test_where_prompts_branch_off_a_state_is_left_for_the_third() -> None:
    model = model_of("qwen3_next")
    serving = CachedModel(model, chunk_size=CHUNK, prefill_chunk=512)
    stem = prompt(5 * CHUNK + 3)
    reused = []
    for seed in range(3):
        tokens = np.concatenate([stem, prompt(40, seed=100 + seed)])
        found = resume(serving, tokens)
        assert error(found, plain(model, tokens)) < TOLERANCE
        reused.append(found.reused)
    assert reused == [0, 0, 5 * CHUNK]


@pytest.mark.parametrize(("n", "reused"), [(1, 0), (CHUNK, 0), (CHUNK + 1, CHUNK), (100, 96), (96, 80)])
def test_the_same_prompt_again_goes_on_from_the_last_grid_point(n: int, reused: int) -> None:
    serving = cached(model_of("bamba"))
    tokens = prompt(n)
    first = serving.prefill(tokens)
    again = serving.prefill(tokens)
    assert (first.reused, again.reused) == (0, reused)
    assert float((first.logits - again.logits).abs().max()) < TOLERANCE


def test_a_prefill_leaves_states_at_its_chunks() -> None:
    serving = cached(model_of("lfm2"))
    tokens = prompt(5 * CHUNK)
    serving.prefill(tokens)
    hits = [serving.cache.match_prefix(tokens, limit=limit).match.length for limit in range(1, len(tokens) + 1)]
    assert [b for a, b in pairwise(hits) if b != a] == [2 * CHUNK, 4 * CHUNK, 5 * CHUNK]


def test_namespaces_share_nothing() -> None:
    serving = cached(model_of("lfm2"))
    tokens = prompt(40)
    serving.prefill(tokens, namespace="a")
    assert serving.prefill(tokens, namespace="b").reason == "namespace"
    assert serving.prefill(tokens, namespace="a").reused == 2 * CHUNK


@pytest.mark.parametrize("family", SOME)
def test_what_goes_on_from_a_cached_state_does_not_change_it(family: str) -> None:
    serving = cached(model_of(family))
    tokens = prompt(33)
    serving.prefill(tokens)
    slot = state_slot(serving, tokens)
    before = [part.clone() for part in serving.pools.state.gather(slot).parts()]
    serving.generate(np.concatenate([tokens, prompt(5)]), 4, stop_tokens=())
    assert state_slot(serving, tokens) == slot
    assert all(torch.equal(a, b) for a, b in zip(before, serving.pools.state.gather(slot).parts(), strict=True))


@pytest.mark.parametrize("family", SOME)
def test_a_bfloat16_model_keeps_its_states_exactly(family: str) -> None:
    model = model_of(family, torch.bfloat16)
    serving = cached(model)
    tokens = prompt(60)
    truth = plain(model, tokens)
    serving.prefill(tokens[:29])
    found = resume(serving, tokens)
    assert found.reused == 29
    temporal = serving.pools.state.temporal
    assert temporal is None or temporal.dtype == torch.float32
    # Chunks of other lengths round otherwise: a hundredth of the spread was seen.
    difference = (found.logits - truth[29:]).float()
    assert float(difference.square().mean().sqrt()) < 0.05 * float(truth.float().std())


def test_generation_stops_at_a_stop_token_and_caches_what_ran() -> None:
    serving = cached(model_of("bamba"))
    tokens = prompt(20)
    free = serving.generate(tokens, 8, stop_tokens=()).tokens
    stopped = serving.generate(tokens, 8, stop_tokens={free[3]}).tokens
    assert stopped == free[: free.index(free[3]) + 1]
    longer = np.concatenate([tokens, free])
    assert serving.prefill(longer).reused == len(longer) - 1


def test_the_model_s_own_end_token_stops_it() -> None:
    model = model_of("bamba")
    serving = cached(model)
    eos = model.generation_config.eos_token_id
    answer = serving.generate(prompt(20), 5, sample=lambda _: eos)
    assert answer.tokens == [eos]


@pytest.mark.parametrize("kind", [list, np.asarray, torch.tensor, lambda ids: torch.tensor([ids])])
def test_a_prompt_may_be_any_sequence_of_integers(kind: Any) -> None:
    serving = cached(model_of("lfm2"))
    tokens = prompt(20).tolist()
    serving.prefill(tokens)
    assert serving.prefill(kind(tokens)).reused == CHUNK


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.prefill([]), "input_ids must be"),
        (lambda model: model.prefill(torch.zeros(2, 5, dtype=torch.int64)), r"shape \(2, 5\)"),
        (lambda model: model.prefill([0.5]), "float64"),
        (lambda model: model.prefill([1], logits_to_keep=0), "logits_to_keep is 0"),
        (lambda model: model.generate([1], 0), "max_new_tokens is 0"),
    ],
)
def test_what_is_no_prompt_is_refused(call: Any, message: str) -> None:
    serving = cached(model_of("lfm2"))
    with pytest.raises(InvalidArgumentError, match=message):
        call(serving)
    serving.cache.sanity_check()


def test_pools_of_another_model_are_refused() -> None:
    pools = cached(model_of("bamba")).pools
    with pytest.raises(InvalidArgumentError, match="for another model: their state layout"):
        CachedModel(model_of("qwen3_next"), pools)
    with pytest.raises(InvalidArgumentError, match="for another model: their KV layout"):
        CachedModel(model_of("mamba2"), pools)


def test_a_chunk_of_no_tokens_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="prefill_chunk is 0"):
        CachedModel(model_of("lfm2"), prefill_chunk=0)
