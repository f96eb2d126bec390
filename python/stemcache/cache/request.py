"""What the cache keeps of one request while it lives. The names are those that serving code uses."""

from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from stemcache._core import Lock
from stemcache.errors import InvalidArgumentError

Int64Array: TypeAlias = npt.NDArray[np.int64]
SlotArray: TypeAlias = npt.NDArray[np.integer[Any]]


def no_slots() -> SlotArray:
    """An empty row."""
    return np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One request. The engine fills `origin_input_ids` and `output_ids`; the cache the rest, and erases it at the end.

    The KV slots of its tokens, in its row:

        0 ......... cache_protected_len ......... kv_committed_len ......... kv_allocated_len
        the tree's, locked | the request's own, written     | its own, to be written

    Attributes:
        origin_input_ids: int64 [n], the prompt.
        extra_key: the namespace: LoRA id, tenant, cache salt.
        output_ids: tokens decoded so far.
        req_pool_idx: its row; None before it runs and after it ended.
        kv_allocated_len: tokens that have a KV slot.
        kv_committed_len: tokens whose KV the forward passes launched so far write.
        prefix_indices: the KV slots of the committed tokens; a view of the row, on the host.
        cache_protected_len: tokens at the front whose KV is the tree's.
        last_node: the node at their end; None if there are none.
        lock: what protects them.
        mamba_pool_idx: the slot of its running state.
        mamba_ping_pong_track_buffer: the slots that the engine writes states at chunk boundaries into.
        mamba_next_track_idx: which of them is written next (lazy: which was written last).
        mamba_last_track_seqlen: tokens consumed by the state tracked last, until it is cached.
        mamba_writing_track_idx: which track slot the engine was told to write, until it reports that done.
        mamba_branching_seqlen: where a checkpoint would help the next request with this prefix.
        mamba_cow_src_index: the cached state that will be copied into the running slot, until that is done.
        mamba_needs_clear: the running slot has to be zeroed before the first forward pass.
    """

    origin_input_ids: Int64Array
    extra_key: str | None = None
    output_ids: list[int] = field(default_factory=list)
    req_pool_idx: int | None = None
    kv_allocated_len: int = 0
    kv_committed_len: int = 0
    prefix_indices: SlotArray = field(default_factory=no_slots)
    cache_protected_len: int = 0
    last_node: int | None = None
    lock: Lock | None = None
    mamba_pool_idx: int | None = None
    mamba_ping_pong_track_buffer: list[int | None] = field(default_factory=list)
    mamba_next_track_idx: int = 0
    mamba_last_track_seqlen: int | None = None
    mamba_writing_track_idx: int | None = None
    mamba_branching_seqlen: int | None = None
    mamba_cow_src_index: int | None = None
    mamba_needs_clear: bool = False

    def __post_init__(self) -> None:
        """Takes any integers as the prompt."""
        self.origin_input_ids = np.ascontiguousarray(self.origin_input_ids, dtype=np.int64)
        if self.origin_input_ids.ndim != 1:
            raise InvalidArgumentError(f"origin_input_ids has shape {self.origin_input_ids.shape}, not one dimension")

    def __len__(self) -> int:
        """Tokens so far, prompt and output."""
        return len(self.origin_input_ids) + len(self.output_ids)

    def tokens(self, start: int, stop: int) -> Int64Array:
        """Token ids from `start` to `stop`, at the cost of those alone."""
        prompt = len(self.origin_input_ids)
        if stop <= prompt:
            return self.origin_input_ids[start:stop]
        output = np.array(self.output_ids[max(start - prompt, 0) : stop - prompt], dtype=np.int64)
        return output if start >= prompt else np.concatenate([self.origin_input_ids[start:], output])

    def state_slots(self) -> list[int]:
        """Every state slot that it holds."""
        return [slot for slot in (self.mamba_pool_idx, *self.mamba_ping_pong_track_buffer) if slot is not None]

    def forget(self) -> None:
        """Erases all that the cache had noted: nothing here is the request's any more."""
        blank = Request(origin_input_ids=self.origin_input_ids)
        for part in fields(self):
            if part.name not in _ENGINE_FIELDS:
                setattr(self, part.name, getattr(blank, part.name))


_ENGINE_FIELDS = {"origin_input_ids", "extra_key", "output_ids"}
