"""The pools in torch: contents, refusals, and no call that waits for the device."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch", reason="the pools need torch")

import torch

import stemcache
from guards import SyncError, no_sync
from stemcache.errors import InvalidArgumentError, OutOfSlotsError, SlotOwnershipError
from stemcache.pools import (
    ConvWindow,
    Cursors,
    HybridPools,
    KvLayout,
    KvPool,
    RequestRows,
    StateLayout,
    StatePool,
    StateTensors,
    memory,
)

Slots: TypeAlias = npt.NDArray[np.int64]
States: TypeAlias = tuple[torch.Tensor | None, tuple[torch.Tensor, ...]]

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
    ),
]
KV = KvLayout(layers=3, k_heads=2, k_dim=4, v_heads=1, v_dim=6, dtype=torch.bfloat16)
# Two windows of different shapes and dtypes beside a temporal state of a third dtype.
STATE = StateLayout(
    layers=2,
    temporal=(3, 4, 5),
    temporal_dtype=torch.float32,
    conv=(ConvWindow((7, 4), torch.bfloat16), ConvWindow((2,), torch.float16)),
)
CONV_ONLY = StateLayout(layers=2, conv=(ConvWindow((8, 3), torch.float32),))


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def numbered(shape: tuple[int, ...], start: int, device: str = "cpu") -> torch.Tensor:
    """Small distinct integers: exact in every dtype here."""
    size = int(np.prod(shape))
    return ((torch.arange(size, dtype=torch.float32) + start) % 251).reshape(shape).to(device)


def states(layout: StateLayout, n: int, start: int = 1, device: str = "cpu") -> States:
    """N states, [layers, n, ...] each."""
    temporal = None if layout.temporal is None else numbered((layout.layers, n, *layout.temporal), start, device)
    return temporal, tuple(numbered((layout.layers, n, *w.shape), start + i, device) for i, w in enumerate(layout.conv))


def everything(pool: StatePool) -> list[torch.Tensor]:
    return StateTensors(pool.temporal, pool.conv).parts()


def slots(*numbers: int) -> Slots:
    return np.array(numbers, dtype=np.int64)


def same(tensor: torch.Tensor, expected: Any) -> bool:
    return torch.equal(tensor.float().cpu(), expected.float().cpu())


def holds(gathered: StateTensors, expected: Any) -> None:
    temporal, conv = expected
    assert (gathered.temporal is None) == (temporal is None)
    assert gathered.temporal is None or temporal is None or same(gathered.temporal, temporal)
    assert len(gathered.conv) == len(conv)
    assert all(same(part, want) for part, want in zip(gathered.conv, conv, strict=True))


# KV


def test_kv_comes_back_from_the_slots_it_went_to(device: str) -> None:
    pool = KvPool(KV, 16, device)
    k, v = numbered((3, 4, 2, 4), 1), numbered((3, 4, 1, 6), 100)
    pool.store(slots(9, 2, 16, 5), k, v)
    got_k, got_v = pool.gather(slots(16, 9))
    assert got_k.dtype == torch.bfloat16
    assert same(got_k, k[:, [2, 0]])
    assert same(got_v, v[:, [2, 0]])
    untouched = [row for row in range(17) if row not in {9, 2, 16, 5}]
    assert not pool.k[:, untouched].any()
    assert not pool.v[:, untouched].any()


def test_kv_layers_are_views(device: str) -> None:
    pool = KvPool(KV, 4, device)
    k, v = pool.layer(1)
    k[3] = 7
    v[3] = 8
    assert same(pool.gather(slots(3))[0][1], torch.full((1, 2, 4), 7.0))
    assert not pool.k[0].any()
    assert k.shape == (5, 2, 4)
    assert v.shape == (5, 1, 6)


def test_a_copy_reads_all_before_it_writes_any(device: str) -> None:
    pool = KvPool(KV, 8, device)
    k, v = numbered((3, 3, 2, 4), 1), numbered((3, 3, 1, 6), 50)
    pool.store(slots(1, 2, 3), k, v)
    pool.copy_from(slots(1, 2, 3), slots(2, 3, 4))
    assert same(pool.gather(slots(2, 3, 4))[0], k)
    assert same(pool.gather(slots(2, 3, 4))[1], v)
    assert same(pool.gather(slots(1))[0], k[:, :1])


def test_a_copy_in_blocks_is_the_same(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_TEMPORARY_BYTES", {"cpu": 1, "cuda": 1})
    test_a_copy_reads_all_before_it_writes_any(device)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_every_slot_of_the_allocator_is_a_row(device: str, page_size: int) -> None:
    allocator = stemcache.KvAllocator(32) if page_size == 1 else stemcache.PagedKvAllocator(32, page_size)
    given = allocator.alloc(32)
    assert given is not None
    pool = KvPool(KV, 32, device, page_size)
    pool.store(given, numbered((3, 32, 2, 4), 1), numbered((3, 32, 1, 6), 1))
    assert given.max() == pool.rows - 1
    assert not pool.k[:, : given.min()].any(), "the dummies are nobody's"
    with pytest.raises(InvalidArgumentError, match=f"not all in this pool's 0 to {pool.rows - 1}"):
        pool.gather(slots(pool.rows))


def test_slots_need_be_neither_int64_nor_writable_nor_contiguous() -> None:
    pool = KvPool(KV, 8)
    k, v = numbered((3, 2, 2, 4), 1), numbered((3, 2, 1, 6), 1)
    given = np.array([3, 0, 5, 0], dtype=np.int32)
    given.flags.writeable = False
    pool.store(given[::2], k, v)
    assert same(pool.gather([3, 5])[0], k)
    assert pool.gather(slots())[0].shape == (3, 0, 2, 4)


@pytest.mark.parametrize("bad", [slots(-1), slots(9), np.array([1.0]), np.array([[1]])])
def test_kv_refuses_slots_that_it_does_not_have(bad: Any) -> None:
    pool = KvPool(KV, 8)
    with pytest.raises(InvalidArgumentError, match="slots"):
        pool.gather(bad)


def test_kv_refuses_other_shapes() -> None:
    pool = KvPool(KV, 8)
    with pytest.raises(InvalidArgumentError, match=r"v must have shape \(3, 2, 1, 6\), not \(3, 1, 1, 6\)"):
        pool.store(slots(1, 2), numbered((3, 2, 2, 4), 1), numbered((3, 1, 1, 6), 1))
    assert not pool.k.any(), "a refused call has changed nothing"
    with pytest.raises(InvalidArgumentError, match="2 source slots and 1 target"):
        pool.copy_from(slots(1, 2), slots(3))


# states


@pytest.mark.parametrize("layout", [STATE, CONV_ONLY])
def test_states_come_back_from_the_slots_they_went_to(device: str, layout: StateLayout) -> None:
    pool = StatePool(layout, 6, device)
    stored = states(layout, 3)
    pool.store(slots(6, 1, 4), *stored)
    holds(pool.gather(slots(6, 1, 4)), stored)
    temporal, conv = stored
    holds(pool.gather(4), (None if temporal is None else temporal[:, 2], tuple(part[:, 2] for part in conv)))
    assert all(part.dtype == window.dtype for part, window in zip(pool.conv, layout.conv, strict=True))
    assert not any(part[:, [0, 2, 3, 5]].any() for part in everything(pool))


def test_one_state_needs_no_axis(device: str) -> None:
    pool = StatePool(STATE, 4, device)
    temporal, conv = states(STATE, 1)
    assert temporal is not None
    pool.store(slots(3)[0], temporal[:, 0], tuple(part[:, 0] for part in conv))
    holds(pool.gather(slots(3)), (temporal, conv))


def test_what_was_gathered_does_not_change_with_the_pool(device: str) -> None:
    pool = StatePool(STATE, 2, device)
    stored = states(STATE, 1)
    pool.store(slots(1), *stored)
    one, many = pool.gather(1), pool.gather(slots(1))
    pool.clear_slots(1)
    holds(many, stored)
    assert one.temporal is not None
    assert stored[0] is not None
    assert same(one.temporal, stored[0][:, 0])


@pytest.mark.parametrize(
    ("source", "target"), [(slots(1, 2), slots(2, 1)), (slots(1, 2), slots(2, 3)), (slots(2, 1), slots(3, 2))]
)
def test_states_copied_in_a_chain_or_a_circle(device: str, source: Slots, target: Slots) -> None:
    pool = StatePool(STATE, 4, device)
    pool.store(slots(1, 2), *states(STATE, 2))
    before = pool.gather(source)
    pool.copy_from(source, target)
    holds(pool.gather(target), (before.temporal, before.conv))


def test_one_state_copied(device: str) -> None:
    pool = StatePool(STATE, 4, device)
    stored = states(STATE, 1)
    pool.store(slots(2), *stored)
    pool.copy_from(2, 4)
    pool.copy_from(slots(2), slots(1))
    for slot in (1, 2, 4):
        holds(pool.gather(slots(slot)), stored)
    assert pool.temporal is not None
    assert not pool.temporal[:, [0, 3]].any()


def test_cleared_slots_are_zero_and_others_are_not(device: str) -> None:
    pool = StatePool(STATE, 4, device)
    pool.store(slots(1, 2, 3), *states(STATE, 3))
    pool.clear_slots(slots(1, 3))
    for slot, zero in ((1, True), (2, False), (3, True)):
        assert [bool(part[:, slot].any()) for part in everything(pool)] == [not zero] * 3
    pool.clear_slots(2)
    assert not any(part.any() for part in everything(pool))


def test_a_copy_on_the_host_goes_back_into_any_pool_of_the_layout(device: str) -> None:
    pool = StatePool(STATE, 4, device)
    stored = states(STATE, 2)
    pool.store(slots(1, 4), *stored)
    copy = pool.get_cpu_copy(slots(1, 4))
    pool.clear_slots(slots(1, 4))
    assert len(copy) == 2
    assert all(part.device.type == "cpu" for part in copy.tensors.parts())
    other = StatePool(STATE, 8, device)
    other.load_cpu_copy(copy, slots(7, 3))
    holds(other.gather(slots(7, 3)), stored)
    with pytest.raises(InvalidArgumentError, match="do not go into"):
        StatePool(CONV_ONLY, 4, device).load_cpu_copy(copy, slots(1, 2))


def test_state_layers_are_views(device: str) -> None:
    pool = StatePool(STATE, 4, device)
    layer = pool.layer(1)
    assert layer.temporal is not None
    layer.temporal[2] = 3
    layer.conv[0][2] = 4
    got = pool.gather(2)
    assert got.temporal is not None
    assert bool((got.temporal[1] == 3).all())
    assert bool((got.conv[0][1] == 4).all())
    assert not got.temporal[0].any()


def test_states_of_another_kind_are_refused() -> None:
    pool = StatePool(STATE, 4)
    temporal, conv = states(STATE, 2)
    assert temporal is not None
    for wrong in ((None, conv), (temporal, conv[:1]), (temporal, (*conv, conv[0]))):
        with pytest.raises(InvalidArgumentError, match="exactly its parts"):
            pool.store(slots(1, 2), *wrong)
    with pytest.raises(InvalidArgumentError, match="temporal must have shape"):
        pool.store(slots(1), temporal, conv)
    with pytest.raises(InvalidArgumentError, match=r"conv\[1\] must have shape"):
        pool.store(slots(1, 2), temporal, (conv[0], conv[1][:, :1]))
    with pytest.raises(InvalidArgumentError, match="not all in this pool's 0 to 4"):
        pool.clear_slots(5)
    assert not any(part.any() for part in everything(pool))


# request rows and cursors


def test_rows_are_handed_out_once(device: str) -> None:
    rows = RequestRows(3, 8, device)
    given = [rows.alloc() for _ in range(3)]
    assert sorted(row for row in given if row is not None) == [0, 1, 2]
    assert rows.alloc() is None
    rows.free(1)
    with pytest.raises(SlotOwnershipError, match="row 1 is free already"):
        rows.free(1)
    assert rows.available == 1
    assert rows.alloc() == 1
    for row in (-1, 3):
        with pytest.raises(InvalidArgumentError, match="not one of 3"):
            rows.free(row)


def test_host_and_device_say_the_same(device: str) -> None:
    rows = RequestRows(4, 16, device)
    rows.write(2, 3, slots(9, 8, 7))
    rows.append(slots(2, 0), slots(6, 0), slots(6, 5))
    rows.write(1, 16, slots())
    assert rows.read(2, 3, 7).tolist() == [9, 8, 7, 6]
    assert rows.read(2, 0, 4).dtype == np.int64
    host = np.stack([rows.read(row, 0, 16) for row in range(4)])
    assert (rows.req_to_token.cpu().numpy() == host).all()
    assert host.sum() == 9 + 8 + 7 + 6 + 5


def test_a_row_read_is_no_view() -> None:
    rows = RequestRows(1, 4)
    rows.write(0, 0, slots(1, 2))
    rows.read(0, 0, 2)[0] = 7
    assert rows.read(0, 0, 2).tolist() == [1, 2]


def test_a_freed_row_forgets(device: str) -> None:
    rows = RequestRows(2, 4, device)
    row = rows.alloc()
    assert row is not None
    rows.write(row, 0, slots(1, 2, 3))
    rows.track_slot.set(row, [5, 6])
    rows.write_pos.set(row, 3)
    rows.free(row)
    assert rows.read(row, 0, 4).tolist() == [0] * 4
    assert not rows.req_to_token.any()
    assert rows.track_slot.get(row).tolist() == [0, 0]
    assert not rows.track_slot.tensor.any()
    assert not rows.write_pos.tensor.any()


def test_rows_refuse_what_they_cannot_hold() -> None:
    rows = RequestRows(2, 4)
    for call in (
        lambda: rows.write(0, 2, slots(1, 2, 3)),
        lambda: rows.write(2, 0, slots(1)),
        lambda: rows.write(0, -1, slots(1)),
        lambda: rows.write(0, 0, slots(2**31)),
        lambda: rows.read(0, 3, 2),
        lambda: rows.read(0, 0, 5),
        lambda: rows.append(slots(0, 1), slots(0, 4), slots(1, 2)),
        lambda: rows.append(slots(0, 1), slots(0, 1), slots(1, 2, 3)),
        lambda: rows.append(slots(0), slots(0), slots(2**31)),
    ):
        with pytest.raises(InvalidArgumentError):
            call()
    assert not rows.req_to_token.any()
    assert rows.read(0, 0, 4).tolist() == [0] * 4


def test_cursors_have_a_mirror(device: str) -> None:
    cursors = Cursors(4, device, width=2)
    cursors.set(slots(3, 1), [[1, 2], [3, 4]])
    cursors.set(0, 9)
    cursors.advance(slots(1, 0), [[10, 20], [-1, -2]])
    assert [cursors.get(row).tolist() for row in range(4)] == [[8, 7], [13, 24], [0, 0], [1, 2]]
    assert cursors.tensor.tolist() == [[8, 7], [13, 24], [0, 0], [1, 2]]
    cursors.clear(1)
    assert cursors.get(1).tolist() == cursors.tensor[1].tolist() == [0, 0]
    for row, values in ((4, 0), (0, [1, 2, 3]), (0, 2**31)):
        with pytest.raises(InvalidArgumentError):
            cursors.set(row, values)
    with pytest.raises(InvalidArgumentError):
        cursors.get(-1)


# all pools


def hybrid(**changes: Any) -> HybridPools:
    settings: dict[str, Any] = {"layout": STATE, "kv_layout": KV, "requests": 4, "max_tokens": 32}
    return HybridPools(64, 5, **{**settings, **changes})


@pytest.mark.parametrize("page_size", [1, 16])
def test_bytes_needed_is_what_is_allocated(device: str, page_size: int) -> None:
    settings: dict[str, Any] = {
        "layout": STATE,
        "kv_layout": KV,
        "page_size": page_size,
        "checkpoint": "int8",
        "checkpoint_states": 7,
        "requests": 4,
        "max_tokens": 32,
    }
    needed = HybridPools.bytes_needed(64, 5, **settings)
    pools = HybridPools(64, 5, device=device, **settings)

    def size(*tensors: torch.Tensor) -> int:
        return sum(tensor.nbytes for tensor in tensors)

    assert pools.kv is not None
    assert needed["kv"] == size(pools.kv.k, pools.kv.v)
    assert needed["state"] == size(*everything(pools.state))
    cursors = (pools.rows.state_slot, pools.rows.track_slot, pools.rows.track_length, pools.rows.write_pos)
    assert needed["rows"] == size(pools.rows.req_to_token, *(cursor.tensor for cursor in cursors))
    assert pools.checkpoints is not None
    assert needed["checkpoints"] == pools.checkpoints.bytes_needed(STATE, 7, "int8") > 0
    assert needed["total"] == sum(needed.values()) - needed["total"]


def test_pools_and_allocators_agree_about_slots() -> None:
    pools = hybrid(page_size=16, checkpoint="int8", checkpoint_states=3)
    assert pools.kv is not None
    assert pools.checkpoint_allocator is not None
    for allocator, n, store in (
        (pools.kv_allocator, 64, pools.kv.gather),
        (pools.state_allocator, 5, pools.state.gather),
    ):
        given = allocator.alloc(n)
        assert given is not None
        store(given)
        assert allocator.available == 0
    assert pools.checkpoint_allocator.size == 3
    assert isinstance(pools.kv_allocator, stemcache.PagedKvAllocator)
    assert isinstance(hybrid().kv_allocator, stemcache.KvAllocator)


def test_a_model_without_attention_has_no_kv_bytes() -> None:
    pools = hybrid(kv_layout=None)
    assert pools.kv is None
    assert pools.checkpoints is None
    assert pools.kv_allocator.size == 64
    assert HybridPools.bytes_needed(64, 5, layout=STATE)["kv"] == 0


def test_pools_that_do_not_fit_are_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Public case 59 (checkpoints outside the budget): also the checkpoints count."""
    needed = HybridPools.bytes_needed(64, 5, layout=STATE, kv_layout=KV, checkpoint="int8", checkpoint_states=7)
    allocated: list[object] = []
    monkeypatch.setattr(torch, "zeros", lambda *shape, **_: allocated.append(shape))
    monkeypatch.setattr(memory, "free_bytes", lambda _: needed["total"] - 1)
    with pytest.raises(OutOfSlotsError, match=f"need {needed['total']} bytes on cpu .*checkpoints") as refusal:
        HybridPools(64, 5, layout=STATE, kv_layout=KV, checkpoint="int8", checkpoint_states=7)
    assert f"and {needed['total'] - 1} are free" in str(refusal.value)
    assert isinstance(refusal.value, MemoryError)
    assert not allocated


def test_exactly_what_fits_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = HybridPools.bytes_needed(64, 5, layout=STATE, kv_layout=KV, requests=4, max_tokens=32)
    monkeypatch.setattr(memory, "free_bytes", lambda _: needed["total"])
    assert hybrid().state.slots == 5


@pytest.mark.parametrize(
    "make",
    [
        lambda device: KvPool(KvLayout(100, 100, 1000, 100, 1000, torch.float32), 2**29, device),
        lambda device: StatePool(StateLayout(100, (1000, 1000, 1000)), 2**20, device),
        lambda device: RequestRows(2**26, 2**26, device),
    ],
)
def test_more_than_any_machine_has_is_refused(device: str, make: Callable[[str], Any]) -> None:
    if memory.free_bytes(torch.device(device)) is None:
        pytest.skip("this system does not say how much memory is free")
    with pytest.raises(OutOfSlotsError, match="are free"):
        make(device)


def test_free_memory_is_a_plausible_number(device: str) -> None:
    free = memory.free_bytes(torch.device(device))
    if free is None:
        pytest.skip("this system does not say how much memory is free")
    assert 1 << 20 < free < 1 << 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": "int8"}, "checkpoint_states"),
        ({"checkpoint_states": 2}, "checkpoint"),
        ({"checkpoint": "int3", "checkpoint_states": 2}, "int3"),
        ({"requests": 0}, "requests"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"page_size": 0}, "page_size"),
        ({"page_size": 7}, "64"),
        ({"checkpoint": "int8", "checkpoint_states": -1}, "checkpoint_states"),
    ],
)
def test_pools_half_asked_for_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        hybrid(**changes)


@pytest.mark.parametrize("sizes", [(0, 5), (64, 0), (-1, 5), (64, True), (1.5, 5)])
def test_sizes_are_positive_integers(sizes: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        HybridPools(*sizes, layout=STATE, kv_layout=KV)


# no call waits for the device


def test_no_call_of_the_pools_waits_for_the_device(device: str) -> None:
    pools = hybrid(device=device, page_size=16, checkpoint="int8", checkpoint_states=4)
    assert pools.kv is not None
    assert pools.checkpoints is not None
    k, v = numbered((3, 2, 2, 4), 1, device), numbered((3, 2, 1, 6), 1, device)
    many = states(STATE, 2, device=device)
    single = states(STATE, 1, device=device)
    assert single[0] is not None
    with no_sync():
        pools.kv.store(slots(16, 20), k, v)
        pools.kv.gather(slots(16))
        pools.kv.copy_from(slots(16, 20), slots(30, 31))
        pools.kv.copy_from(16, 33)
        pools.state.store(slots(1, 2), *many)
        pools.state.store(3, single[0][:, 0], tuple(part[:, 0] for part in single[1]))
        pools.state.copy_from(slots(1, 2), slots(2, 1))
        pools.state.copy_from(slots(1), slots(4))
        pools.state.gather(slots(1, 2))
        pools.state.gather(1)
        pools.state.clear_slots(slots(1, 3))
        pools.state.clear_slots(5)
        pools.checkpoints.store_from(pools.state, slots(2, 4), slots(1, 2))
        pools.checkpoints.load_into(pools.state, slots(2), slots(5))
        row = pools.rows.alloc()
        assert row is not None
        pools.rows.write(row, 0, slots(16, 17, 18))
        pools.rows.append(slots(row), slots(3), slots(19))
        assert pools.rows.read(row, 0, 4).tolist() == [16, 17, 18, 19]
        pools.rows.track_slot.set(row, [1, 2])
        pools.rows.write_pos.advance(slots(row), 1)
        pools.rows.free(row)


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t[0].item(),
        lambda t: t.tolist(),
        lambda t: t.cpu(),
        lambda t: t.numpy(),
        lambda t: bool(t[0]),
        lambda t: int(t[0]),
        lambda t: "yes" if t[0] else "no",
        lambda t: t[t > 1],
        lambda t: t.nonzero(),
        lambda t: t[: t[0]],
        lambda t: torch.where(t > 1),
        lambda t: [0, 1][t[1]],
        lambda _: StatePool(CONV_ONLY, 2).get_cpu_copy(slots(1)),
    ],
)
def test_the_guard_sees_reads(read: Callable[[torch.Tensor], Any]) -> None:
    tensor = torch.arange(4)
    with pytest.raises(SyncError), no_sync():
        read(tensor)
    read(tensor)


def test_torch_is_not_imported_by_the_index() -> None:
    import subprocess
    import sys

    code = "import sys, stemcache, stemcache.replay; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
