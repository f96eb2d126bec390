"""stemcache: the prefix cache for hybrid (attention + recurrent) language models.

`RadixIndex` knows which KV slots and which recurrent states are kept for which token prefixes; the allocators know
who owns each slot. Neither needs torch. `HybridRadixCache` serves requests with them over `HybridPools`, which hold the
bytes; these are imported when they are first asked for, and need `pip install stemcache[torch]`.
"""

import importlib
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from stemcache.cache.hybrid import HybridRadixCache
    from stemcache.cache.request import Request
    from stemcache.pools import HybridPools, KvLayout, StateLayout

# What needs torch, and where it is.
_LAZY = {
    "HybridPools": "stemcache.pools",
    "HybridRadixCache": "stemcache.cache.hybrid",
    "KvLayout": "stemcache.pools",
    "Request": "stemcache.cache.request",
    "StateLayout": "stemcache.pools",
}

__all__ = [
    "Advance",
    "AllBlocksCleared",
    "Audit",
    "BlockRemoved",
    "BlockStored",
    "CacheError",
    "Evicted",
    "HybridPools",
    "HybridRadixCache",
    "Insert",
    "InvalidArgumentError",
    "InvariantError",
    "KvAllocator",
    "KvLayout",
    "Lock",
    "Match",
    "NotLockedError",
    "OutOfSlotsError",
    "PagedKvAllocator",
    "RadixIndex",
    "Request",
    "SlotOwnershipError",
    "StaleNodeError",
    "StateAllocator",
    "StateLayout",
    "StateRemoved",
    "StateStored",
    "Stats",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Imports what needs torch when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """All names, those not imported yet as well."""
    return sorted({*globals(), *_LAZY})
