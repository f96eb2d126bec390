"""The functions of int8 quantisation, against clumsy ones in float64, and the fused kernels against them.

Triton decides at its import whether it interprets, so the tests of the interpreter run in a process of their own.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the pools need torch")

import numpy as np
import torch

from stemcache import InvalidArgumentError
from stemcache.pools import quant
from stemcache.pools.quantiser import Pairs, load_batched, store_batched

torch.set_num_threads(1)
INF, NAN = float("inf"), float("nan")
EDGES = [0.0, 1e-12, 3.9e-11, 1e-8, 1e-6, 1e-4, 0.5, 1.0, 127.0, 1000.0, 65504.0, 3.3e38, 3.4028235e38]
# Half a unit in the last place, relative; half the least subnormal.
ROUNDING = {torch.float16: (2**-11, 2**-25), torch.bfloat16: (2**-8, 2**-134), torch.float32: (2**-24, 2**-150)}
dtypes = pytest.mark.parametrize("dtype", quant.QUANTISABLE, ids=str)


def states(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """States whose channels differ by many orders of magnitude, all finite."""
    random = torch.Generator().manual_seed(seed)
    powers = torch.empty(*shape[:-2], 1, shape[-1]).uniform_(-12, 4, generator=random)
    return (torch.randn(shape, generator=random) * 10**powers).clamp(-6e4, 6e4).to(dtype)


def packed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The int8, the scales and the flag of `x[L, H, d_v, d_k]`."""
    q, scale = torch.empty(x.shape, dtype=torch.int8), torch.empty(*x.shape[:-2], 1, x.shape[-1])
    quant.quantise(x, q, scale, quant.Scratch(x.dtype, x.device))
    return q, scale, quant.settle(scale, (0, 1, 2, 3))


def loaded(q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    x = torch.empty(q.shape, dtype=dtype)
    quant.dequantise(q, scale, x, quant.Scratch(dtype, x.device))
    return x


def bound(x: torch.Tensor) -> torch.Tensor:
    """The largest error that is allowed, by number, in float64: 1/254 of the channel's maximum, and the roundings."""
    peak = x.double().abs().amax(-2, keepdim=True).clamp(min=1e-8)
    relative, absolute = ROUNDING[x.dtype]
    largest = x.double().abs() + peak / 254
    return peak / 254 * (1 + 1e-6) + largest * relative + absolute + 2e-7 * peak


@dtypes
def test_the_scale_and_the_numbers_are_those_of_the_definition(dtype: torch.dtype) -> None:
    x = states(1, (3, 4, 24, 40), dtype)
    q, scale, _ = packed(x)
    numbers = x.float()
    expected = numbers.abs().amax(-2, keepdim=True).clamp(min=1e-8) / torch.full((), 127.0)
    assert torch.equal(scale, expected)
    assert torch.equal(q, (numbers / expected).round().to(torch.int8))
    assert torch.equal(loaded(q, scale, dtype), (q.float() * expected).to(dtype))


@dtypes
@given(data=st.data())
def test_no_number_is_off_by_more_than_half_a_step(data: st.DataObject, dtype: torch.dtype) -> None:
    d_v, d_k = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 5))
    width = {torch.float16: 16, torch.bfloat16: 32, torch.float32: 32}[dtype]
    finite = st.floats(-(2.0**127), 2.0**127, width=32) if width == 32 else st.floats(-65504, 65504, width=16)
    numbers = data.draw(st.lists(finite | st.sampled_from([0.0, -0.0]), min_size=d_v * d_k, max_size=d_v * d_k))
    x = torch.tensor(numbers, dtype=torch.float64).to(dtype).reshape(1, 1, d_v, d_k)
    q, scale, good = packed(x)
    y = loaded(q, scale, dtype)
    assert bool(good)
    assert bool(((y.double() - x.double()).abs() <= bound(x)).all())


def test_case_56_small_fp16_channels_survive() -> None:
    """A scale rounded to fp16 turns the first into zeros and is 1.6 % off at the second."""
    for peak in (1e-6, 1e-5, 1e-4):
        x = torch.full((1, 1, 8, 1), peak, dtype=torch.float16)
        q, scale, _ = packed(x)
        assert scale.dtype is torch.float32
        assert torch.equal(loaded(q, scale, torch.float16), x)


@dtypes
@pytest.mark.parametrize("peak", EDGES)
def test_the_largest_number_of_a_channel_comes_back(dtype: torch.dtype, peak: float) -> None:
    peak = min(peak, torch.finfo(dtype).max)
    x = torch.tensor([peak, -peak, peak / 3, 0.0]).to(dtype).reshape(1, 1, 4, 1)
    q, scale, good = packed(x)
    y = loaded(q, scale, dtype)
    assert bool(good)
    assert bool(torch.isfinite(y).all())
    assert bool(((y.double() - x.double()).abs() <= bound(x)).all())


def test_case_58_what_an_outlier_costs() -> None:
    """Known, and bounded: its channel has steps of 1/127 of it. Other channels notice nothing."""
    x = torch.tensor([[1000.0, 1.0], [2.0, 2.0], [0.5, 0.5]]).reshape(1, 1, 3, 2)
    q, scale, _ = packed(x)
    y = loaded(q, scale, torch.float32)[0, 0]
    assert y[:, 0].tolist() == [1000.0, 0.0, 0.0]
    assert torch.allclose(y[:, 1], x[0, 0, :, 1], rtol=0, atol=2 / 254)


@dtypes
def test_case_58_going_round_again_costs_nothing(dtype: torch.dtype) -> None:
    x = states(2, (2, 8, 64, 64), dtype)
    q, scale, _ = packed(x)
    first = loaded(q, scale, dtype)
    again = first
    for _ in range(5):
        again = loaded(*packed(again)[:2], dtype)
        assert torch.equal(again, first)


@dtypes
@pytest.mark.parametrize("bad", [INF, -INF, NAN, -NAN])
def test_case_57_one_bad_number_anywhere_is_seen(dtype: torch.dtype, bad: float) -> None:
    """Also beside zeros (inf * 0 is NaN), beside the largest finite numbers, and as a channel's only number."""
    for d_v in (1, 2, 33):
        for background in (0.0, 1.0, torch.finfo(dtype).max, torch.finfo(dtype).tiny):
            x = torch.full((2, 2, d_v, 17), background, dtype=dtype)
            assert bool(packed(x)[2])
            for at in {0, d_v // 2, d_v - 1}:
                y = x.clone()
                y[1, 0, at, 16] = bad
                assert not bool(packed(y)[2])
                assert bool(quant.all_finite(x, (0, 1, 2, 3)))
                assert not bool(quant.all_finite(y, (0, 1, 2, 3)))


@dtypes
def test_every_bit_pattern_is_judged_as_torch_judges_it(dtype: torch.dtype) -> None:
    """All of 16 bits; of float32 all exponents with the mantissas that decide."""
    if dtype.itemsize == 2:
        x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    else:
        high = torch.arange(-(2**8), 2**8, dtype=torch.int64).unsqueeze(1) << 23
        x = (high + torch.tensor([0, 1, 2**22, 2**23 - 1])).to(torch.int32).view(dtype).flatten()
    row = x.reshape(1, 1, 1, -1)
    _, scale, _ = packed(row)
    unsettled = torch.empty(row.shape)
    quant.quantise(row, torch.empty(row.shape, dtype=torch.int8), unsettled, quant.Scratch(dtype, x.device))
    assert torch.equal(torch.isfinite(unsettled).flatten(), torch.isfinite(x))
    assert torch.equal(quant.all_finite(x.reshape(-1, 1), (1,)), torch.isfinite(x))
    assert bool((scale[torch.isfinite(scale)] <= quant.MOST).all())


def test_float8_and_integers_are_judged_too() -> None:
    good = torch.tensor([1.0, -2.0]).to(torch.float8_e5m2)
    assert bool(quant.all_finite(good, (0,)))
    assert not bool(quant.all_finite(torch.tensor([1.0, INF]).to(torch.float8_e5m2), (0,)))
    assert not bool(quant.all_finite(torch.tensor([1.0, NAN]).to(torch.float8_e4m3fn), (0,)))
    assert quant.all_finite(torch.tensor([[1, 2], [3, 4]]), (1,)).tolist() == [True, True]


@given(layers=st.integers(1, 9), heads=st.integers(1, 9), head=st.integers(1, 50), limit=st.integers(1, 500))
def test_tiles_cover_a_state_once(layers: int, heads: int, head: int, limit: int) -> None:
    x = torch.zeros(layers, heads, head, dtype=torch.int8)
    for tile in quant.cut(x, heads, head, limit):
        assert tile.numel() <= max(limit, head)
        tile.add_(1)
    assert bool((x == 1).all())


@given(limit=st.sampled_from([1, 24 * 40, 3 * 24 * 40, 10**6]))
def test_tiles_change_no_number(limit: int) -> None:
    x = states(3, (3, 4, 24, 40), torch.bfloat16)
    q, scale = torch.empty(x.shape, dtype=torch.int8), torch.empty(3, 4, 1, 40)
    scratch = quant.Scratch(x.dtype, x.device)
    for a, b, c in zip(*(quant.cut(part, 4, 24 * 40, limit) for part in (x, q, scale)), strict=True):
        quant.quantise(a, b, c, scratch)
    assert torch.equal(q, packed(x)[0])
    assert torch.equal(scale, packed(x)[1])


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="float64"):
        quant.check_quantisable(torch.float64)


# Batched over slots, without and with the fused kernels.


def pool(x: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Storage for states like `x[L, slots, H, d_v, d_k]`: int8, scales, flags, filled with what must be overwritten."""
    shape = (len(x), slots, *x.shape[2:])
    q = torch.full(shape, 77, dtype=torch.int8, device=x.device)
    scale = torch.full((*shape[:3], shape[4]), 77.0, device=x.device)
    return q, scale, torch.ones(slots, dtype=torch.bool, device=x.device)


def check_batched(device: str, dtype: torch.dtype, shape: tuple[int, ...], fused: bool) -> None:
    """Slots 1, 3 and a bad 4 into 2, 5 and 1: bit for bit what the tiles say, and no other slot is touched."""
    layers, heads, d_v, d_k = shape
    x = states(4, (layers, 5, heads, d_v, d_k), dtype).to(device)
    x[:, 1, :, :, 0] = torch.finfo(dtype).max
    x[layers - 1, 4, heads - 1, d_v - 1, d_k - 1] = NAN
    x[0, 2] = INF  # not asked for
    q, scale, finite = pool(x, 6)
    pairs = Pairs(np.array([1, 3, 4]), np.array([2, 5, 1]), torch.device(device))
    if fused:
        from stemcache.pools import quant_triton

        quant_triton.store(x, q, scale, finite, pairs.src, pairs.dst)
    else:
        store_batched(x, q, scale, finite, pairs)
    assert finite.tolist() == [True, False, True, True, True, True]
    for a, b in ((1, 2), (3, 5)):
        numbers, scales, _ = packed(x[:, a].cpu())
        assert torch.equal(q[:, b].cpu(), numbers)
        assert torch.equal(scale[:, b].cpu(), scales.squeeze(-2))
    assert bool((q[:, [0, 3, 4]] == 77).all())
    assert bool((scale[:, [0, 3, 4]] == 77).all())
    target = torch.zeros_like(x)
    back = Pairs(np.array([5, 2]), np.array([1, 3]), torch.device(device))
    if fused:
        quant_triton.load(q, scale, target, back.src, back.dst)
    else:
        load_batched(q, scale, target, back)
    for a, b in ((5, 1), (2, 3)):
        expected = loaded(q[:, a].cpu(), scale[:, a].cpu().unsqueeze(-2), torch.float32)
        if (
            dtype is torch.bfloat16 and fused and device == "cpu"
        ):  # the interpreter cuts instead of rounding; GPUs do not
            expected = (expected.view(torch.int32) & -0x10000).view(torch.float32)
        assert torch.equal(target[:, b].cpu(), expected.to(dtype))
    assert bool((target[:, [0, 2, 4]] == 0).all())


SHAPES = [(1, 1, 1, 1), (3, 2, 24, 40), (2, 3, 128, 128), (2, 1, 300, 20), (1, 2, 5, 200)]


@dtypes
@pytest.mark.parametrize("shape", SHAPES)
def test_all_slots_together_on_the_cpu(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    check_batched("cpu", dtype, shape, fused=False)


def test_bounded_temporaries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quant, "DEVICE_TILE", 1)
    check_batched("cpu", torch.bfloat16, (3, 2, 24, 40), fused=False)


def interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


@pytest.mark.skipif(not interpreted(), reason="run by test_the_kernels_under_tritons_interpreter")
@dtypes
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_interpreted(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    check_batched("cpu", dtype, shape, fused=True)


@pytest.mark.skipif(interpreted(), reason="this is the process that it starts")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_kernels_under_tritons_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "kernels_interpreted"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(SHAPES) * len(quant.QUANTISABLE)} passed" in run.stdout


@pytest.mark.skipif(interpreted(), reason="the interpreter compiles nothing")
def test_the_kernels_compile_for_a_gpu_that_is_not_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And divide as IEEE 754 says, without flushing small numbers to zero, and round to bfloat16."""
    triton = pytest.importorskip("triton", reason="triton is not installed")
    compiler = pytest.importorskip("triton.backends.compiler")
    from stemcache.pools import quant_triton

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kinds = {"x": "*bf16", "q": "*i8", "scale": "*fp32", "finite": "*u8", "src_slots": "*i64", "dst_slots": "*i64"}
    blocks = {"BLOCK_V": 128, "BLOCK_K": 64}
    for kernel, instruction in ((quant_triton._store, "div.rn.f32"), (quant_triton._load, "cvt.rn.bf16")):  # noqa: SLF001
        signature = {name: "constexpr" if name in blocks else kinds.get(name, "i32") for name in kernel.arg_names}
        source = triton.compiler.ASTSource(kernel, signature, constexprs=blocks)
        target = compiler.GPUTarget("cuda", 90, 32)
        assembly = triton.compile(source, target=target, options={"enable_fp_fusion": False}).asm["ptx"]
        assert instruction in assembly
        assert ".ftz" not in assembly


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("fused", [False, True])
@dtypes
@pytest.mark.parametrize("shape", SHAPES)
def test_all_slots_together_on_a_gpu(dtype: torch.dtype, shape: tuple[int, ...], fused: bool) -> None:
    if fused:
        pytest.importorskip("triton", reason="triton is not installed")
    check_batched("cuda", dtype, shape, fused)
