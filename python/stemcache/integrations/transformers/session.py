"""One sequence: the model's own cache object, beside what the prefix cache holds for it.

Tokens run through the model's object alone; now and then what it holds is saved into the pools. Caching is optional
work: where there is no room for it, the sequence goes on without.
"""

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from stemcache.cache.hybrid import HybridRadixCache
from stemcache.cache.request import Request
from stemcache.errors import StaleNodeError
from stemcache.integrations.transformers.layers import CacheLayers, Prefix
from stemcache.integrations.transformers.runner import Runner

Int64Array = npt.NDArray[np.int64]


class Session:
    """Opens with the longest cached prefix of a prompt restored; leaving it releases all it holds.

    Args:
        runner: the model.
        layers: of its cache objects.
        cache: where prefixes are kept, mode `no_buffer`.
        guard: held while a copy is asked for and made: copies wait in one queue for all sequences.
        prompt: int64 [n], at least one token.
        namespace: of the prompt.

    Attributes:
        length: tokens that the model's cache object has taken up.
        reason: why no more was restored, as `stemcache.Match` says it.
        reused: tokens that were restored.
    """

    def __init__(
        self,
        runner: Runner,
        layers: CacheLayers,
        cache: HybridRadixCache,
        guard: AbstractContextManager[Any],
        prompt: Int64Array,
        namespace: str | None,
    ) -> None:
        self._runner = runner
        self._layers = layers
        self._cache = cache
        self._pools = cache.pools
        self._guard = guard
        self._req = Request(origin_input_ids=prompt, extra_key=namespace)
        self._caching = False
        with guard:
            self.reason, self._live = self._open()
        self.length = self.reused = self._req.kv_committed_len

    def __enter__(self) -> Self:
        """The session itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Caches what was saved last, unless an error ended it, and releases everything."""
        with self._guard:
            new = self._req.kv_committed_len > self._req.cache_protected_len
            self._cache.cache_finished_req(self._req, is_insert=new and kind is None)
            self._copy()

    @property
    def branching_length(self) -> int | None:
        """Where a state would help the next sequence with this prefix."""
        return self._req.mamba_branching_seqlen

    def run(self, tokens: Int64Array, keep: int = 1) -> torch.Tensor:
        """Feeds the next tokens; logits of the last `keep` of them, [keep, vocabulary]."""
        fed = torch.as_tensor(tokens).to(self._runner.device)
        logits = self._runner.forward(fed, self.length, self._live, min(keep, len(tokens)))
        self.length += len(tokens)
        return logits

    def take(self, token: int) -> None:
        """Notes a decoded token."""
        self._req.output_ids.append(token)

    def save(self) -> None:
        """Copies what the model's cache object holds by now into the pools, if there is room: KV, and the state."""
        with self._guard:
            self._save()

    def checkpoint(self) -> None:
        """Saves, and lets others go on from here."""
        with self._guard:
            self._save()
            if self._caching and self._cache.cache_unfinished_req(self._req):
                self._copy()

    def _open(self) -> tuple[str | None, Any]:
        """The reason why no more was restored, and the model's cache object."""
        try:
            return self._admit(), self._restored()
        except BaseException:
            self._cache.release(self._req)
            raise

    def _admit(self) -> str | None:
        """Matches and admits; without a slot for the hit's state, begins from nothing."""
        found = self._cache.match_prefix(req=self._req, lock=True, cow_mamba=True)
        if found.cow == "no slot":
            found = self._cache.match_prefix(req=self._req, lock=True, limit=0)
        self._caching = self._cache.admit(self._req)
        if not self._caching:
            self._cache.release(self._req)
        self._copy()
        return found.match.reason

    def _restored(self) -> Any:
        if not self._req.kv_committed_len:
            return self._layers.fresh()
        slots, state = self._req.prefix_indices, self._req.mamba_pool_idx
        k, v = (None, None) if self._pools.kv is None else self._pools.kv.gather(slots)
        return self._layers.restore(Prefix(k, v, self._pools.state.gather(state)))

    def _save(self) -> None:
        start, row = self._req.kv_committed_len, self._req.req_pool_idx
        self._caching = self._caching and self._has_room()
        if not self._caching or row is None or start == self.length:
            return
        kv = self._layers.read_kv(self._live, start, self.length)
        if self._pools.kv is not None and kv is not None:
            self._pools.kv.store(self._pools.rows.read(row, start, self.length), *kv)
        self._pools.state.store(self._req.mamba_pool_idx, *self._layers.read_state(self._live))
        self._cache.commit(self._req, self.length)

    def _has_room(self) -> bool:
        """Whether all tokens so far have KV slots, evicting what is short."""
        try:
            return self.length <= self._pools.rows.max_tokens and self._cache.extend(self._req, self.length)
        except StaleNodeError:
            # The cache was reset meanwhile, and what this sequence goes on from is gone.
            return False

    def _copy(self) -> None:
        """Does what waits to be copied. One stream does all in order, so it is done once it is launched."""
        copies = self._cache.take_pending_copies()
        if copies:
            copies.run(self._pools)
            self._cache.copies_done(copies)
