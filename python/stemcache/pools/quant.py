"""int8 quantisation of recurrent states, as functions on tensors.

A state `S[..., d_v, d_k]` becomes int8 numbers of the same shape and one float32 scale per k-channel `[..., d_k]`: the
largest `|S|` over d_v, at least 1e-8, over 127. Maxima, scale, division and rounding (half to even) are float32,
whatever the state's dtype, so that the small channels of an fp16 state survive. The error of a number is at most
`scale / 2`, that is 1/254 of its channel's largest magnitude, plus the rounding to the state's dtype on the way back.
What this cannot do: a channel with one outlier loses what lies below 1/254 of the outlier, and whatever lies below
4e-11 is 0.

Loaded numbers quantise to the same int8 again: going round any number of times costs what the first time does.

A tile is as much of a state as stays in a core's second-level cache with its temporaries; all work is done tile by
tile into scratch that is made once a call. With float32 temporaries of the whole state it takes much longer.
"""

from typing import Final

import torch

from stemcache.errors import InvalidArgumentError

LEAST: Final = 1e-8
"""The least maximum of a channel. Below it a scale would serve nothing but noise."""

MOST: Final = 3.4028233e38 / 127
"""The largest scale: that of float32's last finite number, and of no other, would give infinity on the way back."""

MAGIC: Final = 12582912.0
"""1.5 * 2**23. Added to a float32 below 2**22 it rounds it, half to even, and leaves the integer in the low bits."""

TILE: Final = 1 << 17
"""Elements of a tile on the CPU: 512 KiB of float32, about 1.2 MiB with all that a step touches."""

DEVICE_TILE: Final = 1 << 25
"""Elements of a tile elsewhere: few launches, and bounded temporaries."""

QUANTISABLE: Final = (torch.float16, torch.bfloat16, torch.float32)
_INTEGERS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_INFINITY: Final = {
    torch.float16: 0x7C00,
    torch.bfloat16: 0x7F80,
    torch.float32: 0x7F80_0000,
    torch.float64: 0x7FF0_0000_0000_0000,
}


def check_quantisable(dtype: torch.dtype) -> None:
    """Refuses what float32 cannot hold.

    Raises:
        InvalidArgumentError: neither float16, bfloat16 nor float32.
    """
    if dtype not in QUANTISABLE:
        names = ", ".join(map(str, QUANTISABLE))
        raise InvalidArgumentError(f"int8 checkpoints are of {names} states, not of {dtype}")


class Tile:
    """Buffers for a tile of one shape, contiguous: as they are, and as integers of the same width."""

    __slots__ = ("bits", "magnitude", "peak", "peak_bits", "work", "work_bits")

    def __init__(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> None:
        self.magnitude = torch.empty(shape, dtype=dtype, device=device)
        self.peak = torch.empty((*shape[:-2], 1, shape[-1]), dtype=dtype, device=device)
        own = dtype is torch.float32  # one buffer less in the cache
        self.work = self.magnitude if own else torch.empty(shape, dtype=torch.float32, device=device)
        self.bits, self.peak_bits = (x.view(_INTEGERS[dtype.itemsize]) for x in (self.magnitude, self.peak))
        self.work_bits = self.work.view(torch.int32)


class Scratch:
    """What one call uses for all its tiles, so that they stay in cache and nothing is allocated between them.

    Not for two threads at once: each call makes its own.

    Args:
        dtype: of the states.
        device: of the states.
    """

    __slots__ = ("_tiles", "device", "dtype", "levels", "magic")

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        # Tensors: torch makes a multiplication by 1/n of a division by a Python number on CUDA.
        self.levels = torch.full((), 127.0, device=device)
        self.magic = torch.full((), MAGIC, device=device)
        self._tiles: dict[torch.Size, Tile] = {}

    def tile(self, shape: torch.Size) -> Tile:
        """The buffers for that shape, their contents whatever was left there."""
        found = self._tiles.get(shape)
        if found is None:
            found = self._tiles[shape] = Tile(shape, self.dtype, self.device)
        return found


def cut(x: torch.Tensor, heads: int, head: int, limit: int) -> list[torch.Tensor]:
    """Views of `x[L, H, ...]` that together are x.

    Args:
        x: first axis layers, second axis heads.
        heads: H.
        head: elements of one head of a state; x's own may be fewer, so that scales are cut like their states.
        limit: elements of a tile; it is never less than one head.
    """
    layers = torch.split(x, max(1, limit // (heads * head)), 0)
    return [tile for layer in layers for tile in torch.split(layer, max(1, limit // head), 1)]


def quantise(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, scratch: Scratch) -> None:
    """Quantises a tile. `settle` is to follow, when all tiles of a state are done.

    Args:
        x: `[..., d_v, d_k]`, of scratch's dtype, one of `QUANTISABLE`.
        q: int8, the same shape; written. Rubbish in a channel that is not finite.
        scale: float32 `[..., 1, d_k]`; written. Finite if and only if its channel is.
        scratch: buffers on x's device.
    """
    tile = scratch.tile(x.shape)
    torch.abs(x, out=tile.magnitude)
    # As integers the bits of magnitudes have the same order, infinities and NaNs above all; a third of the time.
    torch.amax(tile.bits, dim=-2, keepdim=True, out=tile.peak_bits)
    scale.copy_(tile.peak).clamp_(LEAST).div_(scratch.levels)
    numbers = x if scratch.dtype is torch.float32 else tile.work.copy_(x)
    torch.addcdiv(scratch.magic, numbers, scale, out=tile.work)
    q.copy_(tile.work_bits)  # the low byte


def settle(scale: torch.Tensor, dim: tuple[int, ...]) -> torch.Tensor:
    """Whether states are finite, after `quantise`; and keeps what will be loaded from running over.

    Args:
        scale: all scales of the states; changed.
        dim: the axes to take together.

    Returns:
        A bool tensor of the axes that are left. Exact: False if any number of the state is an infinity or a NaN.
    """
    finite = torch.isfinite(scale).all(dim=dim)
    scale.clamp_(max=MOST)
    return finite


def dequantise(q: torch.Tensor, scale: torch.Tensor, x: torch.Tensor, scratch: Scratch) -> None:
    """The inverse of `quantise`, of a tile: `x = q * scale` in float32, then rounded to x's dtype.

    Args:
        q: int8 `[..., d_v, d_k]`.
        scale: float32 `[..., 1, d_k]`.
        x: the shape of q, of scratch's dtype; written.
        scratch: buffers on x's device.
    """
    if scratch.dtype is torch.float32:
        x.copy_(q).mul_(scale)
    else:
        x.copy_(scratch.tile(q.shape).work.copy_(q).mul_(scale))


def all_finite(x: torch.Tensor, dim: tuple[int, ...]) -> torch.Tensor:
    """Whether `x`, of any dtype, holds neither an infinity nor a NaN along these axes; a bool tensor of the others."""
    if not x.dtype.is_floating_point:
        kept = [size for axis, size in enumerate(x.shape) if axis not in dim]
        return torch.ones(kept, dtype=torch.bool, device=x.device)
    wide = x.to(torch.float32) if x.dtype.itemsize == 1 else x
    return wide.abs().view(_INTEGERS[wide.dtype.itemsize]).amax(dim=dim) < _INFINITY[wide.dtype]
