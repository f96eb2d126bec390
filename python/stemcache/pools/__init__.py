"""The pools: where the bytes of KV and states lie, in torch tensors on any device."""

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("stemcache.pools needs torch: pip install stemcache[torch]") from error

from stemcache.pools.checkpoint import CheckpointPool
from stemcache.pools.describe import ModelLayouts, is_transposed, layouts_from_cache, layouts_from_config
from stemcache.pools.hybrid import HybridPools
from stemcache.pools.kv import KvPool
from stemcache.pools.layout import ConvWindow, KvLayout, StateLayout
from stemcache.pools.rows import Cursors, RequestRows
from stemcache.pools.state import StateCopy, StatePool, StateTensors

__all__ = [
    "CheckpointPool",
    "ConvWindow",
    "Cursors",
    "HybridPools",
    "KvLayout",
    "KvPool",
    "ModelLayouts",
    "RequestRows",
    "StateCopy",
    "StateLayout",
    "StatePool",
    "StateTensors",
    "is_transposed",
    "layouts_from_cache",
    "layouts_from_config",
]
