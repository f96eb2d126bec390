"""Requests while they run: their rows, their KV and state slots, and what forward passes write into those."""

from typing import Any

from stemcache.cache.copies import CopyQueue, Job, Kind
from stemcache.cache.counters import Skips
from stemcache.cache.modes import Mode
from stemcache.cache.request import Request
from stemcache.cache.resources import Resources
from stemcache.cache.slots import UNWRITTEN
from stemcache.errors import InvalidArgumentError, StaleNodeError


class RunningRequests:
    """Who holds what.

    Args:
        resources: the tree and the pools.
        copies: where clears are queued, and what passes must not overtake.
        mode: how states are tracked.
        skips: counts tracked states that are of no use.

    Attributes:
        live: the requests that hold anything, waiting ones too.
    """

    def __init__(self, resources: Resources, copies: CopyQueue, mode: Mode, skips: Skips) -> None:
        self._resources = resources
        self._skips = skips
        self._rows = resources.pools.rows
        self._copies = copies
        self._mode = mode
        self.live: dict[Request, None] = {}

    def hold(self, req: Request) -> None:
        """From here the request has something to release."""
        self.live[req] = None

    def row(self, req: Request) -> int:
        """The request's row.

        Raises:
            InvalidArgumentError: it does not run.
        """
        if req.req_pool_idx is None:
            raise InvalidArgumentError("the request does not run: admit() it first (or it was released)")
        return req.req_pool_idx

    def admit(self, req: Request) -> bool:
        """A row and the state slots that the request lacks; False, and nothing, if they cannot be had."""
        if req.req_pool_idx is not None:
            return True
        self._check_matched(req)
        slots = self._resources.running.alloc(self._missing(req)) if self._rows.available else None
        row = self._rows.alloc() if slots is not None else None
        if slots is None or row is None:
            return False
        self.hold(req)
        req.req_pool_idx = row
        if req.mamba_pool_idx is None:
            req.mamba_pool_idx = slots.pop()
        self._clear_unless_written(req)
        req.mamba_ping_pong_track_buffer = [*slots, *[None] * (self._mode.track_slots - len(slots))]
        self._rows.write(row, 0, req.prefix_indices)
        req.kv_allocated_len = req.kv_committed_len = req.cache_protected_len
        self.tell_device(req)
        self.refresh_prefix(req)
        return True

    def extend(self, req: Request, total: int) -> bool:
        """KV slots up to `total`; False, and nothing, if they cannot be had."""
        row, have = self.row(req), req.kv_allocated_len
        self._check_not_reset(req)
        if total > self._rows.max_tokens:
            raise InvalidArgumentError(f"{total} tokens do not fit a row of {self._rows.max_tokens}")
        if total <= have:
            return True
        slots = self._resources.alloc_kv(row, have, total)
        if slots is None:
            return False
        self._rows.write(row, have, slots)
        req.kv_allocated_len = total
        return True

    def commit(self, req: Request, length: int, state_length: int | None) -> None:
        """What the passes launched so far have written."""
        self.row(req)
        if not req.cache_protected_len <= length <= req.kv_allocated_len:
            raise InvalidArgumentError(
                f"length is {length}, but it must be from {req.cache_protected_len} (what the tree has of it) to "
                f"{req.kv_allocated_len} (what has KV slots)"
            )
        slot = req.mamba_pool_idx
        if slot is not None:
            running = self._resources.running
            # A state that has consumed more than is left of the text does not go back by itself.
            depth = max(length, running.depth(slot)) if state_length is None else state_length
            if depth != running.depth(slot):
                self._check_not_overtaken(slot)
                running.mark(slot, depth)
        req.kv_committed_len = length
        if req.mamba_last_track_seqlen is not None and req.mamba_last_track_seqlen > length:
            req.mamba_last_track_seqlen = None
            self._skips.add("rejected")
        self.refresh_prefix(req)

    def track_slot(self, req: Request) -> int | None:
        """The track slot for the next pass; None if there is none."""
        self.row(req)
        had = len(req.state_slots())
        index = self._mode.track_target(req, self._resources.running)
        req.mamba_writing_track_idx = index
        slot = None if index is None else req.mamba_ping_pong_track_buffer[index]
        if slot is not None:
            self._resources.running.mark(slot, UNWRITTEN)
        if len(req.state_slots()) > had:
            self.tell_device(req)
        return slot

    def tracked(self, req: Request, length: int) -> None:
        """The pass launched last wrote the slot named last."""
        row, index = self.row(req), req.mamba_writing_track_idx
        if index is None:
            raise InvalidArgumentError("tracked() reports on the slot that track_slot() named; it named none")
        slot = req.mamba_ping_pong_track_buffer[index]
        if slot is None or not 0 < length <= req.kv_allocated_len:
            raise InvalidArgumentError(f"length is {length}, but it must be from 1 to {req.kv_allocated_len}")
        self._check_not_overtaken(slot)
        req.mamba_writing_track_idx = None
        if length > req.kv_committed_len:
            # It went on to drafts that were rejected; later tokens in their place do not make it right.
            self._skips.add("rejected")
            return
        self._resources.running.mark(slot, length)
        self._mode.tracked(req, index)
        req.mamba_last_track_seqlen = length
        lengths = self._rows.track_length.get(row)
        lengths[index] = length
        self._rows.track_length.set(row, lengths)

    def release(self, req: Request) -> None:
        """Frees what a request holds beside its match, which was forgotten, and erases it."""
        self._resources.running.free(req.state_slots())
        if req.req_pool_idx is not None:
            own = self.own_kv(req)
            self._resources.pools.kv_allocator.free(own)
            self._rows.free(req.req_pool_idx)
        self.live.pop(req, None)
        req.forget()

    def own_kv(self, req: Request) -> Any:
        """The KV slots in its row that are not the tree's."""
        return self._rows.read(self.row(req), req.cache_protected_len, req.kv_allocated_len)

    def lag(self, req: Request) -> int:
        """ReplaySSM: by how many tokens the running state lags behind."""
        return int(self._rows.write_pos.get(self.row(req))[0])

    def refresh_prefix(self, req: Request) -> None:
        """Shows the request its row."""
        req.prefix_indices = self._rows.view(self.row(req), 0, req.kv_committed_len)

    def tell_device(self, req: Request) -> None:
        """Writes the request's state slots into its row."""
        row = self.row(req)
        self._rows.state_slot.set(row, req.mamba_pool_idx or 0)
        if self._mode.track_slots:
            tracks = self._rows.track_slot.get(row)
            tracks[: self._mode.track_slots] = [slot or 0 for slot in req.mamba_ping_pong_track_buffer]
            self._rows.track_slot.set(row, tracks)

    def _missing(self, req: Request) -> int:
        return (req.mamba_pool_idx is None) + self._mode.first_tracks

    def _clear_unless_written(self, req: Request) -> None:
        """A running slot that no cached state was or will be copied into starts from zeros."""
        slot = req.mamba_pool_idx
        if slot is not None and req.cache_protected_len == 0:
            req.mamba_needs_clear = True
            self._copies.add(Job(Kind.CLEAR, slot, 0, request=req))

    def _check_matched(self, req: Request) -> None:
        if req.lock is None:
            raise InvalidArgumentError("a request is admitted after match_prefix(req=req, lock=True)")
        if not req.lock.held:
            raise StaleNodeError("the cache was reset since the request was matched: match it again")
        if req.cache_protected_len > self._rows.max_tokens:
            raise InvalidArgumentError(f"{req.cache_protected_len} tokens do not fit a row of {self._rows.max_tokens}")
        slot = req.mamba_pool_idx
        copied = slot is not None and self._resources.running.depth(slot) == req.cache_protected_len
        if req.cache_protected_len and not copied and req.mamba_cow_src_index is None:
            raise InvalidArgumentError(
                f"the request hit {req.cache_protected_len} tokens, but has no copy of the state at their end: "
                "match it with cow_mamba=True"
            )

    def _check_not_reset(self, req: Request) -> None:
        if req.cache_protected_len and (req.lock is None or not req.lock.held):
            raise StaleNodeError("the cache was reset, and the request's prefix is gone: release it")

    def _check_not_overtaken(self, slot: int) -> None:
        if self._copies.waits_for(slot):
            raise InvalidArgumentError(
                f"copies that read or write state slot {slot} must run before the pass that writes it: "
                "take_pending_copies() first"
            )
