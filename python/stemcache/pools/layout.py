"""The shapes of what a model keeps per token (KV) and per prefix (recurrent states).

A layout is plain numbers and torch dtypes: it allocates nothing, so sizes can be planned before a pool exists.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from stemcache.errors import InvalidArgumentError


def _check_dtype(name: str, dtype: object) -> None:
    if not isinstance(dtype, torch.dtype):
        raise InvalidArgumentError(f"{name} must be a torch.dtype, not {dtype!r}")


def _check_float(name: str, dtype: object) -> None:
    _check_dtype(name, dtype)
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InvalidArgumentError(f"{name} must be a floating point torch.dtype, not {dtype!r}")


def _check_sizes(name: str, sizes: Iterable[object]) -> None:
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InvalidArgumentError(f"{name} must be integers of at least 1, not {size!r}")


@dataclass(frozen=True, slots=True)
class KvLayout:
    """What the attention layers keep of one token.

    Attributes:
        layers: attention layers.
        k_heads: heads of K in a layer.
        k_dim: width of a head of K.
        v_heads: heads of V; may differ from K's.
        v_dim: width of a head of V; may differ from K's.
        dtype: of both.

    Raises:
        InvalidArgumentError: a size below 1, or no dtype.
    """

    layers: int
    k_heads: int
    k_dim: int
    v_heads: int
    v_dim: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        """Checks the fields."""
        sizes = (self.layers, self.k_heads, self.k_dim, self.v_heads, self.v_dim)
        _check_sizes("layers, k_heads, k_dim, v_heads and v_dim", sizes)
        _check_dtype("dtype", self.dtype)

    @property
    def bytes_per_token(self) -> int:
        """K and V of one token in all layers."""
        elements = self.layers * (self.k_heads * self.k_dim + self.v_heads * self.v_dim)
        return elements * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class ConvWindow:
    """One convolution window of a recurrent layer.

    Attributes:
        shape: of one layer of one state, at least one axis.
        dtype: any; need not be the temporal state's.

    Raises:
        InvalidArgumentError: no axis, an axis below 1, or no dtype.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        """Checks the fields; a list or `torch.Size` becomes a tuple."""
        object.__setattr__(self, "shape", tuple(self.shape))
        if not self.shape:
            raise InvalidArgumentError("shape must have at least one axis, not ()")
        _check_sizes("shape", self.shape)
        _check_dtype("dtype", self.dtype)

    @property
    def bytes_per_layer(self) -> int:
        """One window of one layer."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class StateLayout:
    """What the recurrent layers keep of one prefix.

    Attributes:
        layers: recurrent layers.
        temporal: `(heads, d_v, d_k)` of one layer's recurrent state, or None for layers of convolutions alone.
        temporal_dtype: floating point; not used without a temporal state.
        conv: the windows of one layer, in the engine's order; each may have its own shape and dtype.

    Raises:
        InvalidArgumentError: a size below 1, a wrong dtype, or a state of nothing.
    """

    layers: int
    temporal: tuple[int, int, int] | None = None
    temporal_dtype: torch.dtype = torch.float32
    conv: tuple[ConvWindow, ...] = ()

    def __post_init__(self) -> None:
        """Checks the fields; lists become tuples."""
        object.__setattr__(self, "conv", tuple(self.conv))
        _check_sizes("layers", (self.layers,))
        _check_float("temporal_dtype", self.temporal_dtype)
        if self.temporal is not None:
            self._check_temporal(tuple(self.temporal))
        if self.temporal is None and not self.conv:
            raise InvalidArgumentError("a state needs a temporal part or a conv window, and this one has neither")
        for window in self.conv:
            if not isinstance(window, ConvWindow):
                raise InvalidArgumentError(f"conv must be ConvWindow objects, not {window!r}")

    @property
    def temporal_bytes(self) -> int:
        """The temporal part of one state, all layers; 0 without one."""
        return self.layers * math.prod(self.temporal) * self.temporal_dtype.itemsize if self.temporal else 0

    @property
    def conv_bytes(self) -> int:
        """The conv windows of one state, all layers."""
        return self.layers * sum(window.bytes_per_layer for window in self.conv)

    @property
    def bytes_per_state(self) -> int:
        """One state, all layers and parts."""
        return self.temporal_bytes + self.conv_bytes

    def _check_temporal(self, temporal: tuple[int, ...]) -> None:
        if len(temporal) != 3:
            raise InvalidArgumentError(f"temporal must be (heads, d_v, d_k), not {temporal!r}")
        _check_sizes("temporal", temporal)
        object.__setattr__(self, "temporal", temporal)
