"""The pools: where the bytes of KV and states lie, in torch tensors on any device."""

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("stemcache.pools needs torch: pip install stemcache[torch]") from error
