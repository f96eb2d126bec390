"""What all pools share: slots become an index by one copy; what does not fit is refused before it is allocated."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from stemcache.errors import InvalidArgumentError, OutOfSlotsError

Slots: TypeAlias = npt.NDArray[np.integer[Any]]

# A batch that moves more than this goes by blocks of layers. On a GPU that bounds the temporary; on a CPU it keeps the
# temporary out of fresh pages, whose faults cost more than the copy.
_TEMPORARY_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def to_device(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """The array on the device, by one copy that the host does not wait for."""
    host = torch.from_numpy(values if values.flags.writeable else values.copy())
    if device.type != "cuda":
        return host.to(device)
    # Pinned memory of torch's own cache: it is not handed out again before the copy has run.
    return host.pin_memory().to(device, non_blocking=True)


def check_slots(slots: Any, rows: int) -> npt.NDArray[np.int64]:
    """The slots as a host array of int64, each a row of the pool (0, the dummy, too).

    Raises:
        InvalidArgumentError: not one axis of integers, or a slot that the pool does not have.
    """
    array = np.ascontiguousarray(slots)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise InvalidArgumentError(f"slots must be one axis of integers, not {array.ndim} axes of {array.dtype}")
    if array.size and (int(array.min()) < 0 or int(array.max()) >= rows):
        raise InvalidArgumentError(f"slots {array.min()} to {array.max()} are not all in this pool's 0 to {rows - 1}")
    return array.astype(np.int64, copy=False)


def check_slot(slot: Any, rows: int) -> int:
    """One slot, a row of the pool.

    Raises:
        InvalidArgumentError: no integer, or a slot that the pool does not have.
    """
    return int(check_slots([slot], rows)[0])


def slot_index(slots: Any, rows: int, device: torch.device) -> torch.Tensor:
    """`check_slots` as an int64 index on the device."""
    return to_device(check_slots(slots, rows), device)


def copy_slots(pools: Iterable[torch.Tensor], source: Any, target: Any) -> None:
    """Copies rows of pools [L, rows, ...] to other rows; all are read before any is written.

    Args:
        pools: tensors of one number of rows, on one device.
        source: [n] slots on the host, or one slot.
        target: [n] slots on the host, none twice, or one slot.

    Raises:
        InvalidArgumentError: a slot that the pools do not have; two lengths.
    """
    pools = list(pools)
    both = [check_slots(np.atleast_1d(slots), pools[0].shape[1]) for slots in (source, target)]
    if both[0].size != both[1].size:
        raise InvalidArgumentError(f"{both[0].size} source slots and {both[1].size} target slots: one each is needed")
    if both[0].size == 1:
        # No index and no temporary: several times faster where a row is large.
        for pool in pools:
            pool[:, int(both[1][0])].copy_(pool[:, int(both[0][0])])
        return
    pair = to_device(np.stack(both), pools[0].device)
    for pool in pools:
        _move(pool, pair[0], pair[1])


def check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Refuses a tensor of another shape; torch would broadcast some of them in silence.

    Raises:
        InvalidArgumentError: it is not exactly `shape`.
    """
    if tuple(tensor.shape) != shape:
        raise InvalidArgumentError(f"{name} must have shape {shape}, not {tuple(tensor.shape)}")


def check_size(name: str, size: object, least: int = 1) -> int:
    """A size as it is.

    Raises:
        InvalidArgumentError: no integer, or below `least`.
    """
    if not isinstance(size, int) or isinstance(size, bool) or size < least:
        raise InvalidArgumentError(f"{name} must be an integer of at least {least}, not {size!r}")
    return size


def is_one(slots: Any) -> bool:
    """Whether this is a slot and not an array of them."""
    return np.ndim(slots) == 0


def put(pool: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> None:
    """Writes `values` [L, n, ...] into rows `index` [n] of `pool` [L, rows, ...], whatever their dtype and device."""
    pool.index_copy_(1, index, values.to(device=pool.device, dtype=pool.dtype, non_blocking=True))


def _move(pool: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> None:
    for block in _blocks(pool, source.numel()):
        block.index_copy_(1, target, block.index_select(1, source))


def _blocks(pool: torch.Tensor, moved: int) -> Iterator[torch.Tensor]:
    row = math.prod(pool.shape[2:]) * pool.itemsize
    budget = _TEMPORARY_BYTES.get(pool.device.type, 256 << 20)
    layers = max(1, budget // max(1, row * moved))
    for first in range(0, pool.shape[0], layers):
        yield pool[first : first + layers]


def free_bytes(device: torch.device) -> int | None:
    """What could be allocated now, as far as the system says; None where it does not."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    if device.type != "cpu":
        return None
    return min((known for known in (_host_bytes(), _container_bytes()) if known is not None), default=None)


def _host_bytes() -> int | None:
    try:
        lines = _MEMINFO.read_text("ascii").splitlines()
    except OSError:
        return None
    available = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(available[0]) * 1024 if available else None


def _container_bytes() -> int | None:
    try:
        limit, used = ((_CGROUP / name).read_text("ascii").strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - int(used))


def require(needed: dict[str, int], device: torch.device) -> None:
    """Refuses what does not fit; call it before the first tensor.

    Args:
        needed: bytes by part.
        device: where they shall lie.

    Raises:
        OutOfSlotsError: the device has less free memory than the sum. The message has all the numbers.
    """
    total, free = sum(needed.values()), free_bytes(device)
    if free is not None and total > free:
        parts = ", ".join(f"{name} {size}" for name, size in needed.items())
        raise OutOfSlotsError(f"the pools need {total} bytes on {device} ({parts}), and {free} are free")
