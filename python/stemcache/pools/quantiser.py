"""How a checkpoint pool packs states: the interface, the two ways that come with the package, and their registry.

Another way is an object with the four methods of `Quantiser` and a name, given to `register`; pools then take it by
that name. On the CPU states are worked on slot by slot in cache-sized tiles; elsewhere all slots of a call go
together, through the fused kernels where triton is there.
"""

import importlib.util
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from stemcache.errors import InvalidArgumentError
from stemcache.pools import memory, quant
from stemcache.pools.layout import StateLayout

Slots = npt.NDArray[np.int64]

HAS_TRITON: Final = importlib.util.find_spec("triton") is not None
"""Whether states on CUDA go through the fused kernels."""


class States(Protocol):
    """What a quantiser reads and writes: the tensors of a state pool.

    Attributes:
        temporal: `[L, slots + 1, H, d_v, d_k]`, contiguous; None without a temporal state.
        conv: a window each, `[L, slots + 1, *shape]`, contiguous.
    """

    @property
    def temporal(self) -> torch.Tensor | None: ...  # noqa: D102
    @property
    def conv(self) -> Sequence[torch.Tensor]: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Storage:
    """The tensors of a checkpoint pool; slot 0 is nobody's, as in all pools.

    Attributes:
        temporal: `[L, slots + 1, H, d_v, d_k]`, as the quantiser packs it; None without a temporal state.
        scale: float32 `[L, slots + 1, H, d_k]`; None when not quantised.
        conv: a window each, `[L, slots + 1, *shape]`, its own dtype.
        finite: bool `[slots + 1]`: whether the state last stored has neither an infinity nor a NaN in any of its parts.
            False where none was stored.
    """

    temporal: torch.Tensor | None
    scale: torch.Tensor | None
    conv: tuple[torch.Tensor, ...]
    finite: torch.Tensor

    @property
    def bytes_held(self) -> int:
        """What the tensors take."""
        tensors = (self.temporal, self.scale, *self.conv, self.finite)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


class Quantiser(Protocol):
    """How states are packed. One object serves all pools, from any thread: it holds nothing.

    Slots are host arrays, int64 `[n]`; no call waits for the device.
    """

    @property
    def name(self) -> str:
        """What it is registered, and asked for, by."""
        ...

    def bytes_per_state(self, layout: StateLayout) -> int:
        """What one slot takes, all tensors of the storage counted.

        Raises:
            InvalidArgumentError: a layout that it cannot pack.
        """
        ...

    def allocate(self, layout: StateLayout, slots: int, device: torch.device) -> Storage:
        """The storage of `slots` states and slot 0, zeroed."""
        ...

    def store(self, states: States, src_slots: Slots, storage: Storage, dst_slots: Slots) -> None:
        """Packs `states[src]` into `storage[dst]`, and writes `storage.finite[dst]`, exactly."""
        ...

    def load(self, storage: Storage, src_slots: Slots, states: States, dst_slots: Slots) -> None:
        """Unpacks `storage[src]` into `states[dst]`. What is flagged as not finite comes back as anything."""
        ...


class Pairs:
    """Source and destination slots, on the host and, after one copy that nobody waits for, on the device.

    Attributes:
        src: int64 `[n]` on the device.
        dst: int64 `[n]` on the device.
    """

    __slots__ = ("_host", "dst", "src")

    def __init__(self, src: Slots, dst: Slots, device: torch.device) -> None:
        self._host = np.stack((src, dst))
        self.src, self.dst = memory.to_device(self._host, device).unbind(0)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The pairs as numbers."""
        return zip(*self._host.tolist(), strict=True)


def _check_finite(x: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """Whether `x[:, src]` has neither an infinity nor a NaN: bool `[n]`."""
    if x.device.type != "cpu":
        return quant.all_finite(x.index_select(1, pairs.src), (0, *range(2, x.ndim)))
    return torch.stack([_check_slot(x[:, src]) for src, _ in pairs])


def _check_slot(x: torch.Tensor) -> torch.Tensor:
    some = max(1, quant.TILE // x[0].numel())
    parts = [x[layer : layer + some] for layer in range(0, len(x), some)]
    return torch.stack([quant.all_finite(part, tuple(range(x.ndim))) for part in parts]).all()


def _copy(src: torch.Tensor, dst: torch.Tensor, pairs: Pairs) -> None:
    """`dst[:, pairs.dst] = src[:, pairs.src]`, of one dtype."""
    if src.dtype.itemsize == 1:  # float8 as bytes: not every operation knows it
        src, dst = src.view(torch.uint8), dst.view(torch.uint8)
    if src.device.type != "cpu":
        dst.index_copy_(1, pairs.dst, src.index_select(1, pairs.src))
        return
    for a, b in pairs:  # five times as fast as one call with an index tensor
        dst[:, b].copy_(src[:, a])


def _copy_checked(src: Sequence[torch.Tensor], dst: Sequence[torch.Tensor], pairs: Pairs, finite: torch.Tensor) -> None:
    """Copies several tensors, and writes `finite[pairs.dst]`: whether all of them are."""
    good = torch.ones_like(pairs.dst, dtype=torch.bool)
    for a, b in zip(src, dst, strict=True):
        _copy(a, b, pairs)
        good &= _check_finite(a, pairs)
    finite.index_copy_(0, pairs.dst, good)


def _zeros(
    layout: StateLayout, slots: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return torch.zeros((layout.layers, slots + 1, *shape), dtype=dtype, device=device)


def _zero_conv(layout: StateLayout, slots: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    return tuple(_zeros(layout, slots, window.shape, window.dtype, device) for window in layout.conv)


class Plain:
    """`none`: states as they are. Only the flag is added."""

    name: Final = "none"

    def bytes_per_state(self, layout: StateLayout) -> int:
        """The state's bytes and the flag's."""
        return layout.bytes_per_state + 1

    def allocate(self, layout: StateLayout, slots: int, device: torch.device) -> Storage:
        """Tensors as a state pool's."""
        temporal = layout.temporal and _zeros(layout, slots, layout.temporal, layout.temporal_dtype, device)
        finite = torch.zeros(slots + 1, dtype=torch.bool, device=device)
        return Storage(temporal, None, _zero_conv(layout, slots, device), finite)

    def store(self, states: States, src_slots: Slots, storage: Storage, dst_slots: Slots) -> None:
        """Copies, and looks for what is not finite."""
        pairs = Pairs(src_slots, dst_slots, storage.finite.device)
        _copy_checked(_parts(states), _parts(storage), pairs, storage.finite)

    def load(self, storage: Storage, src_slots: Slots, states: States, dst_slots: Slots) -> None:
        """Copies."""
        pairs = Pairs(src_slots, dst_slots, storage.finite.device)
        for a, b in zip(_parts(storage), _parts(states), strict=True):
            _copy(a, b, pairs)


def _parts(states: States | Storage) -> list[torch.Tensor]:
    return [*states.conv] if states.temporal is None else [states.temporal, *states.conv]


class Int8:
    """`int8`: the temporal state as `stemcache.pools.quant` says, conv windows as they are."""

    name: Final = "int8"

    def bytes_per_state(self, layout: StateLayout) -> int:
        """A byte a number, four a scale, the conv windows, the flag.

        Raises:
            InvalidArgumentError: states of another dtype than float16, bfloat16 and float32.
        """
        if layout.temporal is None:
            return layout.conv_bytes + 1
        quant.check_quantisable(layout.temporal_dtype)
        heads, _, d_k = layout.temporal
        return layout.layers * (math.prod(layout.temporal) + 4 * heads * d_k) + layout.conv_bytes + 1

    def allocate(self, layout: StateLayout, slots: int, device: torch.device) -> Storage:
        """int8 numbers, float32 scales, conv windows, flags.

        Raises:
            InvalidArgumentError: states of another dtype than float16, bfloat16 and float32.
        """
        temporal = scale = None
        if layout.temporal is not None:
            quant.check_quantisable(layout.temporal_dtype)
            heads, _, d_k = layout.temporal
            temporal = _zeros(layout, slots, layout.temporal, torch.int8, device)
            scale = _zeros(layout, slots, (heads, d_k), torch.float32, device)
        finite = torch.zeros(slots + 1, dtype=torch.bool, device=device)
        return Storage(temporal, scale, _zero_conv(layout, slots, device), finite)

    def store(self, states: States, src_slots: Slots, storage: Storage, dst_slots: Slots) -> None:
        """Quantises the temporal state, copies the conv windows, flags either."""
        pairs = Pairs(src_slots, dst_slots, storage.finite.device)
        _copy_checked(states.conv, storage.conv, pairs, storage.finite)
        if states.temporal is not None and storage.temporal is not None and storage.scale is not None:
            _store(states.temporal, storage.temporal, storage.scale, storage.finite, pairs)

    def load(self, storage: Storage, src_slots: Slots, states: States, dst_slots: Slots) -> None:
        """Dequantises the temporal state, copies the conv windows."""
        pairs = Pairs(src_slots, dst_slots, storage.finite.device)
        for a, b in zip(storage.conv, states.conv, strict=True):
            _copy(a, b, pairs)
        if states.temporal is not None and storage.temporal is not None and storage.scale is not None:
            _load(storage.temporal, storage.scale, states.temporal, pairs)


def _store(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, finite: torch.Tensor, pairs: Pairs) -> None:
    if x.is_cuda and HAS_TRITON:
        from stemcache.pools import quant_triton  # noqa: PLC0415  # needs triton

        quant_triton.store(x, q, scale, finite, pairs.src, pairs.dst)
    elif x.device.type == "cpu":
        _store_by_slot(x, q, scale, finite, pairs)
    else:
        store_batched(x, q, scale, finite, pairs)


def _load(q: torch.Tensor, scale: torch.Tensor, x: torch.Tensor, pairs: Pairs) -> None:
    if x.is_cuda and HAS_TRITON:
        from stemcache.pools import quant_triton  # noqa: PLC0415  # needs triton

        quant_triton.load(q, scale, x, pairs.src, pairs.dst)
    elif x.device.type == "cpu":
        _load_by_slot(q, scale, x, pairs)
    else:
        load_batched(q, scale, x, pairs)


def _store_by_slot(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, finite: torch.Tensor, pairs: Pairs) -> None:
    scratch = quant.Scratch(x.dtype, x.device)
    scale = scale.unsqueeze(-2)
    for a, b in pairs:
        for numbers, packed, scales in _tiles(x[:, a], q[:, b], scale[:, b]):
            quant.quantise(numbers, packed, scales, scratch)
        finite[b] &= quant.settle(scale[:, b], (0, 1, 2, 3))


def _load_by_slot(q: torch.Tensor, scale: torch.Tensor, x: torch.Tensor, pairs: Pairs) -> None:
    scratch = quant.Scratch(x.dtype, x.device)
    scale = scale.unsqueeze(-2)
    for a, b in pairs:
        for packed, scales, numbers in _tiles(q[:, a], scale[:, a], x[:, b]):
            quant.dequantise(packed, scales, numbers, scratch)


def _tiles(*slot: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Numbers and scales of one slot, `[L, H, ...]` each, cut alike; the first are numbers."""
    heads, head = slot[0].shape[1], math.prod(slot[0].shape[2:])
    return zip(*(quant.cut(part, heads, head, quant.TILE) for part in slot), strict=True)


def store_batched(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, finite: torch.Tensor, pairs: Pairs) -> None:
    """Quantises all slots of a call together, on any device, without a fused kernel.

    Args:
        x: the states, `[L, slots, H, d_v, d_k]`.
        q: int8, `[L, slots', H, d_v, d_k]`; written.
        scale: float32 `[L, slots', H, d_k]`; written.
        finite: bool `[slots']`; set to False, and never to True, where a state has an infinity or a NaN.
        pairs: slots of x and slots of the others.
    """
    scratch = quant.Scratch(x.dtype, x.device)
    for some in _layers(x, pairs):
        numbers = x[some].index_select(1, pairs.src)
        packed = torch.empty_like(numbers, dtype=torch.int8)
        scales = torch.empty_like(numbers[..., :1, :], dtype=torch.float32)
        quant.quantise(numbers, packed, scales, scratch)
        good = finite.index_select(0, pairs.dst) & quant.settle(scales, (0, 2, 3, 4))
        finite.index_copy_(0, pairs.dst, good)
        q[some].index_copy_(1, pairs.dst, packed)
        scale[some].index_copy_(1, pairs.dst, scales.squeeze(-2))


def load_batched(q: torch.Tensor, scale: torch.Tensor, x: torch.Tensor, pairs: Pairs) -> None:
    """The inverse of `store_batched`, with the same shapes; slots of q and slots of x."""
    scratch = quant.Scratch(x.dtype, x.device)
    for some in _layers(x, pairs):
        packed, scales = q[some].index_select(1, pairs.src), scale[some].index_select(1, pairs.src)
        numbers = torch.empty_like(packed, dtype=x.dtype)
        quant.dequantise(packed, scales.unsqueeze(-2), numbers, scratch)
        x[some].index_copy_(1, pairs.dst, numbers)


def _layers(x: torch.Tensor, pairs: Pairs) -> Iterator[slice]:
    """As many layers at a time as bound the temporaries."""
    some = max(1, quant.DEVICE_TILE // (math.prod(x.shape[2:]) * len(pairs.src)))
    return (slice(layer, layer + some) for layer in range(0, len(x), some))


_QUANTISERS: dict[str, Quantiser] = {}


def register(quantiser: Quantiser) -> None:
    """Makes a quantiser known by its name; the last of a name counts."""
    _QUANTISERS[quantiser.name] = quantiser


def by_name(name: str) -> Quantiser:
    """The quantiser of that name.

    Raises:
        InvalidArgumentError: no such quantiser; the message lists those there are.
    """
    if name not in _QUANTISERS:
        raise InvalidArgumentError(f"no quantiser is called {name!r}; there are {', '.join(sorted(_QUANTISERS))}")
    return _QUANTISERS[name]


register(Plain())
register(Int8())
