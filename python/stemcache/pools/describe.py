"""The layouts of a model, read off its `transformers` configuration or off a cache object after a forward.

Nothing here imports transformers: configurations and caches are read by their attributes.

A cache object is the better witness, since it holds for every model; a configuration costs no forward and is enough to
plan a pool. Layers that keep a window of KV, or states of several shapes, are refused: a prefix of their KV is not the
KV of the prefix, or there is no one tensor to stack them in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from stemcache.errors import InvalidArgumentError
from stemcache.pools.layout import ConvWindow, KvLayout, StateLayout

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ModelLayouts:
    """What a model keeps, and in which of its layers.

    Attributes:
        state: of a recurrent state; None without such layers.
        kv: of a token's KV; None without attention.
        state_layers: the model's layers that are layer 0, 1, ... of the state pool.
        kv_layers: the model's layers that are layer 0, 1, ... of the KV pool. A layer may be in both.
        transposed: the model keeps its temporal states as [heads, d_k, d_v]; the pools keep [heads, d_v, d_k].
    """

    state: StateLayout | None
    kv: KvLayout | None
    state_layers: tuple[int, ...]
    kv_layers: tuple[int, ...]
    transposed: bool


def layouts_from_config(config: Any, dtype: torch.dtype | None = None) -> ModelLayouts:
    """Reads the layouts off a configuration, by the rules of its model type; nothing is built.

    Args:
        config: a `transformers` configuration; of a multimodal model, its text part counts.
        dtype: of the model. None: the configuration's, or float32 if it names none. Temporal states are float32
            whatever the model's is: so `transformers` keeps them.

    Raises:
        InvalidArgumentError: a model type or a kind of layer without a rule here. `layouts_from_cache` may still do.
    """
    config = config.get_text_config(decoder=True)
    dtype = dtype or _dtype(config.dtype)
    state_layers, kv_layers = _layers_of_types(list(config.layer_types))
    state = _state_of(config, len(state_layers), dtype) if state_layers else None
    kv = KvLayout(len(kv_layers), *_kv_shape(config), dtype=dtype) if kv_layers else None
    return ModelLayouts(state, kv, state_layers, kv_layers, is_transposed(config))


def layouts_from_cache(cache: Any, *, transposed: bool = False) -> ModelLayouts:
    """Reads the layouts off a `transformers` cache object that a forward has filled.

    Args:
        cache: holds `layers`; their tensors are not read, only their shapes.
        transposed: the model keeps temporal states as [heads, d_k, d_v] (`is_transposed` knows). Shapes cannot tell.

    Raises:
        InvalidArgumentError: a layer that no forward has filled, keeps a window of KV, or keeps several temporal
            states; layers of different shapes.
    """
    layers = list(enumerate(cache.layers))
    states = {i: _live_state(i, layer, transposed) for i, layer in layers if hasattr(layer, "conv_states")}
    kv = {i: _live_kv(i, layer) for i, layer in layers if _holds_kv(layer)}
    return ModelLayouts(
        StateLayout(len(states), *_same("recurrent", states)) if states else None,
        KvLayout(len(kv), *_same("attention", kv)) if kv else None,
        tuple(states),
        tuple(kv),
        transposed,
    )


def is_transposed(config: Any) -> bool:
    """Whether the model keeps its temporal states as [heads, d_k, d_v]: delta rules do, Mamba-2 does not."""
    config = config.get_text_config(decoder=True)
    return any(hasattr(config, name) for name in ("linear_key_head_dim", "linear_head_dim"))


def _dtype(named: Any) -> torch.dtype:
    found = getattr(torch, named, None) if isinstance(named, str) else named
    return found if isinstance(found, torch.dtype) else torch.float32


# What a layer of each type keeps: a state, KV.
_KEEPS = {
    "linear_attention": (True, False),
    "conv": (True, False),
    "full_attention": (False, True),
    "hybrid": (True, True),
    "moe": (False, False),
    "mlp": (False, False),
}


def _layers_of_types(types: list[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    for kind in types:
        if kind not in _KEEPS:
            raise InvalidArgumentError(f"no rule for layers of type {kind!r}; known are {', '.join(_KEEPS)}")
    state, kv = (tuple(i for i, kind in enumerate(types) if _KEEPS[kind][part]) for part in (0, 1))
    return state, kv


def _kv_shape(config: Any) -> tuple[int, int, int, int]:
    if getattr(config, "kv_lora_rank", None):
        # MLA: the compressed latent stands where K does, the rotary part where V does.
        return 1, config.kv_lora_rank, 1, config.qk_rope_head_dim
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return heads, dim, heads, dim


_Shapes = tuple[tuple[int, int, int] | None, tuple[int, int]]


def _delta_net(config: Any) -> _Shapes:
    heads, d_v, d_k = config.linear_num_value_heads, config.linear_value_head_dim, config.linear_key_head_dim
    channels = heads * d_v + 2 * config.linear_num_key_heads * d_k
    return (heads, d_v, d_k), (channels, config.linear_conv_kernel_dim)


def _kimi_delta(config: Any) -> _Shapes:
    heads, dim = config.linear_num_heads, config.linear_head_dim
    return (heads, dim, dim), (3 * heads * dim, config.linear_conv_kernel_dim)


def _short_conv(config: Any) -> _Shapes:
    return None, (config.hidden_size, config.conv_L_cache)


def _mamba2(heads: str, head_dim: str, state: str, groups: str, kernel: str) -> Callable[[Any], _Shapes]:
    def read(config: Any) -> _Shapes:
        h, d_v, d_k, g, window = (getattr(config, name) for name in (heads, head_dim, state, groups, kernel))
        return (h, d_v, d_k), (h * d_v + 2 * g * d_k, window)

    return read


_MAMBA_D = _mamba2("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv")
_RULES: dict[str, Callable[[Any], _Shapes]] = {
    "qwen3_5_text": _delta_net,
    "qwen3_5_moe_text": _delta_net,
    "qwen3_next": _delta_net,
    "olmo_hybrid": _delta_net,
    "kimi_linear": _kimi_delta,
    "bamba": _MAMBA_D,
    "granitemoehybrid": _MAMBA_D,
    "falcon_h1": _MAMBA_D,
    "nemotron_h": _mamba2("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"),
    "zamba2": _mamba2("n_mamba_heads", "mamba_headdim", "mamba_d_state", "mamba_ngroups", "mamba_d_conv"),
    "mamba2": _mamba2("num_heads", "head_dim", "state_size", "n_groups", "conv_kernel"),
    "lfm2": _short_conv,
    "lfm2_moe": _short_conv,
}


def _state_of(config: Any, layers: int, dtype: torch.dtype) -> StateLayout:
    rule = _RULES.get(config.model_type)
    if rule is None:
        raise InvalidArgumentError(
            f"no rule for the states of model type {config.model_type!r}; try layouts_from_cache"
        )
    temporal, window = rule(config)
    return StateLayout(layers, temporal, torch.float32, (ConvWindow(window, dtype),))


def _holds_kv(layer: Any) -> bool:
    # A dummy layer (of experts, say) has the attribute, and no way to fill it.
    return hasattr(layer, "keys") and hasattr(layer, "get_seq_length")


_State = tuple[tuple[int, int, int] | None, torch.dtype, tuple[ConvWindow, ...]]
_Kv = tuple[int, int, int, int, torch.dtype]


def _live_state(index: int, layer: Any, transposed: bool) -> _State:
    windows = [_filled(index, window) for window in layer.conv_states.values()]
    temporal = [state for state in layer.recurrent_states.values() if state is not None]
    if len(temporal) > 1:
        raise InvalidArgumentError(f"layer {index} keeps {len(temporal)} temporal states; a layout has one")
    shape, dtype = _temporal_shape(temporal[0], transposed) if temporal else (None, torch.float32)
    return shape, dtype, tuple(ConvWindow(tuple(window.shape[1:]), window.dtype) for window in windows)


def _temporal_shape(state: torch.Tensor, transposed: bool) -> tuple[tuple[int, int, int], torch.dtype]:
    # Mamba-1 has no heads: [batch, channels, d_state] counts as one.
    heads, rows, columns = (1, *state.shape[1:]) if state.ndim == 3 else tuple(state.shape[1:])
    return (heads, columns, rows) if transposed else (heads, rows, columns), state.dtype


def _live_kv(index: int, layer: Any) -> _Kv:
    if getattr(layer, "is_sliding", False):
        raise InvalidArgumentError(f"layer {index} keeps a window of KV: a prefix cannot be cut out of that")
    k, v = _filled(index, layer.keys), _filled(index, layer.values)
    if k.dtype != v.dtype:
        raise InvalidArgumentError(f"layer {index} keeps K in {k.dtype} and V in {v.dtype}; a layout has one dtype")
    return k.shape[1], k.shape[3], v.shape[1], v.shape[3], k.dtype


def _filled(index: int, tensor: torch.Tensor | None) -> torch.Tensor:
    if tensor is None or not tensor.numel():
        raise InvalidArgumentError(f"layer {index} is empty: run a forward of some tokens with this cache first")
    return tensor


def _same(what: str, found: dict[int, _T]) -> _T:
    first, *others = found.items()
    for index, layout in others:
        if layout != first[1]:
            raise InvalidArgumentError(
                f"{what} layers {first[0]} and {index} differ, and are stacked in one tensor: {first[1]} and {layout}"
            )
    return first[1]
