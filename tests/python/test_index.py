"""What a reader should see of RadixIndex, and what its face alone must do: arguments, results, errors."""

import subprocess
import sys
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stemcache
from stemcache import RadixIndex


def stored(tokens: list[int], first_slot: int = 1, **settings: Any) -> RadixIndex:
    """An index that holds one key, its KV in consecutive slots, its state in slot 1."""
    index = RadixIndex(**settings)
    index.insert(tokens, range_of(first_slot, len(tokens)), 1)
    return index


def range_of(first: int, n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.arange(first, first + n, dtype=np.int64)


class TestMatch:
    def test_a_prefix_is_usable_only_where_a_state_lies(self) -> None:
        index = stored([1, 2, 3, 4])
        hit = index.match([1, 2, 3, 4, 5])
        assert (hit.length, hit.slots.tolist(), hit.state_slot, hit.reason) == (4, [1, 2, 3, 4], 1, "miss")
        inside = index.match([1, 2, 9])
        assert (inside.length, inside.kv_length, inside.node, inside.state_slot) == (0, 2, None, None)
        assert inside.reason == "no state"

    def test_the_whole_key_has_no_reason(self) -> None:
        assert stored([1, 2]).match([1, 2]).reason is None

    def test_limit_leaves_a_token_to_compute(self) -> None:
        hit = stored([1, 2, 3]).match([1, 2, 3], limit=2)
        assert (hit.length, hit.kv_length, hit.reason) == (0, 2, "limit")

    def test_an_evicted_state_is_told_from_one_never_kept(self) -> None:
        index = stored([1, 2])
        index.insert([1, 2, 3], [1, 2, 3], 2, owned=2)
        index.evict(states=1)
        assert index.match([1, 2, 9]).reason == "state evicted"

    def test_the_branching_point_is_past_the_hit_and_on_the_grid(self) -> None:
        index = stored(list(range(20)), chunk_size=4)
        assert index.match([*range(11), 99]).branching_length == 8
        assert index.match(list(range(20))).branching_length is None

    def test_none_and_the_empty_namespace_are_two(self) -> None:
        index = stored([1, 2])
        assert index.match([1, 2], namespace="").reason == "namespace"
        index.insert([1, 2], [3, 4], 2, namespace="")
        assert index.match([1, 2], namespace="").slots.tolist() == [3, 4]
        assert index.match([1, 2], namespace=None).slots.tolist() == [1, 2]

    def test_peek_touches_nothing(self) -> None:
        index = stored([1, 2])
        index.insert([7], [7], 7)
        before = index.digest(), index.stats().as_dict()
        assert index.peek([1, 2]).length == 2
        assert (index.digest(), index.stats().as_dict()) == before

    def test_a_match_never_splits(self) -> None:
        index = stored(list(range(100)))
        for end in range(1, 100):
            index.match(list(range(end)))
        assert index.node_count == 1


class TestTokenForms:
    """Everything that engines hold ids in reads the same."""

    FORMS: tuple[Callable[[list[int]], Any], ...] = (
        list,
        tuple,
        lambda ids: array("q", ids),
        lambda ids: array("i", ids),
        lambda ids: np.array(ids, dtype=np.int64),
        lambda ids: np.array(ids, dtype=np.int32),
        lambda ids: np.array(ids, dtype=np.uint16),
        lambda ids: np.repeat(np.array(ids, dtype=np.int64), 2)[::2],
        lambda ids: np.repeat(np.array(ids, dtype=np.int32), 2)[::2],
    )

    @pytest.mark.parametrize("form", FORMS)
    def test_all_integer_forms(self, form: Callable[[list[int]], Any]) -> None:
        index = RadixIndex()
        index.insert(form([5, 6, 7]), form([1, 2, 3]), 1)
        assert index.match(form([5, 6, 7, 8])).slots.tolist() == [1, 2, 3]

    @pytest.mark.parametrize("form", FORMS)
    def test_nothing_at_all(self, form: Callable[[list[int]], Any]) -> None:
        assert RadixIndex().match(form([])).length == 0

    def test_ids_of_any_size(self) -> None:
        ids = [-(2**63), 2**63 - 1, 0]
        assert stored(ids).match(ids).length == 3

    def test_a_cpu_tensor(self) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        index = stored([5, 6, 7])
        assert index.match(torch.tensor([5, 6, 7])).length == 3
        assert index.match(torch.tensor([5, 6, 7], dtype=torch.int32)).length == 3

    def test_a_tensor_on_a_device_is_refused_without_waiting_for_it(self) -> None:
        class Device:
            type = "cuda"

            def __str__(self) -> str:
                return "cuda:1"

        class Tensor:
            device = Device()

            def numpy(self) -> None:
                raise AssertionError("it was read")

        with pytest.raises(TypeError, match="tokens are on cuda:1"):
            RadixIndex().match(Tensor())

    @pytest.mark.parametrize("wrong", [[1.5], np.array([1.0]), "ab", np.array([2**63], dtype=np.uint64), None])
    def test_what_is_not_integers(self, wrong: Any) -> None:
        with pytest.raises(TypeError):
            RadixIndex().match(wrong)

    def test_two_dimensions(self) -> None:
        with pytest.raises(stemcache.InvalidArgumentError, match=r"tokens has shape \(1, 2\)"):
            RadixIndex().match(np.ones((1, 2), dtype=np.int64))

    def test_too_large_for_int64(self) -> None:
        with pytest.raises(stemcache.InvalidArgumentError, match="tokens holds a number that does not fit int64"):
            RadixIndex().match([2**63])

    @pytest.mark.parametrize("kind", ["<i4", "<i8"])
    def test_the_field_of_a_packed_record(self, kind: str) -> None:
        """Its stride is no multiple of its size, and its address not aligned."""
        records = np.zeros(4, dtype=[("flag", "i1"), ("id", kind)])
        records["id"] = [5, 6, 7, 8]
        index = stored([5, 6, 7, 8])
        assert index.match(records["id"]).length == 4

    def test_a_foreign_tensor_without_a_device_is_read_as_a_sequence(self) -> None:
        class Odd(list[int]):
            numpy = None

        assert stored([5, 6]).match(Odd([5, 6])).length == 2

    def test_long_keys(self) -> None:
        """These give up the GIL, on a copy."""
        ids = np.arange(1 << 20, dtype=np.int64)
        index = RadixIndex()
        index.insert(ids, ids + 1, 1)
        assert index.match(ids).slots.tolist() == (ids + 1).tolist()
        assert len(index.evict(tokens=2**70).kv_slots) == 1 << 20


def two_requests() -> RadixIndex:
    """[1 2] and [1 2 3 4], a state at the end of each."""
    index = stored([1, 2])
    index.insert([1, 2, 3, 4], [1, 2, 3, 4], 2, owned=2)
    return index


class TestRefusals:
    """A refused call raises the right error, names the value, and changes nothing."""

    CASES: tuple[tuple[Callable[[RadixIndex], Any], type[Exception], str], ...] = (
        (lambda i: i.insert([9], [0], 9), stemcache.SlotOwnershipError, "KV slot 0 is not a slot"),
        (lambda i: i.insert([9], [-4], 9), stemcache.SlotOwnershipError, "KV slot -4 is not a slot"),
        (lambda i: i.insert([9], [2**32], 9), stemcache.SlotOwnershipError, "4294967296 is not a slot"),
        (lambda i: i.insert([9], [3], 9), stemcache.SlotOwnershipError, "KV slot 3 is the tree's already"),
        (lambda i: i.insert([8, 9], [7, 7], 9), stemcache.SlotOwnershipError, "KV slot 7 is given twice"),
        (lambda i: i.insert([9], [9], 2), stemcache.SlotOwnershipError, "state slot 2 is the tree's already"),
        (lambda i: i.insert([9], [9], 0), stemcache.SlotOwnershipError, "state slot 0 is not a slot"),
        (lambda i: i.insert([8, 9], [9], 9), stemcache.InvalidArgumentError, "number of slots is 1"),
        (
            lambda i: i.insert([9], [9], 9, state_length=2),
            stemcache.InvalidArgumentError,
            "state_length is 2",
        ),
        (
            lambda i: i.insert([9], [9], 9, state_length=-1),
            stemcache.InvalidArgumentError,
            "state_length is -1",
        ),
        (lambda i: i.insert([1, 9], [1, 9], 9, owned=2), stemcache.InvalidArgumentError, "owned is 2"),
        (lambda i: i.insert([9], [9], 9, owned=-1), stemcache.InvalidArgumentError, "owned is -1"),
        (lambda i: i.match([1], limit=-1), stemcache.InvalidArgumentError, "limit is -1"),
        (lambda i: i.match([1], after=123), stemcache.StaleNodeError, "node 123 is not in the tree"),
        (lambda i: i.lock(123), stemcache.StaleNodeError, "node 123 is not in the tree"),
        (lambda i: i.lock(-1), stemcache.StaleNodeError, "node -1 is not in the tree"),
        (lambda i: i.match([1], after=2**64), stemcache.StaleNodeError, "node 18446744073709551616 is not"),
        (lambda i: i.publish_state(i.match([1, 2]).node or 0), stemcache.InvalidArgumentError, "no state that waits"),
        (lambda i: i.lock(stored([1]).match([1]).node or 0), stemcache.StaleNodeError, "another index"),
        (lambda i: i.unlock(released(i)), stemcache.NotLockedError, "released already"),
        (lambda i: i.unlock_state(released(i)), stemcache.NotLockedError, "released already"),
        (lambda i: i.advance(released(i), [9], [9], 9), stemcache.NotLockedError, "released already"),
        (lambda i: i.unlock(foreign_lock()), stemcache.InvalidArgumentError, "another index"),
    )

    @pytest.mark.parametrize(("call", "error", "message"), CASES)
    def test_refused(self, call: Callable[[RadixIndex], Any], error: type[Exception], message: str) -> None:
        index = two_requests()
        released(index)  # what the cases do to recency is done before
        before = index.digest()
        with pytest.raises(error, match=message.replace("(", r"\(")):
            call(index)
        index.check_invariants()
        assert index.digest() == before

    def test_errors_are_fitting_builtins(self) -> None:
        for error, builtin in (
            (stemcache.StaleNodeError, KeyError),
            (stemcache.NotLockedError, RuntimeError),
            (stemcache.SlotOwnershipError, ValueError),
            (stemcache.InvalidArgumentError, ValueError),
            (stemcache.OutOfSlotsError, MemoryError),
            (stemcache.InvariantError, AssertionError),
        ):
            assert issubclass(error, builtin)
            assert issubclass(error, stemcache.CacheError)
            assert str(error("as it is")) == "as it is"

    def test_settings(self) -> None:
        for settings, message in (
            ({"page_size": 0}, "page_size is 0"),
            ({"page_size": -1}, "page_size is -1"),
            (
                {"page_size": 96, "chunk_size": 64},
                "chunk_size is 64, but it must be a multiple of page_size 96",
            ),
            ({"chunk_size": 0}, "chunk_size is 0"),
            ({"policy": "fifo"}, 'policy is "fifo", but it must be one of: "lru"'),
            ({"events": "all"}, "events is 'all'"),
        ):
            with pytest.raises(stemcache.InvalidArgumentError, match=message):
                RadixIndex(**settings)

    def test_a_bigram_key_repeats_the_boundary(self) -> None:
        index = RadixIndex(bigram=True)
        node = index.insert([1, 2, 3], [1, 2], 1).node
        assert index.match([3, 4], after=node).length == 2
        for call in (
            lambda: index.match([4, 5], after=node),
            lambda: index.peek([4, 5], after=node),
            lambda: index.insert([4, 5], [3], 2, after=node),
        ):
            with pytest.raises(stemcache.InvalidArgumentError, match="the first token is 4"):
                call()

    def test_another_namespace_than_the_nodes(self) -> None:
        index = RadixIndex()
        node = index.insert([1], [1], 1, namespace="a").node
        assert index.match([2], after=node, namespace="a").length == 1
        assert index.match([2], after=node).length == 1
        for other in ("b", "", None):
            with pytest.raises(stemcache.InvalidArgumentError, match="namespace"):
                index.match([2], after=node, namespace=other)


def released(index: RadixIndex) -> stemcache.Lock:
    """A lock that was released."""
    lock = index.match([1, 2], lock=True).lock
    assert lock is not None
    index.unlock(lock)
    return lock


def foreign_lock() -> stemcache.Lock:
    lock = stored([1, 2]).match([1, 2], lock=True).lock
    assert lock is not None
    return lock


class TestLocks:
    def test_a_lock_protects_the_path_and_one_state(self) -> None:
        index = two_requests()
        node = index.match([1, 2, 3, 4]).node
        assert node is not None
        with index.lock(node) as lock:
            assert lock.held
            assert lock.node == node
            assert (index.protected_tokens, index.protected_states) == (4, 1)
            assert index.evict(tokens=99, states=99).state_slots.tolist() == [1]
        assert not lock.held
        assert lock.node is None
        assert (index.evictable_tokens, index.evictable_states) == (4, 1)

    def test_the_state_part_can_go_early(self) -> None:
        index = stored([1, 2])
        lock = index.match([1, 2], lock=True).lock
        assert lock is not None
        index.unlock_state(lock)
        assert index.evict(states=1).state_slots.tolist() == [1]
        assert (index.total_tokens, index.total_states, index.node_count) == (2, 0, 1)
        with pytest.raises(stemcache.NotLockedError, match="no state"):
            index.unlock_state(lock)
        index.unlock(lock)
        assert index.evict(tokens=1).kv_slots.tolist() == [1, 2]

    def test_the_lock_of_a_miss_is_where_an_advance_begins(self) -> None:
        index = RadixIndex()
        miss = index.match([1, 2, 3], namespace="tenant", limit=2, lock=True)
        assert miss.lock is not None
        assert (miss.lock.held, miss.lock.node) == (True, None)
        done = index.advance(miss.lock, [1, 2], [4, 5], 1)
        assert index.match([1, 2], namespace="tenant").node == done.lock.node
        assert index.match([1, 2]).reason == "namespace"

    def test_advance_uses_the_lock_up_and_returns_the_trees_slots(self) -> None:
        index = stored([1, 2, 3])
        first = index.match([], lock=True).lock
        assert first is not None
        done = index.advance(first, [1, 2, 3, 4], [11, 12, 13, 14], 2)
        assert done.insert.freed_slots.tolist() == [11, 12, 13]
        assert done.slots.tolist() == [1, 2, 3, 14]
        assert not first.held
        assert index.protected_tokens == 4

    def test_a_context_that_moved_its_lock_ends_quietly(self) -> None:
        index = stored([1])
        node = index.match([1]).node
        assert node is not None
        with index.lock(node) as lock:
            moved = index.advance(lock, [2], [2], 2).lock
        assert moved.held
        index.unlock(moved)
        index.check_invariants()

    def test_reset_makes_locks_and_handles_stale(self) -> None:
        index = stored([1, 2])
        hit = index.match([1, 2], lock=True)
        assert hit.lock is not None
        assert hit.node is not None
        freed = index.reset()
        assert (sorted(freed.kv_slots.tolist()), freed.state_slots.tolist()) == ([1, 2], [1])
        for stale in (lambda: index.unlock(hit.lock), lambda: index.lock(hit.node)):
            with pytest.raises(stemcache.StaleNodeError):
                stale()
        assert index.digest() == RadixIndex().digest()


class TestPendingStates:
    """A state whose bytes a copy has yet to write is in the tree, but out of everybody's reach."""

    def pending(self) -> tuple[RadixIndex, int]:
        index = stored([1, 2])
        node = index.insert([1, 2, 3, 4], [1, 2, 3, 4], 2, owned=2, state_ready=False).node
        assert node is not None
        return index, node

    def test_it_is_neither_matched_nor_evicted(self) -> None:
        index, _ = self.pending()
        hit = index.match([1, 2, 3, 4])
        assert (hit.length, hit.kv_length, hit.reason) == (2, 4, "no state")
        assert index.evict(tokens=99, states=99).state_slots.tolist() == [1]
        assert (index.protected_tokens, index.protected_states) == (4, 1)

    def test_published_it_is_like_any_other(self) -> None:
        index, node = self.pending()
        index.publish_state(node)
        assert index.match([1, 2, 3, 4]).state_slot == 2
        assert (index.evictable_tokens, index.evictable_states) == (4, 2)

    def test_discarded_it_takes_a_node_along_that_nothing_needs(self) -> None:
        index, node = self.pending()
        gone = index.discard_state(node)
        assert (gone.kv_slots.tolist(), gone.state_slots.tolist()) == ([3, 4], [2])
        assert index.node_count == 1


class TestInspection:
    def test_sizes_and_slots(self) -> None:
        index = two_requests()
        assert (index.total_tokens, index.total_states, index.node_count) == (4, 2, 2)
        assert sorted(index.all_slots().tolist()) == [1, 2, 3, 4]
        assert sorted(index.all_state_slots().tolist()) == [1, 2]
        assert index.all_slots().dtype == np.int64

    def test_dump_is_a_picture(self) -> None:
        assert two_requests().dump().splitlines() == [
            "namespace (none)",
            "  [0] 0..2 tokens=1,2 kv=1,2 state=1 locks=0/0",
            "    [1] 2..4 tokens=3,4 kv=3,4 state=2 locks=0/0",
            "kv order: 1 0",
            "state order: 1 0",
        ]

    def test_digest_is_a_fixed_number(self) -> None:
        """Ranks on different machines compare it, so it must never change by itself."""
        assert RadixIndex().digest() == 0x2D06800538D394C2
        assert two_requests().digest() == two_requests().digest()
        other = two_requests()
        other.match([1, 2])
        assert other.digest() != two_requests().digest()

    def test_drop_namespace(self) -> None:
        index = two_requests()
        index.insert([1], [9], 9, namespace="x")
        assert index.drop_namespace("x").kv_slots.tolist() == [9]
        assert sorted(index.drop_namespace(None).kv_slots.tolist()) == [1, 2, 3, 4]
        assert index.drop_namespace("x").kv_slots.tolist() == []

    def test_results_show_themselves(self) -> None:
        index = stored([1, 2])
        assert "length=2" in repr(index.match([1, 2]))
        assert "state_exists=False" in repr(index.insert([5], [5], 5))
        assert repr(index.evict(tokens=1)) == "Evicted(<1 KV slots>, <1 state slots>)" or index.node_count == 1
        assert "RadixIndex(page_size=1, chunk_size=64" in repr(index)
        assert "matches=1" in repr(index.stats())


class TestEvents:
    def test_off_is_nothing(self) -> None:
        assert two_requests().take_events() == []

    def test_pages_chain_and_states_are_behind_a_switch(self) -> None:
        index = stored([1, 2, 3, 4], page_size=2, events="states")
        first, second, state = index.take_events()
        assert isinstance(first, stemcache.BlockStored)
        assert isinstance(second, stemcache.BlockStored)
        assert isinstance(state, stemcache.StateStored)
        assert (first.parent_block_hash, first.token_ids, first.block_size) == (None, [1, 2], 2)
        assert second.parent_block_hash == first.block_hashes[0]
        assert state.block_hashes == second.block_hashes
        index.reset()
        assert isinstance(index.take_events()[0], stemcache.AllBlocksCleared)

    def test_the_first_hash_is_that_of_sglang(self) -> None:
        """SHA-256 over the page's tokens as little-endian u32; its first 8 bytes, big-endian, signed."""
        import hashlib

        (event,) = stored([1, 2], page_size=2, events=True).take_events()
        assert isinstance(event, stemcache.BlockStored)
        digest = hashlib.sha256((1).to_bytes(4, "little") + (2).to_bytes(4, "little")).digest()
        assert event.block_hashes == [int.from_bytes(digest[:8], "big", signed=True)]

    def test_bigram_pages_are_pairs(self) -> None:
        index = RadixIndex(page_size=2, bigram=True, events=True)
        index.insert([1, 2, 3], [1, 2], 1)
        (event,) = index.take_events()
        assert isinstance(event, stemcache.BlockStored)
        assert event.token_ids == [(1, 2), (2, 3)]

    def test_ids_that_events_cannot_carry(self) -> None:
        index = RadixIndex(events=True)
        with pytest.raises(stemcache.InvalidArgumentError, match="a token id is -1"):
            index.insert([1, -1], [1, 2], 1)
        assert index.node_count == 0


def test_the_package_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import stemcache; stemcache.RadixIndex().match([1])"
    subprocess.run([sys.executable, "-c", code], check=True)
