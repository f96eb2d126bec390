"""Where a request's cacheable state lies, by mode."""

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
    # How many of them a request gets when it is admitted.
    first_tracks: int

    def source(self, req: Request, running: StateSlots, lag: int) -> Source | None:
        """The state that a call would cache now; None if there is none."""

    def give_away(self, req: Request, fresh: int | None) -> None:
        """The slot that `source` named is the tree's now; `fresh`, if any, takes its place."""

    def track_target(self, req: Request, running: StateSlots) -> int | None:
        """Which track slot the next state goes to; None if there is none to be had."""

    def tracked(self, req: Request, index: int) -> None:
        """A state was written there."""


class NoBuffer:
    """The state cached is the request's own running state."""

    name = "no_buffer"
    track_slots = 0
    first_tracks = 0

    def source(self, req: Request, running: StateSlots, lag: int) -> Source | None:
        """The running state, which ReplaySSM lets lag behind by its write cursor."""
        slot = req.mamba_pool_idx
        return None if slot is None else Source(slot, running.depth(slot) - lag)

    def give_away(self, req: Request, fresh: int | None) -> None:
        """Only a finished request gives its running state away."""
        req.mamba_pool_idx = fresh

    def track_target(self, req: Request, running: StateSlots) -> int | None:
        """Refused: the engine tracks nothing in this mode."""
        del req, running
        raise InvalidArgumentError(f"mode {self.name} has no track slots")

    def tracked(self, req: Request, index: int) -> None:
        """Refused, too."""
        del req, index
        raise InvalidArgumentError(f"mode {self.name} has no track slots")


class ExtraBuffer:
    """The engine writes states at chunk boundaries into track slots; the state cached is the last one tracked.

    Args:
        track_slots: 2, or 1: then a state that was not cached before the next one is tracked is lost.
    """

    name = "extra_buffer"

    def __init__(self, track_slots: int) -> None:
        self.track_slots = self.first_tracks = track_slots

    def source(self, req: Request, running: StateSlots, lag: int) -> Source | None:
        """The last tracked state; a lag of the running one does not concern it."""
        del running, lag
        slot = None if req.mamba_last_track_seqlen is None else req.mamba_ping_pong_track_buffer[self.kept(req)]
        if slot is None or req.mamba_last_track_seqlen is None:
            return None
        return Source(slot, req.mamba_last_track_seqlen)

    def give_away(self, req: Request, fresh: int | None) -> None:
        """The kept slot is exchanged, not copied: no race with the forward stream."""
        req.mamba_ping_pong_track_buffer[self.kept(req)] = fresh

    def kept(self, req: Request) -> int:
        """Which track slot holds the last state: the one that is not written next."""
        return (req.mamba_next_track_idx + 1) % self.track_slots

    def track_target(self, req: Request, running: StateSlots) -> int | None:
        """The next one; if there is but one, the state in it is given up."""
        del running
        if self.track_slots == 1:
            req.mamba_last_track_seqlen = None
        return req.mamba_next_track_idx

    def tracked(self, req: Request, index: int) -> None:
        """The other one is next."""
        req.mamba_next_track_idx = (index + 1) % self.track_slots


class LazyExtraBuffer(ExtraBuffer):
    """Extra buffer whose second slot is allocated only when a tracked state still waits to be cached."""

    name = "extra_buffer_lazy"

    def __init__(self) -> None:
        super().__init__(2)
        self.first_tracks = 1

    def kept(self, req: Request) -> int:
        """The index stays at the slot that was written last."""
        return req.mamba_next_track_idx

    def track_target(self, req: Request, running: StateSlots) -> int | None:
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

    def tracked(self, req: Request, index: int) -> None:
        """That is the one to keep."""
        req.mamba_next_track_idx = index


def by_name(name: str, track_slots: int | None = None) -> Mode:
    """The mode of this name.

    Args:
        name: "no_buffer", "extra_buffer" or "extra_buffer_lazy".
        track_slots: 1 or 2 (also if None), for "extra_buffer" alone.

    Raises:
        InvalidArgumentError: there is none; track slots where they cannot be chosen.
    """
    if track_slots is not None and (name != "extra_buffer" or track_slots not in (1, 2)):
        raise InvalidArgumentError(f"track_slots is {track_slots}, but only extra_buffer takes it, and it is 1 or 2")
    match name:
        case "no_buffer":
            return NoBuffer()
        case "extra_buffer":
            return ExtraBuffer(track_slots or 2)
        case "extra_buffer_lazy":
            return LazyExtraBuffer()
    raise InvalidArgumentError(f"mode is {name!r}, but it must be one of: no_buffer, extra_buffer, extra_buffer_lazy")
