"""`CachedModel`: a `transformers` causal LM with automatic prefix caching."""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stemcache.cache.hybrid import HybridRadixCache
from stemcache.errors import InvalidArgumentError
from stemcache.integrations.transformers.memory import checked, make_pools
from stemcache.integrations.transformers.proof import prove
from stemcache.integrations.transformers.runner import Runner
from stemcache.integrations.transformers.session import Int64Array, Session
from stemcache.pools import HybridPools

Sampler = Callable[[torch.Tensor], int]


@dataclass(frozen=True, slots=True)
class Prefill:
    """What a prefill did.

    Attributes:
        logits: [m, vocabulary] of the last m tokens asked for, as far as they were computed: of reused tokens there
            are none.
        reused: tokens of the prompt that were restored.
        computed: tokens of the prompt that went through the model.
        reason: why no more was reused, as `stemcache.Match` says it.
    """

    logits: torch.Tensor
    reused: int
    computed: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Generation:
    """An answer, and what the cache saved.

    Attributes:
        tokens: the new tokens, a stop token included.
        reused: tokens of the prompt that were restored.
        computed: tokens of the prompt that went through the model.
        reason: why no more was reused, as `stemcache.Match` says it.
        seconds_to_first_token: from the call to the first token.
    """

    tokens: list[int]
    reused: int
    computed: int
    reason: str | None
    seconds_to_first_token: float


class CachedModel:
    """A causal LM with recurrent layers that goes on from the longest prefix it has seen.

    A prompt is matched, the KV and the state of its longest cached prefix are written into the model's own cache
    object, and only the rest is computed. Prefixes are kept where prefill halts (at multiples of `prefill_chunk`, at
    the last multiple of `chunk_size` before the prompt's end, and where an earlier prompt branched off) and at the end
    of each call. Calls may come from many threads; each is one sequence.

    The model is tried when this is built, see `proof`. Do not change its weights, dtype or device afterwards: cached
    prefixes are those of the model that computed them (`cache.reset()` drops them).

    Args:
        model: in evaluation mode, on one device.
        pools: made for this model (`make_pools`). None: `make_pools` with its defaults.
        chunk_size: the grid on which prompts that branch off leave a state: whole pages. None: the fewest from 64
            tokens up.
        prefill_chunk: tokens in a forward pass of a prefill, rounded up to whole chunks. Each leaves a state.
        slow_resume: allow a model that ignores a restored state when several tokens follow: it gets them one by one.

    Attributes:
        proof: what the trial found.
        pools: where the bytes are.
        cache: the prefix cache; `cache.stats()` counts.

    Raises:
        UnsupportedModelError: the model cannot go on from a cached prefix; the message says what was found.
        InvalidArgumentError: pools of other layouts; a chunk that is not whole pages.
        OutOfSlotsError: the pools do not fit the device.
    """

    def __init__(
        self,
        model: Any,
        pools: HybridPools | None = None,
        *,
        chunk_size: int | None = None,
        prefill_chunk: int = 512,
        slow_resume: bool = False,
    ) -> None:
        self._runner = Runner(model)
        self._layers, self.proof = prove(self._runner, slow_resume=slow_resume)
        self.pools = checked(pools or make_pools(model), self._layers.layouts)
        self.cache = HybridRadixCache(self.pools, mode="no_buffer", chunk_size=chunk_size)
        self._grid = self.cache.index.chunk_size
        self._chunk = -(-_positive("prefill_chunk", prefill_chunk) // self._grid) * self._grid
        self._guard = threading.Lock()

    def prefill(self, input_ids: Any, *, namespace: str | None = None, logits_to_keep: int = 1) -> Prefill:
        """Runs a prompt, as far as it is not cached, and caches it.

        Args:
            input_ids: [n] or [1, n] token ids, at least one.
            namespace: prefixes are shared within one only: a tenant, an adapter.
            logits_to_keep: of how many tokens at the end logits are wanted, at least one.

        Raises:
            InvalidArgumentError: no tokens, or several sequences; a count below 1.
        """
        prompt = _ids(input_ids)
        keep = _positive("logits_to_keep", logits_to_keep)
        with self._session(prompt, namespace) as session:
            logits = self._prefill(session, prompt, keep)
            self._save_whole_pages(session)
        return Prefill(logits, session.reused, len(prompt) - session.reused, session.reason)

    def generate(
        self,
        input_ids: Any,
        max_new_tokens: int,
        *,
        namespace: str | None = None,
        sample: Sampler | None = None,
        stop_tokens: Collection[int] | None = None,
    ) -> Generation:
        """Goes on from a prompt, and caches both it and the answer.

        Args:
            input_ids: [n] or [1, n] token ids, at least one.
            max_new_tokens: at most so many are added, at least one.
            namespace: prefixes are shared within one only: a tenant, an adapter.
            sample: picks a token by the logits [vocabulary]. None: the likeliest.
            stop_tokens: the answer ends with the first of these. None: the model's own end tokens.

        Raises:
            InvalidArgumentError: no tokens, or several sequences; a count below 1.
        """
        prompt = _ids(input_ids)
        limit = _positive("max_new_tokens", max_new_tokens)
        stops = frozenset(self._end_tokens() if stop_tokens is None else stop_tokens)
        start = time.perf_counter()
        with self._session(prompt, namespace) as session:
            logits = self._prefill(session, prompt, keep=1)
            answer = [(sample or _likeliest)(logits[-1])]
            seconds = time.perf_counter() - start
            answer += self._decode(session, answer[0], limit - 1, sample or _likeliest, stops)
            self._save_whole_pages(session)
        return Generation(answer, session.reused, len(prompt) - session.reused, session.reason, seconds)

    def _session(self, prompt: Int64Array, namespace: str | None) -> Session:
        return Session(self._runner, self._layers, self.cache, self._guard, prompt, namespace)

    def _prefill(self, session: Session, prompt: Int64Array, keep: int) -> torch.Tensor:
        """Computes what was not restored, leaving states on the way; the last logits."""
        total = len(prompt)
        parts = []
        for stop in self._halts(session.length, total, session.branching_length):
            wanted = keep - (total - stop)
            logits = session.run(prompt[session.length : stop], max(wanted, 1))
            if wanted > 0:
                parts.append(logits)
            if stop < total:
                session.checkpoint()
        return torch.cat(parts)

    def _halts(self, start: int, total: int, branching: int | None) -> list[int]:
        """Where a prefill halts: all but the last are on the grid, hence whole pages."""
        halts = {*range(0, total, self._chunk), (total - 1) // self._grid * self._grid, branching or 0}
        return [*sorted(halt for halt in halts if start < halt < total), total]

    def _decode(
        self, session: Session, token: int, count: int, sample: Sampler, stops: frozenset[int]
    ) -> Iterator[int]:
        """At most `count` tokens more after one, none after a stop."""
        for _ in range(count):
            if token in stops:
                return
            session.take(token)
            token = sample(session.run(np.array([token]))[-1])
            if self.pools.page_size > 1:
                self._save_whole_pages(session)
            yield token

    def _save_whole_pages(self, session: Session) -> None:
        """Saves where the sequence is whole pages by now: only then can its end be cached."""
        if session.length % self.pools.page_size == 0:
            session.save()

    def _end_tokens(self) -> Collection[int]:
        named = getattr(getattr(self._runner.model, "generation_config", None), "eos_token_id", None)
        return () if named is None else np.atleast_1d(named).tolist()


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise InvalidArgumentError(f"{name} is {value}, but it must be at least 1")
    return value


def _likeliest(logits: torch.Tensor) -> int:
    return int(logits.argmax())


def _ids(input_ids: Any) -> Int64Array:
    """The tokens of one sequence, int64 [n]."""
    if isinstance(input_ids, torch.Tensor):
        input_ids = input_ids.cpu().numpy()
    ids = np.asarray(input_ids)
    if ids.ndim == 2 and len(ids) == 1:
        ids = ids[0]
    if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"input_ids must be the token ids of one sequence, [n] or [1, n], not {ids.dtype} of shape {ids.shape}"
        )
    return ids.astype(np.int64)
