"""The conservation law over everything: each slot of each pool is in exactly one place."""

from collections.abc import Collection, Iterable

from stemcache._core import KvAllocator, PagedKvAllocator, RadixIndex, StateAllocator
from stemcache.cache.request import Request
from stemcache.cache.slots import StateSlots
from stemcache.errors import InvariantError
from stemcache.pools.hybrid import HybridPools


def check(
    index: RadixIndex, pools: HybridPools, live: Iterable[Request], running: StateSlots, cached: StateSlots
) -> None:
    """Compares what the allocators have out with what the tree, the requests and the copies hold.

    Raises:
        InvariantError: with every pool that does not add up.
    """
    requests = list(live)
    states = [slot for request in requests for slot in request.state_slots()]
    in_tree = index.all_state_slots().tolist()
    problems = _compare("KV", pools.kv_allocator, index.all_slots().tolist(), _own_kv(pools, requests), ())
    if cached is running:
        problems += _compare("state", pools.state_allocator, in_tree, states, running.waiting)
    else:
        problems += _compare("state", pools.state_allocator, (), states, running.waiting)
        problems += _compare("checkpoint", cached.allocator, in_tree, (), cached.waiting)
    if problems:
        raise InvariantError("\n".join(problems))


def _own_kv(pools: HybridPools, requests: Iterable[Request]) -> list[int]:
    own: list[int] = []
    for request in requests:
        if request.req_pool_idx is not None:
            own += pools.rows.read(request.req_pool_idx, request.cache_protected_len, request.kv_allocated_len).tolist()
    return own


def _compare(
    kind: str,
    allocator: KvAllocator | PagedKvAllocator | StateAllocator,
    tree: Collection[int],
    requests: Collection[int],
    copies: Collection[int],
) -> list[str]:
    audit = allocator.audit()
    out = {slot for slots in audit.owners.values() for slot in slots.tolist()}
    held = [*tree, *requests, *copies]
    problems = [f"{kind}: {problem}" for problem in audit.problems]
    if len(set(held)) != len(held):
        twice = sorted({slot for slot in held if held.count(slot) > 1})
        problems.append(f"{kind} slots {twice} are in two places")
    if lost := sorted(out - set(held)):
        problems.append(f"{kind} slots {lost} are handed out, but nobody holds them")
    if stolen := sorted(set(held) - out):
        problems.append(f"{kind} slots {stolen} are held, but free")
    return problems
