"""The KV pool: K and V of every cached token, one slot each, in all attention layers."""

from typing import Any

import torch

from stemcache.pools import memory
from stemcache.pools.layout import KvLayout


class KvPool:
    """K and V, stacked over the attention layers.

    The rows are those of the core's allocators: `KvAllocator(slots)` hands out 1 to `slots`, `PagedKvAllocator`
    `page_size` to `slots + page_size - 1`; what lies below is the dummy that padded tokens may write to.

    Args:
        layout: shapes and dtype.
        slots: tokens, without the dummies.
        device: where the tensors lie.
        page_size: of the allocator: as many rows are dummies.

    Attributes:
        k: [layers, slots + page_size, k_heads, k_dim].
        v: [layers, slots + page_size, v_heads, v_dim].

    Raises:
        InvalidArgumentError: a size below 1.
        OutOfSlotsError: the device's free memory is less than `bytes_needed`.
    """

    def __init__(self, layout: KvLayout, slots: int, device: str | torch.device = "cpu", page_size: int = 1) -> None:
        self.layout = layout
        self.slots = slots
        self.device = torch.device(device)
        memory.require({"kv": self.bytes_needed(layout, slots, page_size)}, self.device)
        self.rows = slots + page_size
        self.k = self._zeros(layout.k_heads, layout.k_dim)
        self.v = self._zeros(layout.v_heads, layout.v_dim)

    @staticmethod
    def bytes_needed(layout: KvLayout, slots: int, page_size: int = 1) -> int:
        """Bytes that a pool allocates.

        Raises:
            InvalidArgumentError: a size below 1.
        """
        rows = memory.check_size("slots", slots) + memory.check_size("page_size", page_size)
        return layout.bytes_per_token * rows

    def store(self, slots: Any, k: torch.Tensor, v: torch.Tensor) -> None:
        """Writes the KV of n tokens; they are converted to the pool's dtype and device.

        Args:
            slots: [n] on the host, none twice.
            k: [layers, n, k_heads, k_dim].
            v: [layers, n, v_heads, v_dim].

        Raises:
            InvalidArgumentError: a slot that the pool does not have; another shape.
        """
        index = self._index(slots)
        memory.check_shape("k", k, self._shape(self.k, index))
        memory.check_shape("v", v, self._shape(self.v, index))
        memory.put(self.k, index, k)
        memory.put(self.v, index, v)

    def gather(self, slots: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """K [layers, n, k_heads, k_dim] and V [layers, n, v_heads, v_dim] of n slots, as new tensors.

        Raises:
            InvalidArgumentError: a slot that the pool does not have.
        """
        index = self._index(slots)
        return self.k.index_select(1, index), self.v.index_select(1, index)

    def copy_from(self, source: Any, target: Any) -> None:
        """Copies the KV of slots to other slots; all are read before any is written.

        Args:
            source: [n] on the host.
            target: [n] on the host, none twice.

        Raises:
            InvalidArgumentError: a slot that the pool does not have; two lengths.
        """
        memory.copy_slots((self.k, self.v), source, target)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of one attention layer: K [rows, k_heads, k_dim] and V [rows, v_heads, v_dim]."""
        return self.k[index], self.v[index]

    def _index(self, slots: Any) -> torch.Tensor:
        return memory.slot_index(slots, self.rows, self.device)

    def _zeros(self, heads: int, dim: int) -> torch.Tensor:
        return torch.zeros(self.layout.layers, self.rows, heads, dim, dtype=self.layout.dtype, device=self.device)

    @staticmethod
    def _shape(pool: torch.Tensor, index: torch.Tensor) -> tuple[int, ...]:
        return (pool.shape[0], index.numel(), *pool.shape[2:])
