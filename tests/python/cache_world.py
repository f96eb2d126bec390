"""A toy engine around `HybridRadixCache`, whose bytes tell what they are.

The KV of a token holds a chain number over (namespace, tokens up to it) and its position. A state holds the chain
and its length in its conv window, which is always kept exactly, and a decaying sum over the tokens in its temporal
part. The engine computes all of that from what it finds in the request's own slots, and looks at what it finds before
it goes on: a wrong slot, a stale state or a missed copy shows in the next pass.

The device is a queue: copies and passes are launched in order and carried out later, while the host goes on.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from stemcache.cache.copies import PendingCopies
from stemcache.cache.hybrid import HybridRadixCache, PrefixMatch, Request
from stemcache.pools import ConvWindow, HybridPools, KvLayout, StateLayout

if TYPE_CHECKING:
    from collections.abc import Callable

Floats: TypeAlias = npt.NDArray[np.float32]

STATE = StateLayout(layers=2, temporal=(1, 4, 4), conv=(ConvWindow((2,), torch.float32),))
KV = KvLayout(layers=1, k_heads=1, k_dim=2, v_heads=1, v_dim=1, dtype=torch.float32)
PRIME = 4093  # The chain stays exact in float32.
DECAY = 0.9
# An int8 channel is off by at most 1/254 of its largest element, once for each hit.
TOLERANCE = {None: 1e-4, "none": 1e-4, "int8": 0.3}
DUMMY = np.zeros(STATE.temporal or (), dtype=np.float32)


def salt(namespace: str | None) -> int:
    return {None: 0, "": 7, "x": 13}[namespace]


def chain(before: float, token: int, namespace: str | None) -> float:
    return float((int(before) * 31 + token + 1 + salt(namespace)) % PRIME)


def kick(token: int, namespace: str | None, at: int) -> Floats:
    """What a token adds to the temporal state."""
    base = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 4)
    wave: Floats = np.sin(base * (token * 1.7 + salt(namespace) * 2.3 + (at % 11) * 1.1)).astype(np.float32)
    return wave


@lru_cache(maxsize=100_000)
def expected(namespace: str | None, tokens: tuple[int, ...]) -> tuple[Floats, float]:
    """The state after these tokens, by definition: temporal part, and chain number."""
    if not tokens:
        return DUMMY, 0.0
    temporal, number = expected(namespace, tokens[:-1])
    step = kick(tokens[-1], namespace, len(tokens) - 1)
    return (DECAY * temporal + step).astype(np.float32), chain(number, tokens[-1], namespace)


@dataclass(eq=False)
class Life:
    """A request with what its engine knows.

    Attributes:
        req: the request.
        consumed: tokens that the state in its running slot has consumed.
        kept: what a pass puts the state after the accepted tokens into, if the running one goes on to rejected drafts.
        kept_length: how many tokens those are.
    """

    req: Request
    consumed: int = 0
    kept: list[tuple[torch.Tensor, float]] = field(default_factory=list)
    kept_length: int | None = None

    @property
    def runs(self) -> bool:
        return self.req.req_pool_idx is not None

    @property
    def name(self) -> str | None:
        return self.req.extra_key

    def tokens(self, stop: int) -> tuple[int, ...]:
        return tuple(self.req.tokens(0, stop).tolist())


@dataclass(eq=False)
class Batch:
    """Copies that were launched."""

    copies: PendingCopies
    executed: bool = False


class World:
    """Pools, cache, a device that is late, and the engine."""

    def __init__(
        self,
        mode: str = "no_buffer",
        page_size: int = 1,
        checkpoint: str | None = None,
        *,
        kv_tokens: int = 64,
        states: int = 8,
        checkpoint_states: int = 4,
        requests: int = 4,
        max_tokens: int = 48,
        **options: Any,
    ) -> None:
        self.pools = HybridPools(
            kv_tokens,
            states,
            layout=STATE,
            kv_layout=KV,
            page_size=page_size,
            checkpoint=checkpoint,
            checkpoint_states=checkpoint_states if checkpoint else 0,
            requests=requests,
            max_tokens=max_tokens,
        )
        self.cache = HybridRadixCache(self.pools, mode=mode, chunk_size=2 * page_size, **options)
        self.tracks = self.cache.mode.track_slots > 0
        self.tolerance = TOLERANCE[checkpoint]
        self.stream: deque[Callable[[], None]] = deque()
        self.batches: list[Batch] = []
        self.cached: set[tuple[str | None, tuple[int, ...]]] = set()

    # ---- The device ----

    def launch_copies(self) -> None:
        copies = self.cache.take_pending_copies()
        if copies:
            batch = Batch(copies)
            self.batches.append(batch)
            self.stream.append(lambda: self._copy(batch))

    def device(self, steps: int | None = None) -> None:
        """Carries out what was launched first."""
        for _ in range(len(self.stream) if steps is None else min(steps, len(self.stream))):
            self.stream.popleft()()

    def report(self, which: int = 0) -> None:
        """Reports one of the batches that were carried out, in whatever order."""
        executed = [batch for batch in self.batches if batch.executed]
        if executed:
            batch = executed[which % len(executed)]
            self.cache.copies_done(batch.copies)
            self.batches.remove(batch)

    def settle(self) -> None:
        """Everything is launched, carried out, and reported."""
        self.launch_copies()
        self.device()
        while self.batches:
            self.report()

    def _copy(self, batch: Batch) -> None:
        batch.copies.run(self.pools)
        batch.executed = True

    # ---- The engine ----

    def request(self, tokens: list[int], namespace: str | None = None) -> Life:
        return Life(Request(origin_input_ids=np.array(tokens, dtype=np.int64), extra_key=namespace))

    def match(self, life: Life, limit: int | None = None, *, cow: bool = True) -> PrefixMatch:
        return self.cache.match_prefix(req=life.req, limit=limit, lock=True, cow_mamba=cow)

    def admit(self, life: Life) -> bool:
        done = self.cache.admit(life.req)
        if done:
            life.consumed, life.kept_length = life.req.cache_protected_len, None
        return done

    def start(self, tokens: list[int], namespace: str | None = None) -> Life:
        """A request that runs."""
        life = self.request(tokens, namespace)
        assert self.match(life).cow != "no slot"
        assert self.admit(life)
        return life

    def forward(
        self, life: Life, stop: int, *, drafts: int = 0, track: int | None = None, lag: int = 0, restore: bool = True
    ) -> bool:
        """Extends, launches the copies that wait and a pass up to `stop`, and tells the cache; False without KV slots.

        Args:
            life: whose.
            stop: tokens that are accepted.
            drafts: tokens that the pass computes beyond them, and that are rejected.
            track: where the pass writes a state into the track slot.
            lag: ReplaySSM: by how many tokens the running state stays behind.
            restore: take the rejected drafts out of the running state; else it waits for the next pass.
        """
        req = life.req
        if not self.cache.extend(req, stop + drafts):
            return False
        slot = None if track is None else self.cache.track_slot(req)
        self.launch_copies()
        row = req.req_pool_idx
        assert row is not None
        ahead = drafts > 0 and not restore
        self._launch_pass(life, row, stop, stop + drafts, stop + drafts if ahead else stop - lag, (slot, track))
        self.pools.rows.write_pos.set(row, lag)
        self.cache.commit(req, stop, stop + drafts if drafts and ahead else stop)
        if slot is not None and track is not None:
            self.cache.tracked(req, track)
        return True

    def roll_back(self, life: Life, length: int) -> None:
        """Takes back decoded tokens, and others come in their place. The engine has a snapshot of the state there."""
        req = life.req
        prompt = len(req.origin_input_ids)
        req.output_ids[length - prompt :] = [3 - token for token in req.output_ids[length - prompt :]]
        self.cache.commit(req, length)
        temporal, number = expected(life.name, life.tokens(length))
        life.kept, life.kept_length = [(torch.from_numpy(temporal), number)], length

    def _launch_pass(
        self, life: Life, row: int, accepted: int, stop: int, target: int, tracked: tuple[int | None, int | None]
    ) -> None:
        """A pass over all tokens up to `stop`, whose running state goes to `target`."""
        req, name = life.req, life.name
        running, start = req.mamba_pool_idx, req.kv_committed_len
        slots = self.pools.rows.read(row, 0, stop)
        assert self.pools.rows.req_to_token[row, :stop].tolist() == slots.tolist()
        assert self.pools.rows.state_slot.tensor[row].tolist() == [running]
        tracks = [slot or 0 for slot in req.mamba_ping_pong_track_buffer]
        assert self.pools.rows.track_slot.tensor[row].tolist()[: len(tracks)] == tracks
        # Drafts are guesses: they are not the request's tokens.
        tokens = (*life.tokens(accepted), *[99] * (stop - accepted))
        resume, kept = life.kept if life.kept_length is not None else None, []
        begin = life.consumed if life.kept_length is None else life.kept_length

        def kernel() -> None:
            temporal, number = resume[0] if resume else self.read_state(running, name, tokens[:begin])
            self.check_kv(slots[:start], name, tokens[:start])
            states = {begin: (temporal, number)}
            for at in range(begin, stop):
                temporal = DECAY * temporal + torch.from_numpy(kick(tokens[at], name, at))
                number = chain(number, tokens[at], name)
                states[at + 1] = (temporal, number)
            self.write_kv(slots, start, name, tokens)
            self.write_state(running, states[target], target)
            kept.append(states[accepted])
            slot, length = tracked
            if slot is not None and length is not None:
                self.write_state(slot, states[length], length)

        life.consumed, life.kept, life.kept_length = target, kept, accepted if target > accepted else None
        self.stream.append(kernel)

    # ---- Bytes ----

    def read_state(self, slot: Any, name: str | None, tokens: tuple[int, ...]) -> tuple[torch.Tensor, float]:
        """The state in a slot, which must be that of these tokens."""
        temporal, (window,) = self.pools.state.gather(slot)
        assert temporal is not None
        self.check_state(temporal, window, name, tokens)
        return temporal[0], float(window[0, 0])

    def check_state(
        self, temporal: torch.Tensor, window: torch.Tensor, name: str | None, tokens: tuple[int, ...]
    ) -> None:
        right, number = expected(name, tokens)
        assert window.tolist() == [[number, len(tokens)]] * STATE.layers, f"a state that is not that of {tokens}"
        assert (temporal - torch.from_numpy(right)).abs().max() < self.tolerance

    def write_state(self, slot: Any, state: tuple[torch.Tensor, float], length: int) -> None:
        window = torch.tensor([[state[1], length]] * STATE.layers)
        self.pools.state.store(slot, state[0].expand(STATE.layers, *DUMMY.shape), (window,))

    def check_kv(self, slots: npt.NDArray[np.int64], name: str | None, tokens: tuple[int, ...]) -> None:
        assert self.pools.kv is not None
        k, v = self.pools.kv.gather(slots)
        numbers = [expected(name, tokens[: at + 1])[1] for at in range(len(tokens))]
        assert k[0, :, 0].tolist() == [[number, at] for at, number in enumerate(numbers)]
        assert v[0, :, 0, 0].tolist() == numbers

    def write_kv(self, slots: npt.NDArray[np.int64], start: int, name: str | None, tokens: tuple[int, ...]) -> None:
        """KV from `start`, the chain going on from what lies in the slot before."""
        assert self.pools.kv is not None
        number = float(self.pools.kv.k[0, int(slots[start - 1]), 0, 0]) if start else 0.0
        numbers = []
        for token in tokens[start:]:
            number = chain(number, token, name)
            numbers.append(number)
        k = torch.tensor([[number, at] for at, number in enumerate(numbers, start)]).reshape(1, -1, 1, 2)
        self.pools.kv.store(slots[start:], k, torch.tensor(numbers).reshape(1, -1, 1, 1))

    # ---- Caching and looking ----

    def cache_unfinished(self, life: Life) -> bool:
        before = life.req.kv_committed_len
        done = self.cache.cache_unfinished_req(life.req)
        if done:
            self.cached.add((life.name, life.tokens(life.req.cache_protected_len)))
        assert len(life.req.prefix_indices) == before == life.req.kv_committed_len
        return done

    def cache_finished(self, life: Life, *, is_insert: bool = True) -> bool:
        known = (life.name, life.tokens(life.req.kv_committed_len))
        done = self.cache.cache_finished_req(life.req, is_insert=is_insert)
        if done:
            self.cached.add(known)
        self.assert_holds_nothing(life)
        return done

    def turn(self, tokens: list[int], chunks: list[int], namespace: str | None = None) -> int:
        """A request from match to end, cached after each chunk; how many tokens it did not compute."""
        life = self.start(tokens, namespace)
        hit = life.req.cache_protected_len
        for stop in chunks:
            if stop > hit:
                assert self.forward(life, stop, track=stop if self.tracks else None)
                self.cache_unfinished(life)
        self.cache_finished(life)
        self.settle()
        self.cache.sanity_check()
        return hit

    def look(self) -> None:
        """What can be matched now is what it should be, byte by byte."""
        self.device()
        for name, tokens in self.cached:
            found = self.cache.index.peek(tokens, namespace=name)
            if found.node is None or found.state_slot is None:
                continue
            self.check_kv(found.slots, name, tokens[: found.length])
            if self.pools.checkpoints is None:
                self.read_state(found.state_slot, name, tokens[: found.length])

    @staticmethod
    def assert_holds_nothing(life: Life) -> None:
        req = life.req
        assert (req.req_pool_idx, req.mamba_pool_idx, req.lock, req.last_node) == (None, None, None, None)
        assert (req.mamba_ping_pong_track_buffer, req.kv_allocated_len, len(req.prefix_indices)) == ([], 0, 0)

    def assert_whole(self) -> None:
        """After a reset, with everything reported and released, every pool is as it was at first."""
        self.settle()
        self.cache.reset()
        self.cache.sanity_check()
        pools = self.pools
        assert (pools.kv_allocator.available, pools.state_allocator.available) == (
            pools.kv_allocator.size,
            pools.state_allocator.size,
        )
        assert pools.rows.available == pools.rows.requests
        if pools.checkpoint_allocator is not None:
            assert pools.checkpoint_allocator.available == pools.checkpoint_allocator.size
