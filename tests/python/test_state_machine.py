"""Random calls on a `RadixIndex`, each compared with an oracle that has no tree.

The default takes seconds; `HYPOTHESIS_PROFILE=deep` some minutes. A failure is shrunk by hypothesis.
"""

from array import array
from collections.abc import Callable
from itertools import count, islice
from random import Random
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import stemcache
from oracle import LockingOracle, Place, Receipt, Refused

Got = TypeVar("Got")

NAMESPACES = st.sampled_from([None] * 12 + ["x", ""])
NUMBERS = st.integers(0, 40)
LIMITS = st.none() | st.integers(0, 8)
# A page is its first letter, repeated, and its last one; the tail is a part of a page.
LETTERS = st.sampled_from([(1, 1), (1, 1), (2, 2), (2, 2), (1, 2)])
PAGES = st.integers(0, 5).flatmap(lambda size: st.lists(LETTERS, min_size=size, max_size=size))
TAILS = st.sampled_from([0, 0, 0, 1, 3])
READY = st.sampled_from([True, True, True, False])
SELDOM = st.sampled_from([False] * 15 + [True])
OWNED = st.sampled_from(["all", "all", "all", "some", "none", "too many"])
FAULTS = st.sampled_from([None] * 30 + ["zero", "negative", "twice", "taken", "short", "state taken", "state 0"])
# The types that ids may come in.
KINDS = st.sampled_from(["list", "array", "int64", "int32"])


def convert(kind: str, ids: list[int]) -> Any:
    """The ids as another type that the index takes."""
    match kind:
        case "list":
            return ids
        case "array":
            return array("q", ids)
        case dtype:
            return np.array(ids, dtype=dtype)


class IndexMachine(RuleBasedStateMachine):
    """One index and its oracle; nodes and locks go by the order in which they were first seen."""

    @initialize(
        page_size=st.sampled_from([1, 2, 4, 64]),
        chunk=st.sampled_from([None, 1, 3]),
        bigram=st.booleans(),
        events=st.sampled_from([False, True, "states"]),
    )
    def make(self, page_size: int, chunk: int | None, bigram: bool, events: Any) -> None:
        chunk_size = None if chunk is None else chunk * page_size
        self.index = stemcache.RadixIndex(page_size, chunk_size, bigram, events=events)
        self.oracle = LockingOracle(page_size, chunk_size or 64, bigram)
        self.events = events
        self.pages: set[int] = set()
        self.states: set[int] = set()
        self.nodes: list[tuple[int, int]] = []
        self.locks: list[tuple[stemcache.Lock, Receipt]] = []

    # ---- Arguments ----

    def tokens(self, pages: list[tuple[int, int]], tail: int, start: Place) -> list[int]:
        size = self.oracle.page_size
        ids = [token for first, last in pages for token in [first] * (size - 1) + [last]]
        ids += [1] * min(tail, size - 1)
        if self.oracle.bigram:
            ids.insert(0, start[1][-1][1] if start[1] else 1)
        return ids

    def start(self, after: int | None, namespace: str | None) -> tuple[Place | None, dict[str, Any]]:
        """Where a key begins: for the oracle (None: a node that is gone), and as arguments of a call."""
        if after is None or not self.nodes:
            return (namespace, ()), {"namespace": namespace}
        handle, ident = self.nodes[after % len(self.nodes)]
        place = next((place for place, node in self.oracle.nodes.items() if node.ident == ident), None)
        return place, {"after": handle}

    def entry(self, start: Place, tokens: list[int], owned: str, fault: str | None) -> dict[str, Any]:
        """An insert's further arguments: free slots, and zeros where none may be read."""
        key = self.oracle.key(start, tokens)
        base, end = len(start[1]), len(key[1])
        known = len(self.oracle.slots_of(key, base))
        given = {"all": known, "some": known // 2, "none": 0, "too many": known + 1}[owned]
        taken = {slot for page in self.oracle.slots.values() for slot in page}
        free = (slot for slot in count(1) if slot not in taken)
        cut = min(given, end - base)
        slots = [0] * cut + list(islice(free, end - base - cut))
        states = {node.state for node in self.oracle.nodes.values() if node.state is not None}
        state = next(slot for slot in count(1) if slot not in states)
        if fault in ("zero", "negative", "twice", "taken") and cut < len(slots):
            bad = {"zero": 0, "negative": -1, "twice": slots[-1], "taken": min(taken, default=0)}
            slots[cut] = bad[fault]
        elif fault == "short":
            slots = slots[:-1]
        elif fault is not None and fault.startswith("state"):
            state = min(states, default=0) if fault == "state taken" else 0
        # Mostly said; left out it is the length before flooring.
        state_length = None if fault is None and end == base + len(self.oracle.units(tokens)) else end
        return {"slots": slots, "state": state, "owned": given, "state_length": state_length}

    # ---- Comparing ----

    def both(self, ask: Callable[[], Got], model: Callable[[], Any]) -> tuple[Got, Any] | None:
        """Both answers, or None where both refuse; a refused call leaves the digest as it was."""
        before = self.index.digest()
        try:
            expected = model()
        except Refused as refused:
            with pytest.raises(tuple(refused.mistakes)):
                ask()
            assert self.index.digest() == before
            return None
        return ask(), expected

    def same_node(self, got: int | None, expected: int | None) -> None:
        assert (got is None) == (expected is None)
        if got is not None and expected is not None and (got, expected) not in self.nodes:
            assert all(got != handle and expected != ident for handle, ident in self.nodes)
            self.nodes.append((got, expected))

    def same_match(self, got: stemcache.Match, expected: Any) -> None:
        found, _ = expected
        self.same_node(got.node, found.node)
        for name in ("length", "state_slot", "kv_length", "branching_length", "reason"):
            assert getattr(got, name) == getattr(found, name), name
        assert got.slots.dtype == np.int64
        assert got.slots.tolist() == found.slots

    def same_insert(self, got: stemcache.Insert, expected: Any) -> None:
        stored, _ = expected
        self.same_node(got.node, stored.node)
        assert (got.prefix_length, got.state_exists) == (stored.prefix_length, stored.state_exists)
        assert got.freed_slots.tolist() == stored.freed_slots

    def same_evicted(self, got: stemcache.Evicted, expected: Any) -> None:
        assert sorted(got.kv_slots.tolist()) == sorted(expected.kv)
        assert sorted(got.state_slots.tolist()) == sorted(expected.states)

    # ---- Rules ----

    @rule(
        pages=PAGES,
        tail=TAILS,
        namespace=NAMESPACES,
        after=st.none() | NUMBERS,
        limit=LIMITS,
        lock=st.booleans(),
        kind=KINDS,
    )
    def match(
        self,
        pages: list[tuple[int, int]],
        tail: int,
        namespace: str | None,
        after: int | None,
        limit: int | None,
        lock: bool,
        kind: str,
    ) -> None:
        start, where = self.start(after, namespace)
        ids = self.tokens(pages, tail, start or (None, ()))
        most = None if limit is None else limit * self.oracle.page_size
        if start is None:
            with pytest.raises(stemcache.StaleNodeError):
                self.index.match(ids, limit=most, lock=lock, **where)
            return
        before = self.index.digest()
        expected = self.oracle.match(start, ids, most, touch=False)
        self.same_match(self.index.peek(convert(kind, ids), limit=most, **where), expected)
        assert self.index.digest() == before
        self.oracle.match(start, ids, most, touch=True)
        got = self.index.match(convert(kind, ids), limit=most, lock=lock, **where)
        self.same_match(got, expected)
        assert (got.lock is not None) == lock
        if got.lock is not None:
            self.locks.append((got.lock, self.oracle.lock(expected[1])))

    @rule(
        pages=PAGES,
        tail=TAILS,
        namespace=NAMESPACES,
        after=st.none() | NUMBERS,
        owned=OWNED,
        fault=FAULTS,
        kind=KINDS,
        ready=READY,
    )
    def insert(
        self,
        pages: list[tuple[int, int]],
        tail: int,
        namespace: str | None,
        after: int | None,
        owned: str,
        fault: str | None,
        kind: str,
        ready: bool,
    ) -> None:
        start, where = self.start(after, namespace)
        where["state_ready"] = ready
        if start is None:
            with pytest.raises(stemcache.StaleNodeError):
                self.index.insert([1] * 200, list(range(1, 201)), 1, **where)
            return
        ids = self.tokens(pages, tail, start)
        entry = self.entry(start, ids, owned, fault)
        slots, state, rest = entry["slots"], entry.pop("state"), entry["owned"]
        length = entry["state_length"]
        answers = self.both(
            lambda: self.index.insert(
                convert(kind, ids), convert(kind, slots), state, owned=rest, state_length=length, **where
            ),
            lambda: self.oracle.insert(start, ids, slots, state, rest, length, ready=ready),
        )
        if answers is not None:
            self.same_insert(*answers)

    @precondition(lambda self: self.locks)
    @rule(which=NUMBERS, pages=PAGES, tail=TAILS, owned=OWNED, fault=FAULTS, ready=READY)
    def advance(
        self, which: int, pages: list[tuple[int, int]], tail: int, owned: str, fault: str | None, ready: bool
    ) -> None:
        lock, receipt = self.locks[which % len(self.locks)]
        ids = self.tokens(pages, tail, receipt.on)
        entry = self.entry(receipt.on, ids, owned, fault)
        slots, state, rest, length = (entry[name] for name in ("slots", "state", "owned", "state_length"))

        def model() -> Any:
            self.oracle.check_held(receipt)
            return self.oracle.insert(receipt.on, ids, slots, state, rest, length, ready=ready)

        settings = {"owned": rest, "state_length": length, "state_ready": ready}
        answers = self.both(lambda: self.index.advance(lock, ids, slots, state, **settings), model)
        if answers is not None:
            got, expected = answers
            receipt.held = False
            self.same_insert(got.insert, expected)
            assert got.slots.tolist() == self.oracle.slots_of(expected[1], len(receipt.on[1]))
            self.locks.append((got.lock, self.oracle.lock(expected[1])))

    @precondition(lambda self: self.nodes)
    @rule(which=NUMBERS, keep=st.booleans())
    def settle(self, which: int, keep: bool) -> None:
        """A state that waited is published or discarded; mostly one that did wait."""
        waiting = [
            pair for pair in self.nodes if any(n.pending and n.ident == pair[1] for n in self.oracle.nodes.values())
        ]
        handle, ident = (waiting or self.nodes)[which % len(waiting or self.nodes)]
        if keep:
            self.both(lambda: self.index.publish_state(handle), lambda: self.oracle.publish(ident))
            return
        answers = self.both(lambda: self.index.discard_state(handle), lambda: self.oracle.discard(ident))
        if answers is not None:
            self.same_evicted(*answers)

    @precondition(lambda self: self.nodes)
    @rule(which=NUMBERS)
    def lock(self, which: int) -> None:
        handle, ident = self.nodes[which % len(self.nodes)]
        answers = self.both(lambda: self.index.lock(handle), lambda: self.oracle.lock(self.oracle.place_of(ident)))
        if answers is not None:
            self.locks.append(answers)

    @precondition(lambda self: self.locks)
    @rule(which=NUMBERS, state_only=st.booleans())
    def unlock(self, which: int, state_only: bool) -> None:
        lock, receipt = self.locks[which % len(self.locks)]
        release = self.index.unlock_state if state_only else self.index.unlock
        answers = self.both(lambda: release(lock), lambda: self.oracle.check_held(receipt, state=state_only))
        if answers is not None:
            receipt.state = False
            receipt.held = state_only

    @precondition(lambda self: self.oracle.held())
    @rule()
    def unlock_all(self) -> None:
        for lock, receipt in self.locks:
            if receipt.held and receipt.life == self.oracle.life:
                with lock:
                    assert lock.held
                receipt.held = False
            assert not lock.held

    @rule(pages=st.integers(-1, 6), states=st.integers(-1, 3))
    def evict(self, pages: int, states: int) -> None:
        tokens = pages * self.oracle.page_size
        self.same_evicted(self.index.evict(tokens, states), self.oracle.evict(tokens, states))

    @rule(namespace=NAMESPACES, really=SELDOM)
    def drop(self, namespace: str | None, really: bool) -> None:
        if really:
            self.same_evicted(self.index.drop_namespace(namespace), self.oracle.drop_namespace(namespace))

    @rule(really=SELDOM)
    def reset(self, really: bool) -> None:
        if really:
            self.same_evicted(self.index.reset(), self.oracle.reset())

    @rule(seed=st.integers(0, 2**32))
    def a_busy_minute(self, seed: int) -> None:
        """Many calls at once: hypothesis alone makes histories too short for full trees and long orders."""
        random = Random(seed)
        for _ in range(30):
            pages = [random.choice([(1, 1), (2, 2), (1, 2)]) for _ in range(random.randrange(5))]
            tail = random.choice([0, 0, 0, 2])
            after = random.choice([None, None, None, random.randrange(len(self.nodes) + 1)])
            match random.choice("mmmiiiiialuseept"):
                case "m":
                    limit = random.choice([None, None, random.randrange(6)])
                    self.match(pages, tail, None, after, limit, random.random() < 0.3, "list")
                case "i":
                    owned = random.choice(["all", "all", "some", "none"])
                    self.insert(pages, tail, None, after, owned, None, "list", random.random() < 0.8)
                case "a" if self.locks:
                    self.advance(random.randrange(len(self.locks)), pages, tail, "all", None, random.random() < 0.8)
                case "p" | "t" as what if self.nodes:
                    self.settle(random.randrange(len(self.nodes)), what == "p")
                case "l" if self.nodes:
                    self.lock(random.randrange(len(self.nodes)))
                case "u" | "s" as what if self.locks:
                    self.unlock(random.randrange(len(self.locks)), what == "s")
                case _:
                    self.evict(random.randrange(3), random.randrange(2))
            self.sound()

    # ---- After every rule ----

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "index"):
            return
        self.index.check_invariants()
        for name, size in self.oracle.sizes().items():
            assert getattr(self.index, name) == size, name
        slots = [slot for page in self.oracle.slots.values() for slot in page]
        assert sorted(self.index.all_slots().tolist()) == sorted(slots)
        states = [node.state for node in self.oracle.nodes.values() if node.state is not None]
        assert sorted(self.index.all_state_slots().tolist()) == sorted(states)
        assert self.index.stats().locks_held == len(self.oracle.held())
        self.follow_events()

    def follow_events(self) -> None:
        """Each page is stored once and removed once, and so is each state."""
        for event in self.index.take_events():
            assert self.events
            if isinstance(event, stemcache.AllBlocksCleared):
                self.pages, self.states = set(), set()
                continue
            known = self.states if isinstance(event, stemcache.StateStored | stemcache.StateRemoved) else self.pages
            for block in event.block_hashes:
                stored = isinstance(event, stemcache.BlockStored | stemcache.StateStored)
                assert (block in known) != stored, event
                (known.add if stored else known.remove)(block)
        if self.events:
            assert len(self.pages) == len(self.oracle.slots)
        if self.events == "states":
            assert len(self.states) == sum(node.usable for node in self.oracle.nodes.values())


TestIndex = IndexMachine.TestCase
