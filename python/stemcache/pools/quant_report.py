"""What a quantiser does to real states: measured, not promised."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from stemcache.errors import InvalidArgumentError
from stemcache.pools import memory
from stemcache.pools.checkpoint import CheckpointPool
from stemcache.pools.quantiser import States

_TINY: Final = 1e-300


@dataclass(frozen=True, slots=True)
class WorstChannel:
    """The k-channel that lost the most.

    Attributes:
        layer: which.
        slot: which of the states looked at.
        head: which.
        channel: the index on the d_k axis.
        error: the largest error over d_v, relative to the channel's largest magnitude.
        peak: that magnitude.
    """

    layer: int
    slot: int
    head: int
    channel: int
    error: float
    peak: float

    def __str__(self) -> str:
        """One line."""
        where = f"layer {self.layer}, slot {self.slot}, head {self.head}, channel {self.channel}"
        return f"{self.error:.3e} of the largest magnitude, {self.peak:.3e}, at {where}"


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """The error of storing and loading states once.

    Attributes:
        quantiser: its name.
        states: how many were looked at.
        layers: per layer `|loaded - state| / |state|` in the Euclidean norm, over all states together; 0 for zeros.
        worst: the worst channel; None if no channel has a number other than 0.
    """

    quantiser: str
    states: int
    layers: tuple[float, ...]
    worst: WorstChannel | None

    def __str__(self) -> str:
        """A line for each layer, and one for the worst channel."""
        head = f"{self.quantiser}: relative error of {self.states} state{'s' * (self.states != 1)}"
        lines = [f"  layer {layer:3d}  {error:.3e}" for layer, error in enumerate(self.layers)]
        return "\n".join((head, *lines, f"  worst channel: {self.worst or 'none'}"))


@dataclass(frozen=True, slots=True)
class _Temporal:
    """The temporal part of a state pool."""

    temporal: torch.Tensor
    conv: tuple[torch.Tensor, ...] = ()


def error_report(pool: CheckpointPool, states: States, slots: npt.ArrayLike) -> ErrorReport:
    """Stores and loads states beside the pool, one at a time, and measures what changed.

    For tests, tuning and bug reports: it waits for the device, and takes memory for some states more. States that are
    not finite have errors that are not, either.

    Args:
        pool: whose quantiser and layout; its slots are not touched.
        states: a state pool of that layout.
        slots: int64 `[n]` on the host, of `states`.

    Raises:
        InvalidArgumentError: a layout without a temporal state; no slots, or one that `states` does not have.
    """
    if states.temporal is None:
        raise InvalidArgumentError("an error report needs a temporal state, and this layout has none")
    wanted = memory.check_slots(slots, states.temporal.shape[1]).tolist()
    if not wanted:
        raise InvalidArgumentError("an error report needs at least one slot")
    beside = CheckpointPool(replace(pool.layout, conv=()), 1, pool.device, pool.quantiser.name)
    loaded = _Temporal(torch.empty_like(states.temporal[:, :1]))
    sums = torch.zeros((2, pool.layout.layers), dtype=torch.float64)
    worst: list[WorstChannel] = []
    for slot in wanted:
        beside.store_from(_Temporal(states.temporal), [slot], [1])
        beside.load_into(loaded, [1], [0])
        state = states.temporal[:, slot].double()
        error = state - loaded.temporal[:, 0].double()
        sums += torch.stack([part.square().sum((1, 2, 3)) for part in (error, state)]).cpu()
        worst += _worst(state, error, slot)
    layers = (sums[0] / sums[1].clamp(min=_TINY)).sqrt()
    return ErrorReport(pool.quantiser.name, len(wanted), tuple(layers.tolist()), max(worst, key=_order, default=None))


def _worst(state: torch.Tensor, error: torch.Tensor, slot: int) -> list[WorstChannel]:
    """The worst channel of a state `[L, H, d_v, d_k]`, or nothing if all its channels are zeros."""
    peaks = state.abs().amax(2)
    errors = torch.where(peaks > 0, error.abs().amax(2) / peaks, -1.0)
    at = int(errors.nan_to_num(nan=float("inf")).argmax())
    if float(errors.flatten()[at]) < 0:
        return []
    layer, head, channel = (int(i) for i in np.unravel_index(at, errors.shape))
    return [WorstChannel(layer, slot, head, channel, float(errors.flatten()[at]), float(peaks.flatten()[at]))]


def _order(channel: WorstChannel) -> float:
    """Its error; what is not a number comes last."""
    return math.inf if math.isnan(channel.error) else channel.error
