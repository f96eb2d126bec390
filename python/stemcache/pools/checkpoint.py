"""Cached states apart from running ones: the checkpoint pool.

A state is packed once, when it is stored, and unpacked once, on a hit, into a request's own slot. Packed states are
never moved or packed anew. The pool says of each slot whether the state in it is finite: a flag on the device, written
with the state, read when the copy is reported done. A state that is not finite must not be served.

    pool = CheckpointPool(layout, slots=100, device="cuda")      # int8: about twice the bfloat16 states per byte
    pool.store_from(states, running_slots, checkpoint_slots)     # no sync
    good = pool.take_finite(checkpoint_slots)                    # when the copy is done: the one sync
    pool.load_into(states, checkpoint_slots, running_slots)      # no sync
"""

import numpy as np
import numpy.typing as npt
import torch

from stemcache.errors import InvalidArgumentError
from stemcache.pools import memory
from stemcache.pools.layout import StateLayout
from stemcache.pools.quantiser import Slots, States, by_name


class CheckpointPool:
    """Packed states on a device.

    Calls are ordered as their kernels are, on the current stream. They may come from many threads as long as no two
    touch one slot.

    Args:
        layout: of a state.
        slots: states to hold; their numbers are 1 to `slots`. Slot 0 is there and nobody's.
        device: as torch spells it.
        quantiser: a name known to `stemcache.pools.quantiser`: `none`, `int8`, or one registered there.

    Raises:
        InvalidArgumentError: slots below 1, an unknown quantiser, a layout that it cannot pack.
        OutOfSlotsError: it does not fit the device's free memory; the message has both numbers.
    """

    def __init__(
        self, layout: StateLayout, slots: int, device: torch.device | str = "cpu", quantiser: str = "int8"
    ) -> None:
        self.layout = layout
        self.slots = slots
        self.device = torch.device(device)
        self.quantiser = by_name(quantiser)
        memory.require({"checkpoints": self.bytes_needed(layout, slots, quantiser)}, self.device)
        self.storage = self.quantiser.allocate(layout, slots, self.device)

    def __repr__(self) -> str:
        """Its size and kind."""
        return f"CheckpointPool(slots={self.slots}, quantiser={self.quantiser.name!r}, device={str(self.device)!r})"

    @staticmethod
    def bytes_needed(layout: StateLayout, slots: int, quantiser: str = "int8") -> int:
        """What a pool will take on its device, slot 0 included; allocates nothing.

        Raises:
            InvalidArgumentError: as the constructor.
        """
        return (memory.check_size("slots", slots) + 1) * by_name(quantiser).bytes_per_state(layout)

    @property
    def finite(self) -> torch.Tensor:
        """Whether a state was stored in a slot and all its parts are finite: bool `[slots + 1]`, on the device."""
        return self.storage.finite

    def store_from(self, states: States, src_slots: npt.ArrayLike, dst_slots: npt.ArrayLike) -> None:
        """Packs running states, and their flags; does not wait for the device.

        Args:
            states: a state pool of the same layout, on the same device.
            src_slots: int64 `[n]` on the host, of `states`.
            dst_slots: int64 `[n]` on the host, of this pool; all different.

        Raises:
            InvalidArgumentError: not as many sources as destinations; a slot that a pool does not have.
        """
        src, dst = self._pairs(src_slots, _rows(states), dst_slots, self.slots + 1)
        if len(src):
            self.quantiser.store(states, src, self.storage, dst)

    def load_into(self, states: States, src_slots: npt.ArrayLike, dst_slots: npt.ArrayLike) -> None:
        """Unpacks checkpoints into running slots; does not wait for the device.

        Args:
            states: a state pool of the same layout, on the same device.
            src_slots: int64 `[n]` on the host, of this pool; finite ones, else what comes out is anything.
            dst_slots: int64 `[n]` on the host, of `states`; all different.

        Raises:
            InvalidArgumentError: not as many sources as destinations; a slot that a pool does not have.
        """
        src, dst = self._pairs(src_slots, self.slots + 1, dst_slots, _rows(states))
        if len(src):
            self.quantiser.load(self.storage, src, states, dst)

    def take_finite(self, slots: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Reads flags back: the one call that waits for the device. For when a copy is reported done.

        Args:
            slots: int64 `[n]` on the host.

        Returns:
            bool `[n]`, on the host.

        Raises:
            InvalidArgumentError: a slot that the pool does not have.
        """
        wanted = memory.check_slots(slots, self.slots + 1)
        flags: npt.NDArray[np.bool_] = self.finite.cpu().numpy()[wanted]
        return flags

    @staticmethod
    def _pairs(src: npt.ArrayLike, src_rows: int, dst: npt.ArrayLike, dst_rows: int) -> tuple[Slots, Slots]:
        checked = memory.check_slots(src, src_rows), memory.check_slots(dst, dst_rows)
        if len(checked[0]) != len(checked[1]):
            raise InvalidArgumentError(f"{len(checked[0])} source slots and {len(checked[1])} destination slots")
        return checked


def _rows(states: States) -> int:
    """Slots of a state pool, and its dummy."""
    return (states.conv[0] if states.temporal is None else states.temporal).shape[1]
