"""The conservation law over everything: each slot of each pool is in exactly one place."""

from collections import Counter
from collections.abc import Collection

from stemcache._core import KvAllocator, PagedKvAllocator, StateAllocator
from stemcache.cache.resources import Resources
from stemcache.cache.running import RunningRequests
from stemcache.errors import InvariantError


def check(resources: Resources, requests: RunningRequests) -> None:
    """Compares what the allocators have out with what the tree, the requests and the copies hold.

    Raises:
        InvariantError: with every pool that does not add up.
    """
    pools, index = resources.pools, resources.index
    states = [slot for req in requests.live for slot in req.state_slots()]
    in_tree = index.all_state_slots().tolist()
    problems = _compare("KV", pools.kv_allocator, index.all_slots().tolist(), _own_kv(requests), ())
    if resources.apart:
        problems += _compare("state", pools.state_allocator, (), states, resources.running.waiting)
        problems += _compare("checkpoint", resources.cached.allocator, in_tree, (), resources.cached.waiting)
    else:
        problems += _compare("state", pools.state_allocator, in_tree, states, resources.running.waiting)
    rows = pools.rows.requests - pools.rows.available
    running = sum(req.req_pool_idx is not None for req in requests.live)
    if rows != running:
        problems.append(f"{rows} rows are handed out, and {running} requests run")
    if problems:
        raise InvariantError("\n".join(problems))


def _own_kv(requests: RunningRequests) -> list[int]:
    running = [req for req in requests.live if req.req_pool_idx is not None]
    return [slot for req in running for slot in requests.own_kv(req).tolist()]


def _compare(
    kind: str,
    allocator: KvAllocator | PagedKvAllocator | StateAllocator,
    tree: Collection[int],
    requests: Collection[int],
    copies: Collection[int],
) -> list[str]:
    audit = allocator.audit()
    out = {slot for slots in audit.owners.values() for slot in slots.tolist()}
    held = Counter([*tree, *requests, *copies])
    problems = [f"{kind}: {problem}" for problem in audit.problems]
    if twice := sorted(slot for slot, times in held.items() if times > 1):
        problems.append(f"{kind} slots {twice} are in two places")
    if lost := sorted(out - held.keys()):
        problems.append(f"{kind} slots {lost} are handed out, but nobody holds them")
    if stolen := sorted(held.keys() - out):
        problems.append(f"{kind} slots {stolen} are held, but free")
    return problems
