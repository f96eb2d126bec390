"""Random lives of requests over tiny pools, with a device that is late: every byte is checked, and nothing is lost.

The default takes seconds; `HYPOTHESIS_PROFILE=deep` some minutes. A failure is shrunk by hypothesis.
"""

from random import Random
from typing import Any

import pytest

pytest.importorskip("torch", reason="the cache needs torch")

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache_world import Life, World
from stemcache import Lock, StaleNodeError
from stemcache.errors import InvalidArgumentError

MODES: list[dict[str, Any]] = [
    {"mode": "no_buffer"},
    {"mode": "extra_buffer"},
    {"mode": "extra_buffer", "track_slots": 1},
    {"mode": "extra_buffer_lazy"},
]
WHICH = st.integers(0, 30)
NAMESPACES = st.sampled_from([None, None, None, "", "x"])
SELDOM = st.sampled_from([False] * 9 + [True])
PROMPTS = st.lists(st.sampled_from([1, 1, 2]), min_size=0, max_size=14)
LIVES = 5


class CacheMachine(RuleBasedStateMachine):
    """One world; requests go by the order in which they came."""

    @initialize(
        mode=st.sampled_from(MODES),
        page_size=st.sampled_from([1, 4]),
        checkpoint=st.sampled_from([None, None, "none", "int8"]),
        pages=st.integers(4, 10),
        states=st.integers(1, 8),
        disable=SELDOM,
    )
    def make(
        self, mode: dict[str, Any], page_size: int, checkpoint: str | None, pages: int, states: int, disable: bool
    ) -> None:
        kv_tokens = pages * page_size if page_size > 1 else pages * 3
        self.world = World(
            **mode,
            page_size=page_size,
            checkpoint=checkpoint,
            kv_tokens=kv_tokens,
            states=states,
            checkpoint_states=max(1, states - 3),
            requests=3,
            max_tokens=30,
            disable=disable,
        )
        self.cache = self.world.cache
        self.lives: list[Life] = []
        self.ended: list[Life] = []
        self.locks: list[Lock] = []
        self.matched_with_copy: dict[Life, bool] = {}

    # ---- Requests ----

    @precondition(lambda self: len(self.lives) < LIVES)
    @rule(prompt=PROMPTS, namespace=NAMESPACES)
    def arrive(self, prompt: list[int], namespace: str | None) -> None:
        self.lives.append(self.world.request(prompt, namespace))

    @precondition(lambda self: any(not life.runs for life in self.lives))
    @rule(which=WHICH, limit=st.none() | st.integers(0, 8), cow=st.sampled_from([True, True, True, False]))
    def match(self, which: int, limit: int | None, cow: bool) -> None:
        """Also again, while it waits."""
        waiting = [life for life in self.lives if not life.runs]
        life = waiting[which % len(waiting)]
        found = self.world.match(life, limit, cow=cow)
        assert (found.cow == "none") == (found.match.node is None or not cow)
        self.matched_with_copy[life] = found.cow == "queued"
        assert (life.req.lock is None) == (found.cow == "no slot")
        assert life.req.cache_protected_len == found.length

    @precondition(lambda self: any(not life.runs for life in self.lives))
    @rule(which=WHICH)
    def admit(self, which: int) -> None:
        waiting = [life for life in self.lives if not life.runs]
        life = waiting[which % len(waiting)]
        req = life.req
        if req.lock is None:
            with pytest.raises(InvalidArgumentError):
                self.cache.admit(req)
        elif not req.lock.held:
            with pytest.raises(StaleNodeError):
                self.cache.admit(req)
        elif req.cache_protected_len and req.mamba_cow_src_index is None and not self.was_copied(life):
            with pytest.raises(InvalidArgumentError, match="cow_mamba"):
                self.cache.admit(req)
        else:
            missing = (req.mamba_pool_idx is None) + self.cache.mode.first_tracks
            possible = self.world.pools.rows.available > 0 and self.cache.can_admit(0, missing)
            assert self.world.admit(life) == possible

    def was_copied(self, life: Life) -> bool:
        """Whether the copy that the last match asked for was carried out."""
        return self.matched_with_copy.get(life, False)

    @precondition(lambda self: any(life.runs for life in self.lives))
    @rule(
        which=WHICH,
        n=st.integers(1, 6),
        drafts=st.sampled_from([0, 0, 0, 1, 2]),
        track=st.sampled_from([None, 0, 0, 0, 1, 2]),
        lag=st.sampled_from([0, 0, 0, 1]),
        restore=st.booleans(),
        align=st.booleans(),
    )
    def forward(self, which: int, n: int, drafts: int, track: int | None, lag: int, restore: bool, align: bool) -> None:
        """A chunk of the prompt, or a decoded token and perhaps rejected drafts."""
        running = [life for life in self.lives if life.runs]
        life = running[which % len(running)]
        req = life.req
        begin = req.kv_committed_len
        stop = min(begin + n, len(req))
        if align and (stop // self.cache.page_size) * self.cache.page_size > begin:
            stop = stop // self.cache.page_size * self.cache.page_size
        if stop <= begin:
            req.output_ids.append(1)
            stop = begin + 1
        if stop + drafts > self.world.pools.rows.max_tokens:
            return
        if req.cache_protected_len and req.lock is not None and not req.lock.held:
            with pytest.raises(StaleNodeError):
                self.cache.extend(req, stop)
            return
        first = life.consumed if life.kept_length is None else life.kept_length
        at = None if track is None or not self.world.tracks else max(stop + drafts - track, first + 1)
        if at is not None and at > stop + drafts:
            at = None
        lag = 0 if drafts or self.world.tracks else min(lag, stop - first)
        self.world.forward(life, stop, drafts=drafts, track=at, lag=lag, restore=restore)

    @precondition(lambda self: any(life.runs for life in self.lives))
    @rule(which=WHICH, by=st.integers(1, 3))
    def roll_back(self, which: int, by: int) -> None:
        """Decoded tokens that nobody cached yet are replaced by others."""
        running = [life for life in self.lives if life.runs]
        life = running[which % len(running)]
        least = max(len(life.req.origin_input_ids), life.req.cache_protected_len)
        if life.req.kv_committed_len - by >= least:
            self.world.roll_back(life, life.req.kv_committed_len - by)

    @precondition(lambda self: any(life.runs for life in self.lives))
    @rule(which=WHICH)
    def cache_unfinished(self, which: int) -> None:
        running = [life for life in self.lives if life.runs]
        self.world.cache_unfinished(running[which % len(running)])

    @precondition(lambda self: self.lives)
    @rule(which=WHICH, is_insert=st.sampled_from([True, True, True, False]), retract=SELDOM)
    def finish(self, which: int, is_insert: bool, retract: bool) -> None:
        life = self.lives[which % len(self.lives)]
        self.world.cache_finished(life, is_insert=is_insert)
        self.end(life, retract)

    @precondition(lambda self: self.lives)
    @rule(which=WHICH, retract=st.booleans())
    def abort(self, which: int, retract: bool) -> None:
        life = self.lives[which % len(self.lives)]
        self.cache.release(life.req)
        self.world.assert_holds_nothing(life)
        self.end(life, retract)

    def end(self, life: Life, retract: bool) -> None:
        """A retracted request waits again; it starts from what is cached then."""
        if not retract:
            self.lives.remove(life)
            self.ended = [*self.ended[-3:], life]

    @precondition(lambda self: self.ended)
    @rule(which=WHICH, finish=st.booleans())
    def end_again(self, which: int, finish: bool) -> None:
        life = self.ended[which % len(self.ended)]
        if finish:
            assert not self.cache.cache_finished_req(life.req)
        else:
            self.cache.release(life.req)

    # ---- The device ----

    @rule()
    def launch_copies(self) -> None:
        self.world.launch_copies()

    @rule(steps=st.integers(1, 4))
    def device(self, steps: int) -> None:
        self.world.device(steps)

    @rule(which=WHICH, twice=SELDOM)
    def report(self, which: int, twice: bool) -> None:
        executed = [batch for batch in self.world.batches if batch.executed]
        self.world.report(which)
        if twice and executed:
            self.cache.copies_done(executed[which % len(executed)].copies)

    @rule()
    def settle(self) -> None:
        self.world.settle()

    # ---- The tree ----

    @rule(tokens=st.integers(-1, 9), states=st.integers(-1, 3))
    def evict(self, tokens: int, states: int) -> None:
        evictable = self.cache.full_evictable_size(), self.cache.mamba_evictable_size()
        evicted = self.cache.evict(tokens, states)
        assert len(evicted.kv_slots) >= min(tokens, evictable[0])
        assert len(evicted.state_slots) >= min(states, evictable[1])

    @rule(really=SELDOM, namespace=NAMESPACES)
    def drop_namespace(self, really: bool, namespace: str | None) -> None:
        if really:
            self.cache.drop_namespace(namespace)

    @rule(really=SELDOM)
    def reset(self, really: bool) -> None:
        if really:
            self.cache.reset()
            assert self.cache.total_size() == (0, 0)

    @rule(prompt=PROMPTS, namespace=NAMESPACES)
    def lock(self, prompt: list[int], namespace: str | None) -> None:
        node = self.cache.match_prefix(prompt, namespace=namespace).match.node
        if node is not None:
            self.locks.append(self.cache.inc_lock_ref(node))

    @precondition(lambda self: self.locks)
    @rule(which=WHICH)
    def unlock(self, which: int) -> None:
        lock = self.locks.pop(which % len(self.locks))
        if lock.held:
            self.cache.dec_lock_ref(lock)
        else:
            with pytest.raises(StaleNodeError):
                self.cache.dec_lock_ref(lock)

    @rule(seed=st.integers(0, 2**32))
    def a_busy_minute(self, seed: int) -> None:
        """Many calls at once: hypothesis alone makes histories too short for pools that are full."""
        random = Random(seed)
        for _ in range(40):
            self.one_of_many(random)
            self.sound()

    def one_of_many(self, random: Random) -> None:
        pick = random.randrange(30)
        what = random.choice("nnwmmaffffffffbuuuueexcddrrrso")
        if what in "fbu" and any(life.runs for life in self.lives):
            self.one_that_runs(what, pick, random)
        elif what in "wma" and not all(life.runs for life in self.lives):
            self.one_that_waits(what, pick, random)
        elif what == "n" and len(self.lives) < LIVES:
            shared = [1, 1, 2, 1, 1, 2, 1, 2, 1, 1][: random.randrange(11)]
            self.arrive(shared + [random.choice([1, 2]) for _ in range(random.randrange(5))], None)
            self.match(-1, None, cow=True)
            self.admit(-1)
        elif what == "e" and self.lives:
            self.finish(pick, is_insert=pick > 3, retract=pick % 5 == 0)
        elif what == "x" and self.lives:
            self.abort(pick, retract=pick % 2 == 0)
        elif what in "cdrso":
            self.one_of_the_device(what, pick)

    def one_that_runs(self, what: str, pick: int, random: Random) -> None:
        match what:
            case "f":
                track = random.choice([None, 0, 0, 1])
                drafts, lag = random.choice([0, 0, 1, 2]), random.choice([0, 0, 1])
                self.forward(pick, random.randrange(1, 7), drafts, track, lag, pick % 3 > 0, pick % 4 > 0)
            case "b":
                self.roll_back(pick, 1 + pick % 3)
            case _:
                self.cache_unfinished(pick)

    def one_that_waits(self, what: str, pick: int, random: Random) -> None:
        match what:
            case "w":
                for limit in (None, random.choice([0, None])):
                    self.match(pick, limit, cow=True)
                    self.launch_copies()
                self.admit(pick)
            case "m":
                self.match(pick, random.choice([None, None, 4, 0]), cow=pick % 4 > 0)
            case _:
                self.admit(pick)

    def one_of_the_device(self, what: str, pick: int) -> None:
        match what:
            case "c":
                self.launch_copies()
            case "d":
                self.device(1 + pick % 4)
            case "r":
                self.report(pick, twice=False)
            case "s":
                self.settle()
            case _:
                self.evict(pick % 5, pick % 2)

    # ---- After every rule ----

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "world"):
            return
        self.cache.sanity_check()
        for life in self.lives:
            most = 1 + self.cache.mode.track_slots
            assert len(life.req.state_slots()) <= most <= self.cache.states_per_request

    def teardown(self) -> None:
        """What can be matched is right to the byte; with everything released, every pool is whole."""
        if not hasattr(self, "world"):
            return
        self.world.settle()
        self.world.look()
        for life in self.lives:
            self.cache.release(life.req)
        self.cache.sanity_check()
        assert self.cache.stats()["live_requests"] == 0
        assert self.cache.index.stats().locks_held == sum(lock.held for lock in self.locks)
        for lock in self.locks:
            if lock.held:
                self.cache.dec_lock_ref(lock)
        assert self.cache.full_protected_size() == self.cache.mamba_protected_size() == 0
        self.world.assert_whole()


TestCache = CacheMachine.TestCase


@pytest.mark.parametrize("checkpoint", [None, "none", "int8"])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode.values())))
def test_busy_minutes_in_every_setting(mode: dict[str, Any], page_size: int, checkpoint: str | None) -> None:
    """What hypothesis tries in some settings, for sure in all, with pools from hopeless to roomy."""
    for seed in range(max(8, settings().max_examples // 10)):
        random = Random(seed)
        machine = CacheMachine()
        machine.make(mode, page_size, checkpoint, pages=4 + seed % 7, states=1 + seed % 8, disable=False)
        for _ in range(120):
            machine.one_of_many(random)
            machine.sound()
        machine.teardown()
