"""Finding a request's prefix, and copying the state at its end into the request's own slot (COW)."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from stemcache._core import Lock, Match
from stemcache.cache.copies import CopyQueue, Job, Kind
from stemcache.cache.request import Request, no_slots
from stemcache.cache.resources import Resources
from stemcache.cache.slots import UNWRITTEN
from stemcache.errors import NotLockedError


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What `match_prefix` found.

    Attributes:
        match: the index's answer: `length`, `slots`, `node`, `kv_length`, `branching_length`, `reason`.
        cow: "none": there was no state to copy, or it was not asked for. "queued": the copy waits to be taken.
            "no slot": a state was found, but no slot for the request, which has no match now. It may try again, or go
            without: `limit=0` matches nothing, and so leaves that state to be evicted.
    """

    match: Match
    cow: Literal["none", "queued", "no slot"] = "none"

    @property
    def length(self) -> int:
        """Usable tokens; 0 without a slot to copy the state into."""
        return 0 if self.cow == "no slot" else self.match.length


def release_state(resources: Resources, lock: Lock) -> None:
    """A running request reads the KV of its prefix, but not the tree's state: that may be evicted."""
    # Nothing is held of a state that a copy has yet to write.
    with suppress(NotLockedError):
        resources.index.unlock_state(lock)


class Matcher:
    """Matches of requests.

    Args:
        resources: the tree and the pools.
        copies: where COW copies are queued.
        hold: says that a request holds something from now on.
    """

    def __init__(self, resources: Resources, copies: CopyQueue, hold: Callable[[Request], None]) -> None:
        self._resources = resources
        self._copies = copies
        self._hold = hold

    def find(self, tokens: Any, namespace: str | None, limit: int | None, after: int | None, lock: bool) -> Match:
        """A match. A disabled cache has nothing to find: nothing is ever inserted."""
        where = {} if after is not None and namespace is None else {"namespace": namespace}
        return self._resources.index.match(tokens, limit=limit, after=after, lock=lock, **where)

    def match(self, req: Request, limit: int | None, lock: bool, cow: bool) -> PrefixMatch:
        """Matches a request anew, and notes the answer on it."""
        self.forget(req)
        req.prefix_indices, req.cache_protected_len = no_slots(), 0
        key = req.tokens(0, len(req))
        found = self.find(key, req.extra_key, max(len(key) - 1, 0) if limit is None else limit, None, lock)
        if not cow or found.node is None:
            self._note(req, found)
            return PrefixMatch(found)
        if not self._queue_copy(req, found):
            self._resources.unlock(found.lock)
            return PrefixMatch(found, "no slot")
        self._note(req, found)
        return PrefixMatch(found, "queued")

    def forget(self, req: Request) -> None:
        """Gives back the lock of a match and cancels the copy it asked for; a slot that it brought stays, unwritten."""
        for job in self._copies.cancel(req):
            self._resources.unlock(*job.pins)
        self._resources.unlock(req.lock)
        if req.mamba_pool_idx is not None:
            self._resources.running.mark(req.mamba_pool_idx, UNWRITTEN)
        req.lock = req.last_node = req.mamba_cow_src_index = req.mamba_branching_seqlen = None

    def _queue_copy(self, req: Request, found: Match) -> bool:
        """Queues the copy of a hit's state into the request's slot; False if there is no slot."""
        if found.node is None or found.state_slot is None:
            return False
        if req.mamba_pool_idx is None:
            slots = self._resources.running.alloc(1)
            if slots is None:
                return False
            req.mamba_pool_idx = slots[0]
            self._hold(req)
        kind = Kind.LOAD if self._resources.apart else Kind.COPY
        pin = self._resources.index.lock(found.node)
        job = Job(kind, req.mamba_pool_idx, found.length, source=found.state_slot, pins=[pin], request=req)
        self._copies.add(job)
        req.mamba_cow_src_index = found.state_slot
        return True

    def _note(self, req: Request, found: Match) -> None:
        req.prefix_indices = found.slots
        req.mamba_branching_seqlen = found.branching_length
        req.last_node, req.lock = found.node, found.lock
        if found.lock is not None:
            req.cache_protected_len = found.length
            self._hold(req)
        if found.lock is not None and req.mamba_cow_src_index is not None:
            # The copy has a pin of its own.
            release_state(self._resources, found.lock)
