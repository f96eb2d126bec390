"""All pools of one model, with the core's allocators for their slots."""

import torch

from stemcache._core import KvAllocator, PagedKvAllocator, StateAllocator
from stemcache.errors import InvalidArgumentError
from stemcache.pools import memory
from stemcache.pools.checkpoint import CheckpointPool
from stemcache.pools.kv import KvPool
from stemcache.pools.layout import KvLayout, StateLayout
from stemcache.pools.rows import RequestRows
from stemcache.pools.state import StatePool


class HybridPools:
    """KV, states, request rows and, if wanted, checkpoints apart from the running states.

    Args:
        kv_tokens: KV slots, a multiple of `page_size`.
        states: state slots, for running requests and, without `checkpoint`, for cached states.
        layout: of a state.
        page_size: tokens in a page of KV.
        kv_layout: of a token's KV; None for a model without attention: slots are counted, and no bytes kept.
        device: where the tensors lie.
        checkpoint: the quantiser of cached states that are kept apart from running ones ("int8"). None: not apart.
        checkpoint_states: how many of them; needed with `checkpoint`, 0 without.
        requests: how many requests run at once.
        max_tokens: of one request. None: `kv_tokens`.
        need_sort: sort freed KV slots before they are handed out again.

    Attributes:
        kv: the KV pool, or None.
        state: the state pool.
        rows: the request rows.
        checkpoints: the checkpoint pool, or None.
        kv_allocator: who owns each KV slot.
        state_allocator: who owns each state slot.
        checkpoint_allocator: who owns each checkpoint slot, or None.

    Raises:
        InvalidArgumentError: a size below 1, KV that is not whole pages, an unknown quantiser, checkpoints half asked
            for.
        OutOfSlotsError: the device's free memory is less than `bytes_needed`. Nothing was allocated.
    """

    def __init__(  # noqa: PLR0913
        self,
        kv_tokens: int,
        states: int,
        *,
        layout: StateLayout,
        page_size: int = 1,
        kv_layout: KvLayout | None = None,
        device: str | torch.device = "cpu",
        checkpoint: str | None = None,
        checkpoint_states: int = 0,
        requests: int = 64,
        max_tokens: int | None = None,
        need_sort: bool = False,
    ) -> None:
        self.page_size = page_size
        self.device = torch.device(device)
        needed = self.bytes_needed(
            kv_tokens,
            states,
            layout=layout,
            page_size=page_size,
            kv_layout=kv_layout,
            checkpoint=checkpoint,
            checkpoint_states=checkpoint_states,
            requests=requests,
            max_tokens=max_tokens,
        )
        memory.require({name: size for name, size in needed.items() if name != "total"}, self.device)
        self.kv_allocator = _kv_allocator(kv_tokens, page_size, need_sort)
        self.state_allocator = StateAllocator(states)
        self.checkpoint_allocator = StateAllocator(checkpoint_states) if checkpoint else None
        self.kv = KvPool(kv_layout, kv_tokens, self.device, page_size) if kv_layout else None
        self.state = StatePool(layout, states, self.device)
        self.rows = RequestRows(requests, max_tokens or kv_tokens, self.device)
        self.checkpoints = (
            CheckpointPool(layout, checkpoint_states, self.device, quantiser=checkpoint) if checkpoint else None
        )

    @staticmethod
    def bytes_needed(
        kv_tokens: int,
        states: int,
        *,
        layout: StateLayout,
        page_size: int = 1,
        kv_layout: KvLayout | None = None,
        checkpoint: str | None = None,
        checkpoint_states: int = 0,
        requests: int = 64,
        max_tokens: int | None = None,
    ) -> dict[str, int]:
        """Bytes that such pools take on the device: "kv", "state", "rows", "checkpoints" and their "total".

        Raises:
            InvalidArgumentError: a size below 1, checkpoints half asked for.
        """
        memory.check_size("kv_tokens", kv_tokens)
        _check_checkpoints(checkpoint, checkpoint_states)
        parts = {
            "kv": KvPool.bytes_needed(kv_layout, kv_tokens, page_size) if kv_layout else 0,
            "state": StatePool.bytes_needed(layout, states),
            "rows": RequestRows.bytes_needed(requests, kv_tokens if max_tokens is None else max_tokens),
            "checkpoints": _checkpoint_bytes(layout, checkpoint, checkpoint_states),
        }
        return {**parts, "total": sum(parts.values())}


def _kv_allocator(kv_tokens: int, page_size: int, need_sort: bool) -> KvAllocator | PagedKvAllocator:
    if page_size == 1:
        return KvAllocator(kv_tokens, need_sort)
    return PagedKvAllocator(kv_tokens, page_size, need_sort)


def _check_checkpoints(checkpoint: str | None, states: int) -> None:
    if memory.check_size("checkpoint_states", states, least=0) and checkpoint is None:
        raise InvalidArgumentError(f"{states} checkpoint_states need a checkpoint quantiser, such as 'int8'")
    if checkpoint is not None and not states:
        raise InvalidArgumentError(f"checkpoint={checkpoint!r} needs at least one of checkpoint_states")


def _checkpoint_bytes(layout: StateLayout, checkpoint: str | None, states: int) -> int:
    return CheckpointPool.bytes_needed(layout, states, quantiser=checkpoint) if checkpoint else 0
