"""Runs requests through the real index and the real allocators as a serving engine would, without a model.

    match and lock -> a running state -> KV of what is not cached -> prefill, states kept on the way
                   -> decode -> the end -> what the tree did not take is freed -> unlock

A request is admitted only when its whole KV, its output included, and the outputs that the ones in flight have still to
write fit into what is free or evictable. So a decode never fails, and nothing is ever retracted.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from stemcache import Lock, Match, RadixIndex
from stemcache.replay.clock import Clock
from stemcache.replay.figures import Counts, Series
from stemcache.replay.ideal import Ideal
from stemcache.replay.pools import Pools
from stemcache.replay.record import Int64Array
from stemcache.replay.settings import Settings, Sizes
from stemcache.replay.tokens import Texts
from stemcache.replay.trace import Trace


@dataclass(slots=True)
class Running:
    """A request in flight.

    Attributes:
        tokens: input, then output.
        prompt: tokens of the input.
        done: tokens whose KV the tree has; the lock is on the node that ends there.
        rest: KV slots past `done`, the request's own.
        last: the slot of the last token so far.
        lock: protects the first `done` tokens.
        state: the slot of the running state; None once the tree has it.
    """

    tokens: Int64Array
    prompt: int
    done: int
    rest: Int64Array
    last: int
    lock: Lock
    state: int | None


class Engine:
    """One replay of one trace."""

    def __init__(self, trace: Trace, settings: Settings, sizes: Sizes, ideal: Ideal) -> None:
        """Makes an empty index and full pools.

        Raises:
            CacheError: the index or an allocator refuses its settings.
        """
        self.clock = Clock()
        self.index = RadixIndex(settings.page_size, settings.chunk, policy=settings.policy)
        self.pools = Pools(self.index, settings, sizes, self.clock)
        self.counts = Counts()
        self.series = Series()
        self.seconds = 0.0
        self._trace = trace
        self._settings = settings
        self._ideal = ideal
        self._texts = Texts(trace, outputs=settings.outputs)
        self._flight: deque[Running] = deque()
        self._promised = 0

    def run(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Serves every request; `progress` is told how many are behind."""
        start = perf_counter()
        for number in range(len(self._trace.requests)):
            self._serve(number)
            progress(number + 1)
        while self._flight:
            self._finish()
        self.seconds = perf_counter() - start

    def _serve(self, number: int) -> None:
        request = self._trace.requests[number]
        self.counts.requests += 1
        self.counts.input_tokens += request.input_length
        served = self._start(number)
        self.counts.served += served
        self.counts.ideal += int(self._ideal.served[number])
        self.series.add(request, served, int(self._ideal.served[number]), self.pools, self.index)
        if len(self._flight) >= self._settings.concurrency:
            self._finish()

    def _start(self, number: int) -> int:
        """Brings a request into flight; returns how many tokens of its input were served from the cache."""
        if self._settings.pages(self._texts.length(number)) > self.pools.kv.size:
            self.counts.refused += 1
            return 0
        match, running = self._admitted(self._texts.tokens(number), self._trace.requests[number].input_length)
        self._prefill(running, match)
        self._flight.append(running)
        return match.length

    def _admitted(self, tokens: Int64Array, prompt: int) -> tuple[Match, Running]:
        """Admits a request, finishing the oldest ones in flight until it fits."""
        limit = prompt - 1
        while True:
            match = self.clock("match", self.index.match, tokens[:prompt], limit=limit, lock=True)
            running = self._admit(match, tokens, prompt)
            if running is not None:
                return match, running
            if self._flight:
                self._finish()
            elif limit:
                # Only the state of its own hit is in its way: without the hit it is like any other.
                limit = 0
                self.counts.hits_given_up += 1
            else:
                raise MemoryError(f"nothing is in flight, yet {len(tokens)} tokens and a state cannot be had")

    def _admit(self, match: Match, tokens: Int64Array, prompt: int) -> Running | None:
        lock = _held(match.lock)
        state = self.pools.take_state() if self._fits(match.length, len(tokens)) else None
        if state is None:
            self.clock("unlock", self.index.unlock, lock)
            return None
        if match.length:
            # The running state is a copy from here on; the cached one need not wait for the request's end.
            self.clock("unlock state", self.index.unlock_state, lock)
        last = int(match.slots[-1]) if match.length else -1
        running = Running(tokens, prompt, match.length, match.slots[:0], last, lock, state)
        self._extend(running, prompt)
        self._promised += self._output_need(running)
        return running

    def _fits(self, hit: int, length: int) -> bool:
        need = self._settings.pages(length) - hit
        return need + self._promised <= self.pools.within_reach()

    def _output_need(self, running: Running) -> int:
        return self._settings.pages(len(running.tokens)) - self._settings.pages(running.prompt)

    def _extend(self, running: Running, length: int) -> None:
        have = running.done + len(running.rest)
        slots = self.pools.take_kv(have, length, running.last)
        if slots is None:
            raise MemoryError(f"{length - have} KV slots were promised, but {self.pools.within_reach()} can be had")
        if len(slots):
            running.rest = np.concatenate([running.rest, slots])
            running.last = int(slots[-1])

    def _prefill(self, running: Running, match: Match) -> None:
        hit, prompt = match.length, running.prompt
        points = self._settings.checkpoints.in_prompt(hit, prompt, match.branching_length)
        for start, stop in zip([hit, *points], [*points, prompt], strict=True):
            self.counts.prefill_steps += -(-(stop - start) // self._settings.chunk)
        for point in points:
            self._keep(running, point)
        self.counts.kv_only += match.kv_length - hit

    def _finish(self) -> None:
        """Ends the oldest request in flight."""
        running = self._flight.popleft()
        self._promised -= self._output_need(running)
        length = len(running.tokens)
        self._extend(running, length)
        for point in self._settings.checkpoints.in_output(running.prompt, length, self._settings.page_size):
            if point > running.done:
                self._keep(running, point)
        self._release(running)

    def _keep(self, running: Running, point: int) -> None:
        """Gives the tree the request's KV up to a point, and the state there; without a free state, nothing."""
        own = point == len(running.tokens)
        state = running.state if own else self.pools.take_state()
        if state is None:
            self.counts.checkpoints_skipped += 1
            return
        if self._advance(running, point, state):
            self.counts.checkpoints_kept += 1
            running.state = None if own else running.state
        elif not own:
            self.pools.give_state(state)

    def _advance(self, running: Running, point: int, state: int) -> bool:
        """Moves the request's lock to a point of its text; False if the tree had a state there."""
        new = point - running.done
        tokens, slots = running.tokens[running.done : point], running.rest[:new]
        moved = self.clock("insert", self.index.advance, running.lock, tokens, slots, state, state_length=point)
        self.clock("unlock state", self.index.unlock_state, moved.lock)
        self.pools.give_kv(moved.insert.freed_slots)
        running.lock, running.done, running.rest = moved.lock, point, running.rest[new:]
        if not len(running.rest):
            running.last = int(moved.slots[-1])
        return not moved.insert.state_exists

    def _release(self, running: Running) -> None:
        self.pools.give_kv(running.rest)
        if running.state is not None:
            self.pools.give_state(running.state)
        self.clock("unlock", self.index.unlock, running.lock)


def _held(lock: Lock | None) -> Lock:
    if lock is None:
        raise RuntimeError("a match with lock=True gave no lock")
    return lock
