"""Layouts read off configurations and off live caches: the two witnesses must agree on every family."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the pools need torch")
pytest.importorskip("transformers", minversion="5.24", reason="layouts are read off transformers 5.24 and newer")

import torch
import transformers
from transformers import DynamicCache

from hf_models import CONFIGS, DEAF_CONFIGS, VOCABULARY, build
from stemcache.errors import InvalidArgumentError
from stemcache.pools import (
    ConvWindow,
    KvLayout,
    ModelLayouts,
    StateLayout,
    StatePool,
    is_transposed,
    layouts_from_cache,
    layouts_from_config,
)

# transformers itself deprecates and warns as it imports its models.
pytestmark = pytest.mark.filterwarnings("default")

# Read by hand off caches of transformers 5.24, and (the first numbers of each temporal state) off the models' code.
EXPECTED = {
    "qwen3_5": ((0, 1, 2), (3,), (4, 12, 8), (80, 4), (2, 8, 2, 8)),
    "qwen3_next": ((0, 1, 2), (3,), (4, 12, 8), (80, 4), (2, 8, 2, 8)),
    "olmo_hybrid": ((0, 1, 2), (3,), (4, 16, 8), (128, 4), (2, 8, 2, 8)),
    "kimi_linear": ((0, 1, 2), (3,), (4, 8, 8), (96, 4), (1, 16, 1, 8)),
    "bamba": ((0, 1, 3), (2,), (8, 8, 16), (128, 4), (2, 8, 2, 8)),
    "granitemoehybrid": ((0, 1, 3), (2,), (8, 8, 16), (128, 4), (2, 8, 2, 8)),
    "falcon_h1": ((0, 1, 2), (0, 1, 2), (8, 8, 16), (96, 4), (2, 8, 2, 8)),
    "nemotron_h": ((0, 4), (2,), (8, 8, 16), (128, 4), (2, 8, 2, 8)),
    "zamba2": ((0, 1, 2, 3, 4), (2, 4), (8, 8, 16), (96, 4), (2, 16, 2, 16)),
    "lfm2": ((0, 1, 3), (2,), None, (32, 3), (2, 8, 2, 8)),
    "mamba2": ((0, 1, 2), (), (8, 8, 16), (128, 4), None),
}


def expected(family: str, dtype: torch.dtype) -> ModelLayouts:
    state_layers, kv_layers, temporal, window, kv = EXPECTED[family]
    return ModelLayouts(
        state=StateLayout(len(state_layers), temporal, torch.float32, (ConvWindow(window, dtype),)),
        kv=None if kv is None else KvLayout(len(kv_layers), *kv, dtype=dtype),
        state_layers=state_layers,
        kv_layers=kv_layers,
        transposed=family in {"qwen3_5", "qwen3_next", "olmo_hybrid", "kimi_linear"},
    )


def forward(model: Any, n: int = 9) -> Any:
    tokens = torch.randint(3, VOCABULARY, (1, n), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=True).cache


def test_all_families_are_tested() -> None:
    assert EXPECTED.keys() == CONFIGS.keys()


@pytest.mark.parametrize("family", CONFIGS)
def test_a_configuration_says_what_the_model_keeps(family: str) -> None:
    config = CONFIGS[family]()
    assert layouts_from_config(config, torch.bfloat16) == expected(family, torch.bfloat16)
    assert layouts_from_config(config) == expected(family, torch.float32)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_live_cache_says_the_same(family: str) -> None:
    model = build(family, torch.bfloat16)
    transposed = is_transposed(model.config)
    assert layouts_from_cache(forward(model), transposed=transposed) == expected(family, torch.bfloat16)


def test_the_configuration_of_a_real_model_needs_no_weights() -> None:
    """Qwen3-Next 80B as published: 36 recurrent layers of 32 x 128 x 128, 12 of attention."""
    layouts = layouts_from_config(transformers.Qwen3NextConfig(dtype="bfloat16"))
    assert layouts.state is not None
    assert layouts.state.temporal == (32, 128, 128)
    assert layouts.state.layers == 36
    assert layouts.state.conv == (ConvWindow((8192, 4), torch.bfloat16),)
    assert layouts.kv == KvLayout(12, 2, 256, 2, 256, torch.bfloat16)
    assert layouts.state.temporal_dtype == torch.float32


def test_the_text_part_of_a_multimodal_configuration_counts() -> None:
    whole = transformers.Qwen3_5Config()
    assert layouts_from_config(whole) == layouts_from_config(whole.text_config)
    assert is_transposed(whole)


def test_a_pool_of_the_layout_holds_the_model_s_states() -> None:
    model = build("qwen3_5")
    cache = forward(model)
    layouts = layouts_from_cache(cache, transposed=is_transposed(model.config))
    assert layouts.state is not None
    pool = StatePool(layouts.state, 2)
    temporal = torch.stack([cache.layers[i].recurrent_states[0][0] for i in layouts.state_layers])
    windows = torch.stack([cache.layers[i].conv_states[0][0] for i in layouts.state_layers])
    pool.store(1, temporal.transpose(-1, -2), (windows,))
    got = pool.gather(1)
    assert got.temporal is not None
    assert temporal.any()
    assert torch.equal(got.temporal.transpose(-1, -2), temporal)
    assert torch.equal(got.conv[0], windows)


@pytest.mark.parametrize("family", ["jamba", "mamba", "falcon_mamba"])
def test_states_without_heads_count_as_one_head(family: str) -> None:
    layouts = layouts_from_cache(forward(build(family)))
    assert layouts.state is not None
    assert layouts.state.temporal == (1, 64, 8)
    assert layouts.state.conv == (ConvWindow((64, 4), torch.float32),)


@pytest.mark.parametrize("family", DEAF_CONFIGS)
def test_a_model_type_without_a_rule_is_refused_by_its_name(family: str) -> None:
    config = DEAF_CONFIGS[family]()
    with pytest.raises(InvalidArgumentError, match=f"{config.model_type}"):
        layouts_from_config(config)


def test_an_unknown_kind_of_layer_is_refused_by_its_name() -> None:
    config = transformers.Gemma3TextConfig(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"])
    with pytest.raises(InvalidArgumentError, match="sliding_attention"):
        layouts_from_config(config)


def test_a_cache_that_keeps_its_states_elsewhere_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="layer 0 is empty"):
        layouts_from_cache(forward(build("minimax")))


@pytest.mark.parametrize("family", ["qwen3_5", "lfm2", "mamba2", "falcon_h1"])
def test_an_empty_cache_is_refused(family: str) -> None:
    with pytest.raises(InvalidArgumentError, match="layer 0 is empty: run a forward"):
        layouts_from_cache(DynamicCache(config=CONFIGS[family]()))


def test_a_window_of_kv_is_refused() -> None:
    config = transformers.Gemma3TextConfig(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"])
    cache = DynamicCache(config=config)
    layers: list[Any] = cache.layers
    for layer in layers:
        layer.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    with pytest.raises(InvalidArgumentError, match="layer 0 keeps a window of KV"):
        layouts_from_cache(cache)


def kv_layer(k: torch.Tensor, v: torch.Tensor) -> SimpleNamespace:
    return SimpleNamespace(keys=k, values=v, get_seq_length=lambda: k.shape[2])


def state_layer(*recurrent: torch.Tensor | None) -> SimpleNamespace:
    filled = dict(enumerate(recurrent))
    return SimpleNamespace(conv_states={0: torch.zeros(1, 8, 4)}, recurrent_states=filled)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            [
                kv_layer(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4)),
                state_layer(torch.zeros(1, 2, 3, 4)),
                kv_layer(torch.zeros(1, 1, 3, 8), torch.zeros(1, 1, 3, 8)),
            ],
            "attention layers 0 and 2 differ",
        ),
        (
            [state_layer(torch.zeros(1, 2, 3, 4)), state_layer(torch.zeros(1, 4, 3, 4))],
            "recurrent layers 0 and 1 differ",
        ),
        ([state_layer(torch.zeros(1, 2, 3, 4)), state_layer(None)], "recurrent layers 0 and 1 differ"),
        ([state_layer(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))], "layer 0 keeps 2 temporal states"),
        ([kv_layer(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4).half())], "float32 and V in torch.float16"),
    ],
)
def test_what_no_layout_can_say_is_refused(layers: list[Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        layouts_from_cache(SimpleNamespace(layers=layers))


def test_several_conv_windows_of_a_layer_are_several_windows() -> None:
    layer = SimpleNamespace(
        conv_states={0: torch.zeros(1, 8, 4), 1: torch.zeros(1, 6, 3).half()}, recurrent_states={0: None, 1: None}
    )
    assert layouts_from_cache(SimpleNamespace(layers=[layer, layer])).state == StateLayout(
        2, None, torch.float32, (ConvWindow((8, 4), torch.float32), ConvWindow((6, 3), torch.float16))
    )
