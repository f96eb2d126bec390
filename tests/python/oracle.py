"""What the index must answer, in the plainest way we found: dictionaries, lists and searches, no tree.

A *place* is a namespace and whole pages of units (a token, or a pair of them) from its root. `slots` holds the KV
slots of every page by the place where it ends; a node is a place, too: its parent is its longest proper prefix that is
a node. Recency is the order of two lists, a lock is a receipt in a list. Nothing is counted, all is added up on demand.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import stemcache

Unit: TypeAlias = tuple[int, ...]
Place: TypeAlias = tuple[str | None, tuple[Unit, ...]]
Mistakes: TypeAlias = set[type[stemcache.CacheError]]


class Refused(Exception):  # noqa: N818 (what a call is, not what went wrong here)
    """A call must be refused; the index may name any of the mistakes."""

    def __init__(self, mistakes: Mistakes) -> None:
        super().__init__(mistakes)
        self.mistakes = mistakes


@dataclass
class Node:
    """A node: `ident` is its own for ever."""

    ident: int
    state: int | None = None
    lost_state: bool = False
    # The state is still to be written: nobody can use, lock or evict it.
    pending: bool = False

    @property
    def usable(self) -> bool:
        """Whether a request can go on from the state."""
        return self.state is not None and not self.pending


@dataclass
class Receipt:
    """A lock. One of nothing lies on a root, which is no node."""

    on: Place
    state: bool
    life: int
    held: bool = True


@dataclass
class Found:
    """The answer of a match."""

    length: int
    slots: list[int]
    node: int | None
    state_slot: int | None
    kv_length: int
    branching_length: int | None
    reason: str | None


@dataclass
class Stored:
    """The answer of an insert."""

    prefix_length: int
    state_exists: bool
    freed_slots: list[int]
    node: int | None


@dataclass
class Freed:
    """Slots that left the tree."""

    kv: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)


@dataclass
class Oracle:
    """The model of one `RadixIndex`."""

    page_size: int
    chunk_size: int
    bigram: bool
    slots: dict[Place, list[int]] = field(default_factory=dict)
    nodes: dict[Place, Node] = field(default_factory=dict)
    kv_order: list[Place] = field(default_factory=list)
    state_order: list[Place] = field(default_factory=list)
    life: int = 0
    born: int = 0

    # ---- Where things are ----

    def place_of(self, node: int) -> Place:
        """The place of a node that may be gone."""
        for place, there in self.nodes.items():
            if there.ident == node:
                return place
        raise Refused({stemcache.StaleNodeError})

    def key(self, start: Place, tokens: list[int]) -> Place:
        """A start and the whole pages after it."""
        units = self.units(tokens)
        return start[0], start[1] + tuple(units[: len(units) // self.page_size * self.page_size])

    def units(self, tokens: list[int]) -> list[Unit]:
        """Tokens, or the pairs that overlap."""
        return list(pairwise(tokens)) if self.bigram else [(token,) for token in tokens]

    def prefixes(self, place: Place, known: dict[Place, list[int]] | dict[Place, Node]) -> list[Place]:
        """The prefixes of a place that are known, shortest first, itself among them."""
        ends = range(self.page_size, len(place[1]) + 1, self.page_size)
        return [prefix for end in ends if (prefix := (place[0], place[1][:end])) in known]

    def below(self, place: Place) -> list[Place]:
        """The nodes under a place."""
        namespace, units = place
        return [
            node
            for node in self.nodes
            if node[0] == namespace and len(node[1]) > len(units) and node[1][: len(units)] == units
        ]

    def edge(self, node: Place) -> list[Place]:
        """The places where the pages of a node's own edge end."""
        above = self.prefixes(node, self.nodes)[:-1]
        start = len(above[-1][1]) if above else 0
        return [page for page in self.prefixes(node, self.slots) if len(page[1]) > start]

    def slots_of(self, end: Place, start: int) -> list[int]:
        """The slots up to a place, past the first `start`."""
        return [slot for page in self.prefixes(end, self.slots) for slot in self.slots[page]][start:]

    # ---- The calls ----

    def match(self, start: Place, tokens: list[int], limit: int | None, *, touch: bool) -> tuple[Found, Place]:
        """The answer, and the place of the hit (a root without one)."""
        key = self.key(start, tokens)
        base, end = len(start[1]), len(key[1])
        cap = end if limit is None else min(end, base + limit // self.page_size * self.page_size)
        pages = self.prefixes((key[0], key[1][:cap]), self.slots)
        kv_length = len(pages[-1][1]) if pages else 0
        path = self.prefixes((key[0], key[1][:kv_length]), self.nodes)
        hit = next((node for node in reversed(path) if self.nodes[node].usable), (key[0], ()))
        length = len(hit[1])
        branching = kv_length // self.chunk_size * self.chunk_size
        written = any(self.nodes[node].pending and len(node[1]) == branching for node in path)
        node = self.nodes.get(hit)
        if touch:
            self.touch_path(hit)
        return Found(
            length=length,
            slots=self.slots_of(hit, base),
            node=None if node is None else node.ident,
            state_slot=None if node is None else node.state,
            kv_length=kv_length,
            branching_length=branching if branching > length and not written else None,
            reason=self.reason(key, cap, kv_length, length),
        ), hit

    def reason(self, key: Place, cap: int, kv_length: int, length: int) -> str | None:
        """Why a match is shorter than its key: the first that applies."""
        path = self.prefixes((key[0], key[1][:kv_length]), self.nodes)
        if length == len(key[1]):
            return None
        if not self.below((key[0], ())):
            return "namespace"
        if kv_length == cap < len(key[1]):
            return "limit"
        if kv_length == length:
            return "miss"
        lost = any(self.nodes[node].lost_state for node in path if len(node[1]) > length)
        return "state evicted" if lost else "no state"

    def insert(
        self,
        start: Place,
        tokens: list[int],
        slots: list[int],
        state: int,
        owned: int,
        state_length: int | None,
        *,
        ready: bool = True,
    ) -> tuple[Stored, Place]:
        """The answer, and the place of the key's end."""
        key = self.key(start, tokens)
        base, end = len(start[1]), len(key[1])
        pages = self.prefixes(key, self.slots)
        known = len(pages[-1][1]) if pages else 0
        owned = min(owned, end - base)
        state_at = base + len(self.units(tokens)) if state_length is None else state_length
        mistakes = self.slot_mistakes(slots[owned : end - base], state) if end else set()
        if state_at != end or (end and (len(slots) < end - base or base + owned > known)):
            mistakes.add(stemcache.InvalidArgumentError)
        if mistakes:
            raise Refused(mistakes)
        if not end:
            return Stored(0, state_exists=True, freed_slots=[], node=None), key
        freed = slots[owned : max(owned, known - base)]
        for at in range(known, end, self.page_size):
            self.slots[key[0], key[1][: at + self.page_size]] = slots[at - base : at - base + self.page_size]
        self.touch_path((key[0], key[1][:known]))
        self.split((key[0], key[1][:known]))
        exists = self.put_state(key, state, ready=ready)
        return Stored(known, state_exists=exists, freed_slots=freed, node=self.nodes[key].ident), key

    def slot_mistakes(self, given: list[int], state: int) -> Mistakes:
        """What is wrong with the slots that a call would read."""
        taken = {slot for page in self.slots.values() for slot in page}
        bad = len(set(given)) < len(given) or any(slot < 1 or slot in taken for slot in given)
        bad = bad or state < 1 or any(node.state == state for node in self.nodes.values())
        return {stemcache.SlotOwnershipError} if bad else set()

    def split(self, upper: Place) -> None:
        """Cuts the edge that a place lies inside of, if it does."""
        if not upper[1] or upper in self.nodes:
            return
        child = min(self.below(upper), key=lambda node: len(node[1]))
        self.bear(upper)
        self.touch(child)

    def put_state(self, end: Place, state: int, *, ready: bool) -> bool:
        """Makes the end a node with a state; whether it had one."""
        if end not in self.nodes:
            self.bear(end)
        exists = self.nodes[end].state is not None
        if not exists:
            self.nodes[end].state = state
            self.nodes[end].pending = not ready
            self.state_order.append(end)
        self.touch(end)
        return exists

    def bear(self, place: Place) -> None:
        """A new node without a state, the most recent one."""
        self.born += 1
        self.nodes[place] = Node(self.born)
        self.kv_order.append(place)

    def touch(self, node: Place) -> None:
        """Makes a node the most recent one in the lists that it is in."""
        for order in (self.kv_order, self.state_order):
            if node in order:
                order.remove(node)
                order.append(node)

    def touch_path(self, end: Place) -> None:
        """Touches the nodes on the way to a place, from the root down."""
        for node in self.prefixes(end, self.nodes):
            self.touch(node)

    def delete(self, node: Place, freed: Freed) -> None:
        """Takes a node out, with its slots and its state."""
        for page in self.edge(node):
            freed.kv += self.slots.pop(page)
        self.take_state(node, freed)
        self.kv_order.remove(node)
        del self.nodes[node]

    def take_state(self, node: Place, freed: Freed) -> None:
        """Makes a node a tombstone."""
        if node in self.state_order:
            self.state_order.remove(node)
            freed.states.append(self.nodes[node].state or 0)
            self.nodes[node].state = None
            self.nodes[node].lost_state = True


@dataclass
class LockingOracle(Oracle):
    """The part that knows receipts, and what eviction may take."""

    receipts: list[Receipt] = field(default_factory=list)

    def lock(self, on: Place) -> Receipt:
        """A new receipt for a node, or for nothing."""
        node = self.nodes.get(on)
        self.receipts.append(Receipt(on, node is not None and node.usable, self.life))
        return self.receipts[-1]

    def check_held(self, receipt: Receipt, *, state: bool = False) -> None:
        """Refuses a receipt that is stale, or that does not hold what is to be released."""
        if receipt.life != self.life:
            raise Refused({stemcache.StaleNodeError})
        if not receipt.held or (state and not receipt.state):
            raise Refused({stemcache.NotLockedError})

    def held(self) -> list[Receipt]:
        """The receipts that can be released."""
        return [receipt for receipt in self.receipts if receipt.held and receipt.life == self.life]

    def kv_locked(self, node: Place) -> bool:
        """Whether a lock lies on a node or below it; a state that is still to be written is one."""
        pending = [place for place, there in self.nodes.items() if there.pending]
        return any(node in self.prefixes(on, self.nodes) for on in [*(receipt.on for receipt in self.held()), *pending])

    def state_locked(self, node: Place) -> bool:
        """Whether a lock holds a node's state, or it is still to be written."""
        return self.nodes[node].pending or any(receipt.state and receipt.on == node for receipt in self.held())

    def publish(self, ident: int) -> None:
        """A state was written."""
        self.pending_node(ident).pending = False

    def discard(self, ident: int) -> Freed:
        """A state is not worth keeping; nor is its node, if nothing needs it."""
        freed, node = Freed(), self.pending_node(ident)
        place, lost = self.place_of(ident), node.lost_state
        node.pending = False
        if self.below(place) or self.kv_locked(place):
            self.take_state(place, freed)
            node.lost_state = lost
        else:
            self.delete_upwards(place, freed)
        return freed

    def pending_node(self, ident: int) -> Node:
        """The node, if its state is still to be written."""
        node = self.nodes[self.place_of(ident)]
        if not node.pending:
            raise Refused({stemcache.InvalidArgumentError})
        return node

    def evict(self, tokens: int, states: int) -> Freed:
        """Tokens first, then states."""
        freed = Freed()
        while len(freed.kv) < tokens:
            leaves = (node for node in self.kv_order if not self.below(node) and not self.kv_locked(node))
            if (leaf := next(leaves, None)) is None:
                break
            self.delete_upwards(leaf, freed)
        before = len(freed.states)
        while len(freed.states) < before + states:
            node = next((node for node in self.state_order if not self.state_locked(node)), None)
            if node is None:
                break
            if self.below(node) or self.kv_locked(node):
                self.take_state(node, freed)
            else:
                self.delete_upwards(node, freed)
        return freed

    def delete_upwards(self, node: Place, freed: Freed) -> None:
        """Deletes a leaf, and the childless unlocked tombstones above."""
        above = self.prefixes(node, self.nodes)[:-1]
        self.delete(node, freed)
        while above:
            last = above.pop()
            if self.below(last) or self.kv_locked(last) or self.nodes[last].state is not None:
                break
            self.delete(last, freed)

    def drop_namespace(self, namespace: str | None) -> Freed:
        """Everything unlocked in it."""
        freed = Freed()
        for node in sorted(self.below((namespace, ())), key=lambda node: -len(node[1])):
            if not self.kv_locked(node):
                self.delete(node, freed)
            elif not self.state_locked(node):
                self.take_state(node, freed)
        return freed

    def reset(self) -> Freed:
        """Everything."""
        freed = Freed()
        for node in sorted(self.nodes, key=lambda node: -len(node[1])):
            self.delete(node, freed)
        self.life += 1
        return freed

    def sizes(self) -> dict[str, int]:
        """What the properties of the index must say."""
        tokens = {node: len(self.edge(node)) * self.page_size for node in self.nodes}
        protected = sum(size for node, size in tokens.items() if self.kv_locked(node))
        protected_states = sum(self.state_locked(node) for node in self.state_order)
        return {
            "total_tokens": sum(tokens.values()),
            "total_states": len(self.state_order),
            "protected_tokens": protected,
            "protected_states": protected_states,
            "evictable_tokens": sum(tokens.values()) - protected,
            "evictable_states": len(self.state_order) - protected_states,
            "node_count": len(self.nodes),
        }
