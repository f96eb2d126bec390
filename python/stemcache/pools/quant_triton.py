"""int8 quantisation of recurrent states on a GPU: one fused pass to store, one to load.

The same numbers, bit for bit, as `stemcache.pools.quant`: division rounds to nearest (Triton's `/` does not), rounding
is half to even. Importing this module needs triton. With `TRITON_INTERPRET=1` set before the import the kernels run on
CPU tensors, which is how they are tested without a GPU.
"""

# A kernel's arguments have no types that Python knows, and its constants are named as all kernels name them.
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917
# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found, untyped-decorator"

from typing import Any

import torch
import triton
import triton.language as tl

from stemcache.pools.quant import LEAST, MAGIC, MOST

# Elements of a program's block: 64 float32 registers a thread with four warps.
_BLOCK = 8192
_INFINITY_BITS = tl.constexpr(0x7F800000)
_MAGNITUDE_BITS = tl.constexpr(0x7FFFFFFF)
_LEAST = tl.constexpr(LEAST)
_MOST = tl.constexpr(MOST)
_MAGIC = tl.constexpr(MAGIC)


@triton.jit
def _block(heads, d_v, d_k, k_blocks, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr):
    """Which layer, head and k-channels a program works on, and the offsets within a head."""
    program = tl.program_id(0)
    layer = (program // (heads * k_blocks)).to(tl.int64)
    head = program // k_blocks % heads
    v = tl.arange(0, BLOCK_V)
    k = (program % k_blocks) * BLOCK_K + tl.arange(0, BLOCK_K)
    inside = (v[:, None] < d_v) & (k[None, :] < d_k)
    return layer, head, k, v[:, None] * d_k + k[None, :], inside


@triton.jit
def _store(
    x, q, scale, finite, src_slots, dst_slots,
    x_layer, x_slot, q_layer, q_slot, scale_layer, scale_slot,
    heads, d_v, d_k, k_blocks,
    BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    layer, head, k, offsets, inside = _block(heads, d_v, d_k, k_blocks, BLOCK_V, BLOCK_K)
    src = tl.load(src_slots + tl.program_id(1))
    dst = tl.load(dst_slots + tl.program_id(1))
    numbers = tl.load(x + layer * x_layer + src * x_slot + head * d_v * d_k + offsets, mask=inside, other=0.0)
    numbers = numbers.to(tl.float32)
    # Bits of magnitudes are ordered as integers, infinities and NaNs above all: a maximum of floats may lose a NaN.
    peak = tl.max(numbers.to(tl.int32, bitcast=True) & _MAGNITUDE_BITS, axis=0)
    largest = tl.maximum(peak.to(tl.float32, bitcast=True), _LEAST)
    scales = tl.div_rn(largest, tl.full(largest.shape, 127.0, tl.float32))
    divisors = tl.broadcast_to(scales[None, :], numbers.shape)
    rounded = tl.div_rn(numbers, divisors) + _MAGIC
    low = rounded.to(tl.int32, bitcast=True).to(tl.int8)
    tl.store(q + layer * q_layer + dst * q_slot + head * d_v * d_k + offsets, low, mask=inside)
    tl.store(scale + layer * scale_layer + dst * scale_slot + head * d_k + k, tl.minimum(scales, _MOST), mask=k < d_k)
    # All programs of a state that write here write the same.
    tl.store(finite + dst, tl.zeros((), tl.uint8), mask=tl.max(peak, axis=0) >= _INFINITY_BITS)


@triton.jit
def _load(
    x, q, scale, src_slots, dst_slots,
    x_layer, x_slot, q_layer, q_slot, scale_layer, scale_slot,
    heads, d_v, d_k, k_blocks,
    BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    layer, head, k, offsets, inside = _block(heads, d_v, d_k, k_blocks, BLOCK_V, BLOCK_K)
    src = tl.load(src_slots + tl.program_id(1))
    dst = tl.load(dst_slots + tl.program_id(1))
    numbers = tl.load(q + layer * q_layer + src * q_slot + head * d_v * d_k + offsets, mask=inside, other=0)
    scales = tl.load(scale + layer * scale_layer + src * scale_slot + head * d_k + k, mask=k < d_k, other=0.0)
    loaded = (numbers.to(tl.float32) * scales[None, :]).to(x.dtype.element_ty)
    tl.store(x + layer * x_layer + dst * x_slot + head * d_v * d_k + offsets, loaded, mask=inside)


def _launch(
    kernel: Any, tensors: tuple[torch.Tensor, ...], x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor
) -> None:
    layers, _, heads, d_v, d_k = x.shape
    block_v = triton.next_power_of_2(d_v)
    block_k = min(triton.next_power_of_2(d_k), max(16, _BLOCK // block_v))
    k_blocks = triton.cdiv(d_k, block_k)
    strides = [stride for tensor in (x, q, scale) for stride in tensor.stride()[:2]]
    grid = (layers * heads * k_blocks, len(tensors[-1]))
    sizes = heads, d_v, d_k, k_blocks
    with torch.cuda.device_of(x):  # triton launches on the current device, whatever its arguments are on
        kernel[grid](*tensors, *strides, *sizes, BLOCK_V=block_v, BLOCK_K=block_k, enable_fp_fusion=False)


def store(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    finite: torch.Tensor,
    src_slots: torch.Tensor,
    dst_slots: torch.Tensor,
) -> None:
    """Quantises many states in one launch.

    Args:
        x: the states, `[L, slots, H, d_v, d_k]`, float16, bfloat16 or float32, contiguous from H on.
        q: int8 `[L, slots', H, d_v, d_k]`, contiguous from H on; written at `dst_slots`.
        scale: float32 `[L, slots', H, d_k]`, contiguous from H on; written likewise.
        finite: bool `[slots']`; set to False, and never to True, where a state has an infinity or a NaN.
        src_slots: int64 `[n]` on the device.
        dst_slots: int64 `[n]` on the device.
    """
    _launch(_store, (x, q, scale, finite.view(torch.uint8), src_slots, dst_slots), x, q, scale)


def load(
    q: torch.Tensor, scale: torch.Tensor, x: torch.Tensor, src_slots: torch.Tensor, dst_slots: torch.Tensor
) -> None:
    """The inverse of `store`, with the same shapes: `x[:, dst] = q[:, src] * scale[:, src]`."""
    _launch(_load, (x, q, scale, src_slots, dst_slots), x, q, scale)
