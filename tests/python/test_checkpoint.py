"""The checkpoint pool: what goes in comes out, in the right slot, flagged exactly, in the bytes that were promised."""

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the pools need torch")

import numpy as np
import torch

from stemcache import InvalidArgumentError, OutOfSlotsError
from stemcache.pools import memory, quant, quantiser
from stemcache.pools.checkpoint import CheckpointPool
from stemcache.pools.layout import ConvWindow, KvLayout, StateLayout
from stemcache.pools.quant_report import error_report
from stemcache.pools.quantiser import Int8, Plain, by_name, register
from stemcache.pools.state import StatePool, StateTensors

torch.set_num_threads(1)
INF, NAN = float("inf"), float("nan")
BAD = (INF, -INF, NAN)
CONV = (ConvWindow((6, 3), torch.bfloat16), ConvWindow((5,), torch.float32), ConvWindow((2, 2, 2), torch.int32))
dtypes = pytest.mark.parametrize("dtype", quant.QUANTISABLE, ids=str)
names = pytest.mark.parametrize("name", ["none", "int8"])
devices = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
        ),
    ],
)


def layout(dtype: torch.dtype = torch.bfloat16) -> StateLayout:
    return StateLayout(3, (2, 12, 10), dtype, CONV)


def states(shape: StateLayout, slots: int = 5, device: str = "cpu") -> StatePool:
    """A pool of states that are all different, slot by slot."""
    pool = StatePool(shape, slots, device)
    random = torch.Generator().manual_seed(7)
    for part in StateTensors(pool.temporal, pool.conv).parts():
        part.copy_(torch.randn(part.shape, generator=random) * 10)
    return pool


def parts(pool: StatePool, slot: int) -> list[torch.Tensor]:
    return [part.cpu() for part in pool.gather(slot).parts()]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def rounded(temporal: torch.Tensor) -> torch.Tensor:
    """What int8 makes of a state: the definition, without tiles."""
    scale = temporal.float().abs().amax(-2, keepdim=True).clamp(min=1e-8) / torch.full((), 127.0)
    return ((temporal.float() / scale).round() * scale).to(temporal.dtype)


@devices
@names
@dtypes
def test_states_come_back_from_their_own_slots(dtype: torch.dtype, name: str, device: str) -> None:
    running = states(layout(dtype), device=device)
    pool = CheckpointPool(layout(dtype), 4, device, name)
    before = [parts(running, slot) for slot in range(6)]
    pool.store_from(running, [1, 3, 5], [4, 1, 2])
    assert pool.take_finite([4, 1, 2, 3]).tolist() == [True, True, True, False]
    running.clear_slots([1, 3, 5])
    pool.load_into(running, [2, 4], [3, 1])
    for slot, source in ((3, 5), (1, 1)):
        expected = before[source]
        if name == "int8":
            expected = [rounded(expected[0]), *expected[1:]]
        assert same(parts(running, slot), expected)
    for slot in (0, 2, 4):
        assert same(parts(running, slot), before[slot])
    assert all(not part.any() for part in parts(running, 5))


@names
def test_layers_of_convolutions_alone(name: str) -> None:
    shape = StateLayout(3, conv=CONV)
    running = states(shape)
    pool = CheckpointPool(shape, 2, quantiser=name)
    pool.store_from(running, [2], [1])
    pool.load_into(running, [1], [4])
    assert same(parts(running, 4), parts(running, 2))
    assert pool.take_finite([1]).tolist() == [True]


@names
def test_no_slots_are_no_work(name: str) -> None:
    running = states(layout())
    pool = CheckpointPool(layout(), 2, quantiser=name)
    pool.store_from(running, [], [])
    pool.load_into(running, np.empty(0, np.int64), [])
    assert pool.take_finite([]).tolist() == []


@devices
@names
@pytest.mark.parametrize("bad", BAD)
def test_case_57_a_bad_number_in_any_part_is_flagged(name: str, bad: float, device: str) -> None:
    """One at a time, in each corner of each part that can have one; its neighbours in the call stay good."""
    shape = layout()
    pool = CheckpointPool(shape, 3, device, name)
    for part in range(3):
        for corner in (0, -1):
            running = states(shape, device=device)
            tensor = StateTensors(running.temporal, running.conv).parts()[part]
            tensor[corner, 2].view(-1)[corner] = bad
            pool.store_from(running, [1, 2, 3], [1, 2, 3])
            assert pool.take_finite([1, 2, 3]).tolist() == [True, False, True]


@names
def test_a_slot_is_judged_anew_by_each_store(name: str) -> None:
    shape = layout()
    running = states(shape)
    assert running.temporal is not None
    running.temporal[1, 2, 1, 3, 4] = NAN
    pool = CheckpointPool(shape, 2, quantiser=name)
    for source, good in ((1, True), (2, False), (3, True)):
        pool.store_from(running, [source], [1])
        assert pool.take_finite([1]).tolist() == [good]
    pool.load_into(running, [1], [2])
    assert bool(torch.isfinite(running.temporal[:, 2]).all())


@dtypes
def test_case_58_storing_what_was_loaded_changes_nothing(dtype: torch.dtype) -> None:
    """The pool has no way from a packed state to another; and were a loaded state stored, it would not drift."""
    running = states(layout(dtype))
    pool = CheckpointPool(layout(dtype), 2)
    pool.store_from(running, [1], [1])
    pool.load_into(running, [1], [2])
    first = parts(running, 2)
    assert pool.storage.temporal is not None
    packed = pool.storage.temporal[:, 1].clone()
    for _ in range(5):
        pool.store_from(running, [2], [2])
        pool.load_into(running, [2], [2])
        assert same(parts(running, 2), first)
        assert torch.equal(pool.storage.temporal[:, 2], packed)


def test_storing_and_loading_never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads a tensor back is forbidden meanwhile: on a GPU each would wait for it."""
    running = states(layout())
    pools = [CheckpointPool(layout(), 2, quantiser=name) for name in ("none", "int8")]

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a device tensor was read back")

    for method in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero"):
        monkeypatch.setattr(torch.Tensor, method, refuse)
    for pool in pools:
        pool.store_from(running, [1, 2], [1, 2])
        pool.load_into(running, [1, 2], [3, 4])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@names
def test_storing_and_loading_never_wait_for_a_gpu(name: str) -> None:
    running = states(layout(), device="cuda")
    pool = CheckpointPool(layout(), 2, "cuda", name)
    pool.store_from(running, [1, 2], [1, 2])  # the kernels are compiled here
    pool.load_into(running, [1, 2], [3, 4])
    torch.cuda.set_sync_debug_mode("error")
    try:
        pool.store_from(running, [1, 2], [1, 2])
        pool.load_into(running, [1, 2], [3, 4])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert pool.take_finite([1, 2]).all()


@names
def test_case_59_the_bytes_are_known_before(name: str) -> None:
    for shape in (layout(), layout(torch.float32), StateLayout(2, conv=CONV), StateLayout(1, (1, 1, 1))):
        for slots in (1, 7):
            pool = CheckpointPool(shape, slots, quantiser=name)
            assert pool.storage.bytes_held == CheckpointPool.bytes_needed(shape, slots, name)


def test_int8_takes_half_the_bytes_of_bfloat16() -> None:
    shape = StateLayout(36, (32, 128, 128), torch.bfloat16)
    assert Int8().bytes_per_state(shape) / shape.bytes_per_state < 0.516


def test_case_59_a_pool_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: 1000)
    needed = CheckpointPool.bytes_needed(layout(), 9)
    with pytest.raises(OutOfSlotsError, match=rf"{needed}.*1000"):
        CheckpointPool(layout(), 9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "slots"),
        ((3, "cpu", "int3"), "int3.*int8, none"),
        ((3, "cpu", "int8", torch.float64), "float64"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    *rest, dtype = arguments if len(arguments) == 4 else (*arguments, torch.float32)
    with pytest.raises(InvalidArgumentError, match=message):
        CheckpointPool(layout(dtype), *rest)
    with pytest.raises(InvalidArgumentError, match=message):
        CheckpointPool.bytes_needed(layout(dtype), rest[0], *rest[2:])


@pytest.mark.parametrize(
    ("src", "dst"), [([6], [1]), ([1], [5]), ([-1], [1]), ([1], [-1]), ([1, 2], [1]), ([1.5], [1])]
)
def test_slots_that_are_not_there_are_refused(src: list[Any], dst: list[int]) -> None:
    running = states(layout())
    pool = CheckpointPool(layout(), 4)
    with pytest.raises(InvalidArgumentError):
        pool.store_from(running, src, dst)
    with pytest.raises(InvalidArgumentError):
        pool.load_into(running, dst, src)
    with pytest.raises(InvalidArgumentError):
        pool.take_finite([5])
    assert pool.storage.temporal is not None
    assert not pool.storage.temporal.any()
    assert same(parts(running, 1), parts(states(layout()), 1))


def test_none_takes_any_dtype() -> None:
    shape = StateLayout(2, (1, 3, 2), torch.float64, (ConvWindow((4,), torch.float8_e4m3fn),))
    running = states(shape)
    pool = CheckpointPool(shape, 1, quantiser="none")
    pool.store_from(running, [1], [1])
    pool.load_into(running, [1], [2])
    assert same([part.double() for part in parts(running, 1)], [part.double() for part in parts(running, 2)])
    running.conv[0][1, 3, 2] = NAN
    pool.store_from(running, [3], [1])
    assert pool.take_finite([1]).tolist() == [False]


def test_another_quantiser_needs_no_more_than_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zero(Plain):
        """Keeps conv windows only."""

        name = "zero"  # type: ignore[misc]

        def load(self, storage: Any, src_slots: Any, states: Any, dst_slots: Any) -> None:
            super().load(storage, src_slots, states, dst_slots)
            states.temporal[:, dst_slots] = 0

    monkeypatch.setattr(quantiser, "_QUANTISERS", dict(quantiser._QUANTISERS))  # noqa: SLF001
    register(Zero())
    assert by_name("zero").name == "zero"
    running = states(layout())
    pool = CheckpointPool(layout(), 1, quantiser="zero")
    pool.store_from(running, [1], [1])
    pool.load_into(running, [1], [2])
    assert not parts(running, 2)[0].any()
    assert same(parts(running, 2)[1:], parts(running, 1)[1:])


def test_many_threads_may_use_one_pool() -> None:
    """Each has its slots; scratch that calls shared would mix their states."""
    shape = StateLayout(4, (4, 32, 32), torch.bfloat16)
    running = states(shape, 8)
    pool = CheckpointPool(shape, 8)
    assert running.temporal is not None
    expected = [rounded(running.temporal[:, slot]) for slot in range(9)]
    wrong: list[int] = []

    def work(slot: int) -> None:
        for _ in range(20):
            pool.store_from(running, [slot], [9 - slot])
            pool.load_into(running, [9 - slot], [slot])
            if not torch.equal(parts(running, slot)[0], expected[slot]):
                wrong.append(slot)

    threads = [threading.Thread(target=work, args=(slot,)) for slot in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# The error report.


def test_the_report_measures_what_it_says() -> None:
    shape = StateLayout(2, (1, 3, 2), torch.float32)
    running = StatePool(shape, 2)
    assert running.temporal is not None
    running.temporal[0, 1, 0] = torch.tensor([[127.0, 1.0], [10.4, 0.0], [-3.0, -1.0]])  # 10.4 becomes 10
    report = error_report(CheckpointPool(shape, 1), running, [1])
    assert report.layers[0] == pytest.approx(0.4 / (127**2 + 10.4**2 + 3**2 + 2) ** 0.5, rel=1e-5)
    assert report.layers[1] == 0
    worst = report.worst
    assert worst is not None
    assert (worst.layer, worst.slot, worst.head, worst.channel, worst.peak) == (0, 1, 0, 0, 127.0)
    assert worst.error == pytest.approx(0.4 / 127, rel=1e-5)
    assert str(report).splitlines()[0] == "int8: relative error of 1 state"
    assert "slot 1, head 0, channel 0" in str(report)


def test_the_report_looks_at_all_slots_and_touches_none() -> None:
    running = states(layout())
    assert running.temporal is not None
    running.temporal[2, 4, 1, :, 7] = 0
    running.temporal[2, 4, 1, :2, 7] = torch.tensor([1000.0, 3.5])
    before = [parts(running, slot) for slot in range(6)]
    pool = CheckpointPool(layout(), 1)
    report = error_report(pool, running, [1, 4, 5])
    assert report.states == 3
    assert all(0 < error < 0.01 for error in report.layers)
    assert report.worst is not None
    assert report.worst.error <= 1 / 254 + 2**-8
    assert all(same(parts(running, slot), before[slot]) for slot in range(6))
    assert not pool.finite.any()


def test_the_report_of_plain_copies_of_zeros_and_of_rubbish() -> None:
    running = states(layout())
    plain = error_report(CheckpointPool(layout(), 1, quantiser="none"), running, [1])
    assert plain.layers == (0.0, 0.0, 0.0)
    running.clear_slots([2])
    zeros = error_report(CheckpointPool(layout(), 1), running, [2])
    assert zeros.layers == (0.0, 0.0, 0.0)
    assert zeros.worst is None
    assert str(zeros).endswith("worst channel: none")
    assert running.temporal is not None
    running.temporal[1, 3, 0, 0, 0] = NAN
    rubbish = error_report(CheckpointPool(layout(), 1), running, [2, 3])
    assert np.isnan(rubbish.layers[1])
    assert rubbish.worst is not None
    assert (rubbish.worst.layer, rubbish.worst.slot) == (1, 3)


def test_a_report_needs_a_temporal_state_and_a_slot() -> None:
    bare = StateLayout(3, conv=CONV)
    with pytest.raises(InvalidArgumentError, match="temporal"):
        error_report(CheckpointPool(bare, 1), states(bare), [1])
    with pytest.raises(InvalidArgumentError, match="slot"):
        error_report(CheckpointPool(layout(), 1), states(layout()), [])
    with pytest.raises(InvalidArgumentError, match="slots"):
        error_report(CheckpointPool(layout(), 1), states(layout()), [9])


# Layouts.


def test_bytes_of_layouts() -> None:
    assert KvLayout(2, 3, 4, 5, 6, torch.bfloat16).bytes_per_token == 2 * (12 + 30) * 2
    shape = layout(torch.float16)
    assert shape.temporal_bytes == 3 * 2 * 12 * 10 * 2
    assert shape.conv_bytes == 3 * (18 * 2 + 5 * 4 + 8 * 4)
    assert shape.bytes_per_state == shape.temporal_bytes + shape.conv_bytes
    assert StateLayout(3, conv=CONV).temporal_bytes == 0


def test_layouts_take_lists_and_are_values() -> None:
    window: Any = [6, 3]
    loose = StateLayout(3, (2, 12, 10), torch.bfloat16, [ConvWindow(window, torch.bfloat16)])  # type: ignore[arg-type]
    strict = StateLayout(3, (2, 12, 10), torch.bfloat16, (ConvWindow((6, 3), torch.bfloat16),))
    assert loose == strict
    assert hash(loose) == hash(strict)


@given(
    field=st.sampled_from(["layers", "k_heads", "k_dim", "v_heads", "v_dim"]),
    value=st.sampled_from([0, -1, 1.5, True, None, "3"]),
)
def test_wrong_kv_layouts_are_refused(field: str, value: Any) -> None:
    good: dict[str, Any] = {"layers": 1, "k_heads": 1, "k_dim": 1, "v_heads": 1, "v_dim": 1, "dtype": torch.float16}
    KvLayout(**good)
    with pytest.raises(InvalidArgumentError, match=field):
        KvLayout(**{**good, field: value})
    with pytest.raises(InvalidArgumentError, match=r"torch\.dtype"):
        KvLayout(**{**good, "dtype": "float16"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, (1, 1, 1)), "layers"),
        ((1, (1, 0, 1)), "temporal"),
        ((1, (1, 1)), "heads, d_v, d_k"),
        ((1, (1, 1, 1), torch.int8), "floating point"),
        ((1, (1, 1, 1), "bfloat16"), r"torch\.dtype"),
        ((1,), "neither"),
        ((1, None, torch.float32, ((6, 3),)), "ConvWindow"),
    ],
)
def test_wrong_state_layouts_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        StateLayout(*arguments)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((), torch.int8), ((0,), torch.int8), ((2, -1), torch.int8), ((2,), "int8")]
)
def test_wrong_conv_windows_are_refused(shape: tuple[int, ...], dtype: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        ConvWindow(shape, dtype)
