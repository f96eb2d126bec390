"""The trial when a `CachedModel` is built: who passes, who is refused and how that is said."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="the pools need torch")
pytest.importorskip("transformers", minversion="5.24", reason="the bridge is for transformers 5.24 and newer")

import torch
import transformers

from cached_models import CHUNK, TOLERANCE, cached, error, model_of, plain, prompt, resume
from hf_models import CONFIGS, DEAF_CONFIGS, build
from stemcache.integrations.transformers import CachedModel, UnsupportedModelError, make_pools

pytestmark = pytest.mark.filterwarnings("default")

# These take a state up when one token follows it at a time.
DEAF = [family for family in DEAF_CONFIGS if family != "minimax"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_families_that_we_name_pass(family: str, dtype: torch.dtype) -> None:
    proof = cached(model_of(family, dtype), 64, 2).proof
    assert proof.exact
    assert not proof.slow
    assert proof.zeroed > 0.02 * proof.spread
    if dtype == torch.float32:
        assert proof.error < 1e-5 * proof.spread


@pytest.mark.parametrize("family", DEAF)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_ignores_its_state_is_refused(family: str, dtype: torch.dtype) -> None:
    model = model_of(family, dtype)
    with pytest.raises(UnsupportedModelError, match=f"'{model.config.model_type}'.* does not take up a restored state"):
        cached(model, 64, 2)


@pytest.mark.parametrize("family", DEAF)
def test_token_by_token_it_can_be_served(family: str) -> None:
    model = model_of(family)
    with pytest.raises(UnsupportedModelError, match="slow_resume=True uses that"):
        CachedModel(model, make_pools(model, 256, 8))
    serving = CachedModel(model, make_pools(model, 256, 8), chunk_size=CHUNK, prefill_chunk=CHUNK, slow_resume=True)
    assert serving.proof.slow
    tokens = prompt(50)
    truth = plain(model, tokens)
    for known in (0, 2 * CHUNK + 5):
        found = resume(serving, tokens[: 2 * CHUNK + 5] if not known else tokens)
        assert found.reused == known
        assert error(found, truth[: found.reused + found.computed]) < TOLERANCE


def test_slow_is_not_used_where_it_is_not_needed() -> None:
    assert not CachedModel(model_of("lfm2"), slow_resume=True).proof.slow


def test_states_that_the_cache_object_does_not_show_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"MiniMax.*layer 0 is empty"):
        CachedModel(model_of("minimax"), slow_resume=True)


def test_a_model_without_recurrent_states_is_refused() -> None:
    config = transformers.LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    auto: Any = transformers.AutoModelForCausalLM
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM.*keeps no recurrent states"):
        CachedModel(auto.from_config(config).eval())


def test_a_model_in_training_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"call its eval\(\) first"):
        CachedModel(build("lfm2").train())


@pytest.mark.parametrize("family", ["bamba", "mamba2"])
def test_a_model_that_forgets_its_cache_object_is_refused(family: str) -> None:
    """As if an argument had been renamed: Mamba-2 swallows what it does not know."""
    model = build(family)
    forward = model.forward
    model.forward = lambda **given: forward(**{**given, "cache": None})
    with pytest.raises(UnsupportedModelError, match="does not fill the cache object it is given"):
        CachedModel(model)


def test_a_model_that_counts_positions_from_0_is_refused() -> None:
    model = build("bamba")
    forward = model.forward

    def without_positions(input_ids: Any = None, cache: Any = None, **rest: Any) -> Any:
        return forward(input_ids=input_ids, cache=cache, **{**rest, "position_ids": None})

    model.forward = without_positions
    with pytest.raises(UnsupportedModelError, match=r"Bamba.*off by"):
        CachedModel(model)


def test_a_state_that_does_not_matter_proves_nothing() -> None:
    model = build("mamba2")
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "out_proj" in name:
                weights.zero_()
    with pytest.raises(UnsupportedModelError, match="hardly cares for its state"):
        CachedModel(model)


def test_the_refusal_has_the_numbers() -> None:
    with pytest.raises(UnsupportedModelError) as refused:
        CachedModel(model_of("jamba"))
    for part in ("JambaForCausalLM", "17 and 32 of 40 tokens", "spread", "Token by token"):
        assert part in str(refused.value)
