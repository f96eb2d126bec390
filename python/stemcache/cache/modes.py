"""Where a request's cacheable state lies, by mode (SPEC section 6)."""

from dataclasses import dataclass
from typing import Protocol

from stemcache.cache.request import Request
from stemcache.cache.slots import StateSlots
from stemcache.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Source:
    """A state that could be cached.

    Attributes:
        slot: where it lies, in the state pool.
        length: tokens it has consumed.
    """

    slot: int
    length: int


class Mode(Protocol):
    """What differs between the modes."""

    name: str
    track_slots: int
    # The engine goes on writing the running state, so only a finished request can give it away.
    gives_running_state: bool

    def source(self, req: Request, running: StateSlots, lag: int) -> Source | None:
        """The state that a call would cache now; None if there is none."""

    def exchange(self, req: Request, fresh: int) -> None:
        """Puts a fresh slot where the state that is given away was."""


class NoBuffer:
    """The state cached is the request's own running state."""

    name = "no_buffer"
    track_slots = 0
    gives_running_state = True

    def source(self, req: Request, running: StateSlots, lag: int) -> Source | None:
        """The running state, which ReplaySSM lets lag behind by its write cursor."""
        slot = req.mamba_pool_idx
        if slot is None:
            return None
        return Source(slot, running.depth(slot) - lag)

    def exchange(self, req: Request, fresh: int) -> None:
        """A running state is copied, never exchanged."""
        raise InvalidArgumentError("no_buffer has no track slot to exchange")


class ExtraBuffer:
    """The engine writes states at chunk boundaries into track slots; the state cached is the last one tracked.

    Args:
        track_slots: 1 or 2.
    """

    name = "extra_buffer"
    gives_running_state = False

    def __init__(self, track_slots: int = 2) -> None:
        self.track_slots = track_slots

    def source(self, req: Request, running: StateSlots, lag: int) -> Source | None:
        """The last tracked state; a lag of the running one does not concern it."""
        del running, lag
        if req.mamba_last_track_seqlen is None:
            return None
        slot = req.mamba_ping_pong_track_buffer[self.kept(req)]
        return None if slot is None else Source(slot, req.mamba_last_track_seqlen)

    def exchange(self, req: Request, fresh: int) -> None:
        """The kept slot is given away for a fresh one: no copy, so no race with the forward stream."""
        req.mamba_ping_pong_track_buffer[self.kept(req)] = fresh

    def kept(self, req: Request) -> int:
        """Which track slot holds the last state: the one that is not written next."""
        return (req.mamba_next_track_idx + 1) % self.track_slots

    def writes(self, req: Request, running: StateSlots) -> int | None:
        """Which track slot the next state goes to; None if there is none to be had."""
        del running
        return req.mamba_next_track_idx

    def written(self, req: Request, index: int) -> None:
        """A state was written there: the other one is next."""
        req.mamba_next_track_idx = (index + 1) % self.track_slots


class LazyExtraBuffer(ExtraBuffer):
    """Extra buffer whose second track slot is allocated only when a tracked state still waits to be cached."""

    name = "extra_buffer_lazy"

    def kept(self, req: Request) -> int:
        """The index stays at the slot that was written last."""
        return req.mamba_next_track_idx

    def writes(self, req: Request, running: StateSlots) -> int | None:
        """The slot written last if its state was cached meanwhile, else the other one."""
        if req.mamba_last_track_seqlen is None:
            return req.mamba_next_track_idx
        other = 1 - req.mamba_next_track_idx
        if req.mamba_ping_pong_track_buffer[other] is None:
            fresh = running.alloc(1)
            if fresh is None:
                return None
            req.mamba_ping_pong_track_buffer[other] = fresh[0]
        return other

    def written(self, req: Request, index: int) -> None:
        """A state was written there: that is the one to keep."""
        req.mamba_next_track_idx = index


def by_name(name: str) -> NoBuffer | ExtraBuffer:
    """The mode of this name.

    Raises:
        InvalidArgumentError: there is none.
    """
    modes: dict[str, type[NoBuffer | ExtraBuffer]] = {"no_buffer": NoBuffer, "extra_buffer": ExtraBuffer, "extra_buffer_lazy": LazyExtraBuffer}
    if name not in modes:
        raise InvalidArgumentError(f"mode is {name!r}, but it must be one of: {', '.join(modes)}")
    return modes[name]()
