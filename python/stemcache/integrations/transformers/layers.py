"""Between a `transformers` cache object and the pools: a prefix is read out of one, and written into a new one.

A layer of such an object holds KV, or a state (conv windows and perhaps a recurrent state, by number), or both, or
nothing; only that is looked at, not the model. Layers change their tensors in place, so what is read is a copy.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache

from stemcache.pools import ModelLayouts, StateTensors, is_transposed, layouts_from_cache


class Prefix(NamedTuple):
    """What a model needs to go on.

    Attributes:
        k: [attention layers, n, heads, dim], or None for a model without attention.
        v: the same; heads and dim may differ.
        state: [recurrent layers, ...] each, as a slot of the state pool.
    """

    k: torch.Tensor | None
    v: torch.Tensor | None
    state: StateTensors


@dataclass(frozen=True, slots=True)
class CacheLayers:
    """Where the parts of a prefix lie in a model's cache objects.

    Attributes:
        config: of the model.
        layouts: what its layers hold.
        own_shape: of the recurrent state in one layer of the cache object, without the batch; None without one.
    """

    config: Any
    layouts: ModelLayouts
    own_shape: tuple[int, ...] | None

    @classmethod
    def of(cls, config: Any, filled: Any) -> "CacheLayers":
        """Reads them off a cache object that a forward has filled.

        Raises:
            InvalidArgumentError: layers that no pool can hold.
        """
        layouts = layouts_from_cache(filled, transposed=is_transposed(config))
        states = [_recurrent(filled.layers[i]) for i in layouts.state_layers[:1]]
        own_shape = tuple(states[0].shape[1:]) if states and states[0] is not None else None
        return cls(config, layouts, own_shape)

    def fresh(self) -> DynamicCache:
        """An empty cache object of the model."""
        return DynamicCache(config=self.config)

    def read_kv(self, cache: Any, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """K and V of the tokens from `start` to `stop`, [layers, n, heads, dim]; None without attention."""
        layers = [cache.layers[i] for i in self.layouts.kv_layers]
        if not layers:
            return None
        k = torch.stack([layer.keys[0, :, start:stop] for layer in layers])
        v = torch.stack([layer.values[0, :, start:stop] for layer in layers])
        return k.transpose(1, 2), v.transpose(1, 2)

    def read_state(self, cache: Any) -> StateTensors:
        """The state after all tokens so far, [layers, ...]: a copy."""
        layers = [cache.layers[i] for i in self.layouts.state_layers]
        windows = zip(*(layer.conv_states.values() for layer in layers), strict=True)
        conv = tuple(torch.stack([window[0] for window in each]) for each in windows)
        if self.own_shape is None:
            return StateTensors(None, conv)
        return StateTensors(self._to_pool(torch.stack([_recurrent(layer)[0] for layer in layers])), conv)

    def read(self, cache: Any, length: int) -> Prefix:
        """All that a cache object holds after `length` tokens."""
        k, v = self.read_kv(cache, 0, length) or (None, None)
        return Prefix(k, v, self.read_state(cache))

    def restore(self, prefix: Prefix) -> DynamicCache:
        """A cache object from which the model goes on after this prefix; it shares no memory with it."""
        cache = self.fresh()
        layers: list[Any] = cache.layers
        if prefix.k is not None and prefix.v is not None:
            for i, k, v in zip(self.layouts.kv_layers, prefix.k, prefix.v, strict=True):
                layers[i].update(_own_kv(k), _own_kv(v))
        temporal = None if prefix.state.temporal is None else self._from_pool(prefix.state.temporal)
        for place, i in enumerate(self.layouts.state_layers):
            windows = [window[place, None] for window in prefix.state.conv]
            _fill(layers[i], windows, None if temporal is None else temporal[place, None])
        return cache

    def _to_pool(self, states: torch.Tensor) -> torch.Tensor:
        """[layers, own shape] as [layers, heads, d_v, d_k]."""
        # Mamba-1 has no heads: one axis less.
        heads = states if states.ndim == 4 else states[:, None]
        return heads.transpose(-1, -2) if self.layouts.transposed else heads

    def _from_pool(self, states: torch.Tensor) -> torch.Tensor:
        own = states.transpose(-1, -2) if self.layouts.transposed else states
        return own.reshape(len(states), *(self.own_shape or ())).contiguous()


def spoiled(prefix: Prefix) -> list[Prefix]:
    """What broken caches would serve: for each part of the state, the same prefix with that part zeroed."""
    temporal, conv = prefix.state
    states = [] if temporal is None else [StateTensors(torch.zeros_like(temporal), conv)]
    for i, window in enumerate(conv):
        states.append(StateTensors(temporal, (*conv[:i], torch.zeros_like(window), *conv[i + 1 :])))
    return [Prefix(prefix.k, prefix.v, state) for state in states]


def _own_kv(tokens: torch.Tensor) -> torch.Tensor:
    """[n, heads, dim] as [1, heads, n, dim], in memory of its own."""
    return tokens.transpose(0, 1)[None].clone(memory_format=torch.contiguous_format)


def _recurrent(layer: Any) -> Any:
    """The layer's recurrent state [1, ...]; None for convolutions alone."""
    return next((state for state in layer.recurrent_states.values() if state is not None), None)


def _fill(layer: Any, windows: list[torch.Tensor], recurrent: torch.Tensor | None) -> None:
    """Writes a state into an empty layer, by the layer's own methods: they copy, and note that there is a past."""
    for number, window in zip(layer.conv_states, windows, strict=True):
        layer.update_conv_state(window, state_idx=number, conv_kernel_size=window.shape[-1])
    if recurrent is not None:
        # A layout has one recurrent state in a layer, and models keep it under the first number.
        layer.update_recurrent_state(recurrent, state_idx=next(iter(layer.recurrent_states)))
