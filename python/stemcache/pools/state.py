"""The state pool: the recurrent state of every running request and cached prefix, one slot each."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from stemcache.errors import InvalidArgumentError
from stemcache.pools import memory
from stemcache.pools.layout import StateLayout


class StateTensors(NamedTuple):
    """States, or views of them: the temporal part (None for layers of convolutions alone) and the conv windows."""

    temporal: torch.Tensor | None
    conv: tuple[torch.Tensor, ...]

    def parts(self) -> list[torch.Tensor]:
        """All tensors, the temporal one first."""
        return [part for part in (self.temporal, *self.conv) if part is not None]


@dataclass(frozen=True, slots=True)
class StateCopy:
    """States on the host, as `StatePool.get_cpu_copy` made them.

    Attributes:
        layout: of the pool that they came from; a pool of another layout does not take them.
        tensors: [layers, n, ...] each.
    """

    layout: StateLayout
    tensors: StateTensors

    def __len__(self) -> int:
        """How many states these are."""
        return self.tensors.parts()[0].shape[1]


class StatePool:
    """Temporal states and conv windows, stacked over the recurrent layers. Slot 0 is the dummy.

    Args:
        layout: shapes and dtypes.
        slots: states, without the dummy: `StateAllocator(slots)` hands out 1 to `slots`.
        device: where the tensors lie.

    Attributes:
        temporal: [layers, slots + 1, heads, d_v, d_k], or None.
        conv: one [layers, slots + 1, *shape] for each window.

    Raises:
        InvalidArgumentError: a size below 1.
        OutOfSlotsError: the device's free memory is less than `bytes_needed`.
    """

    def __init__(self, layout: StateLayout, slots: int, device: str | torch.device = "cpu") -> None:
        self.layout = layout
        self.slots = slots
        self.device = torch.device(device)
        memory.require({"state": self.bytes_needed(layout, slots)}, self.device)
        self.rows = slots + 1
        self.temporal = self._zeros(layout.temporal, layout.temporal_dtype) if layout.temporal else None
        self.conv = tuple(self._zeros(window.shape, window.dtype) for window in layout.conv)

    @staticmethod
    def bytes_needed(layout: StateLayout, slots: int) -> int:
        """Bytes that a pool allocates.

        Raises:
            InvalidArgumentError: a size below 1.
        """
        return layout.bytes_per_state * (memory.check_size("slots", slots) + 1)

    def store(self, slots: Any, temporal: torch.Tensor | None, conv: tuple[torch.Tensor, ...] = ()) -> None:
        """Writes states; they are converted to the pool's dtypes and device.

        Args:
            slots: [n] on the host, none twice; or one slot, and then the tensors have no axis of n.
            temporal: [layers, n, heads, d_v, d_k]; None for a layout without.
            conv: [layers, n, *shape] for each window.

        Raises:
            InvalidArgumentError: a slot that the pool does not have; a part missing or too many; another shape.
        """
        given = StateTensors(temporal, tuple(conv))
        if memory.is_one(slots):
            self._store_one(memory.check_slot(slots, self.rows), given)
            return
        index = self._index(slots)
        self._check(given, (index.numel(),))
        for pool, part in zip(self._parts(), given.parts(), strict=True):
            memory.put(pool, index, part)

    def gather(self, slots: Any) -> StateTensors:
        """The states of n slots, [layers, n, ...] each, as new tensors; of one slot, [layers, ...].

        Raises:
            InvalidArgumentError: a slot that the pool does not have.
        """
        if memory.is_one(slots):
            slot = memory.check_slot(slots, self.rows)
            return _map(self._tensors(), lambda part: part[:, slot].clone())
        index = self._index(slots)
        return _map(self._tensors(), lambda part: part.index_select(1, index))

    def copy_from(self, source: Any, target: Any) -> None:
        """Copies states to other slots; all are read before any is written.

        Args:
            source: [n] on the host, or one slot.
            target: [n] on the host, none twice, or one slot.

        Raises:
            InvalidArgumentError: a slot that the pool does not have; two lengths.
        """
        memory.copy_slots(self._parts(), source, target)

    def clear_slots(self, slots: Any) -> None:
        """Zeroes the states of n slots, or of one: what a model starts from.

        Raises:
            InvalidArgumentError: a slot that the pool does not have.
        """
        if memory.is_one(slots):
            slot = memory.check_slot(slots, self.rows)
            for pool in self._parts():
                pool[:, slot].zero_()
            return
        index = self._index(slots)
        for pool in self._parts():
            pool.index_fill_(1, index, 0)

    def get_cpu_copy(self, slots: Any) -> StateCopy:
        """The states of n slots on the host. The only call of a pool that waits for the device.

        Raises:
            InvalidArgumentError: a slot that the pool does not have.
        """
        return StateCopy(self.layout, _map(self.gather(memory.check_slots(slots, self.rows)), lambda part: part.cpu()))

    def load_cpu_copy(self, copy: StateCopy, slots: Any) -> None:
        """Writes states that `get_cpu_copy` took into n slots, of this or another pool of the same layout.

        Raises:
            InvalidArgumentError: another layout, another number of states, a slot that the pool does not have.
        """
        if copy.layout != self.layout:
            raise InvalidArgumentError(f"states of {copy.layout} do not go into a pool of {self.layout}")
        self.store(memory.check_slots(slots, self.rows), *copy.tensors)

    def layer(self, index: int) -> StateTensors:
        """Views of one recurrent layer: temporal [rows, heads, d_v, d_k] and the windows [rows, *shape]."""
        return _map(self._tensors(), lambda part: part[index])

    def _tensors(self) -> StateTensors:
        return StateTensors(self.temporal, self.conv)

    def _parts(self) -> list[torch.Tensor]:
        return self._tensors().parts()

    def _index(self, slots: Any) -> torch.Tensor:
        return memory.slot_index(slots, self.rows, self.device)

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(self.layout.layers, self.rows, *shape, dtype=dtype, device=self.device)

    def _store_one(self, slot: int, given: StateTensors) -> None:
        self._check(given, ())
        for pool, part in zip(self._parts(), given.parts(), strict=True):
            pool[:, slot].copy_(part, non_blocking=True)

    def _check(self, given: StateTensors, states: tuple[int, ...]) -> None:
        if (given.temporal is None) != (self.temporal is None) or len(given.conv) != len(self.conv):
            raise InvalidArgumentError(f"a state of {self.layout} needs exactly its parts")
        names = ["temporal"] * (self.temporal is not None) + [f"conv[{i}]" for i in range(len(self.conv))]
        for name, pool, part in zip(names, self._parts(), given.parts(), strict=True):
            memory.check_shape(name, part, (pool.shape[0], *states, *pool.shape[2:]))


def _map(tensors: StateTensors, change: Any) -> StateTensors:
    temporal = None if tensors.temporal is None else change(tensors.temporal)
    return StateTensors(temporal, tuple(change(part) for part in tensors.conv))
