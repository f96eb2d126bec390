"""stemcache: the prefix cache for hybrid (attention + recurrent) language models.

`RadixIndex` knows which KV slots and which recurrent states are kept for which token prefixes; the allocators know
who owns each slot. Neither needs torch.
"""

from stemcache._core import (
    Advance,
    AllBlocksCleared,
    Audit,
    BlockRemoved,
    BlockStored,
    Evicted,
    Insert,
    KvAllocator,
    Lock,
    Match,
    PagedKvAllocator,
    RadixIndex,
    StateAllocator,
    StateRemoved,
    StateStored,
    Stats,
    __version__,
)
from stemcache.errors import (
    CacheError,
    InvalidArgumentError,
    InvariantError,
    NotLockedError,
    OutOfSlotsError,
    SlotOwnershipError,
    StaleNodeError,
)

__all__ = [
    "Advance",
    "AllBlocksCleared",
    "Audit",
    "BlockRemoved",
    "BlockStored",
    "CacheError",
    "Evicted",
    "Insert",
    "InvalidArgumentError",
    "InvariantError",
    "KvAllocator",
    "Lock",
    "Match",
    "NotLockedError",
    "OutOfSlotsError",
    "PagedKvAllocator",
    "RadixIndex",
    "SlotOwnershipError",
    "StaleNodeError",
    "StateAllocator",
    "StateRemoved",
    "StateStored",
    "Stats",
    "__version__",
]
