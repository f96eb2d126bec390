"""Pools of the layouts of a `transformers` model."""

from typing import Any

from stemcache.errors import InvalidArgumentError
from stemcache.integrations.transformers.errors import UnsupportedModelError
from stemcache.integrations.transformers.proof import look, probe
from stemcache.integrations.transformers.runner import Runner
from stemcache.pools import HybridPools, ModelLayouts


def make_pools(
    model: Any, kv_tokens: int = 16384, states: int = 64, *, page_size: int = 1, **options: Any
) -> HybridPools:
    """Pools of the right layouts for a model, on its device.

    Args:
        model: a causal LM with recurrent layers, in evaluation mode. It runs once, on a few tokens.
        kv_tokens: KV slots, whole pages. A sequence that is longer is not cached whole.
        states: slots for running sequences (one each) and, without a checkpoint pool, for cached prefixes.
        page_size: tokens in a page of KV. The end of a sequence is cached only if it is whole pages.
        options: as for `HybridPools`. `checkpoint="int8"` with `checkpoint_states`, for one, keeps more
            prefixes per byte, each with a small error.

    Raises:
        UnsupportedModelError: the model has no recurrent states, or keeps them where nobody sees them.
        InvalidArgumentError: as `HybridPools`.
        OutOfSlotsError: the pools do not fit the device.
    """
    runner = Runner(model)
    layouts = look(runner, probe(runner))[1].layouts
    if layouts.state is None:
        raise UnsupportedModelError("the model has no recurrent states")
    return HybridPools(
        kv_tokens,
        states,
        layout=layouts.state,
        kv_layout=layouts.kv,
        page_size=page_size,
        device=options.pop("device", runner.device),
        **options,
    )


def checked(pools: HybridPools, layouts: ModelLayouts) -> HybridPools:
    """The pools, if they are for these layouts.

    Raises:
        InvalidArgumentError: they are not.
    """
    kv = None if pools.kv is None else pools.kv.layout
    for name, has, needs in (("state", pools.state.layout, layouts.state), ("KV", kv, layouts.kv)):
        if has != needs:
            raise InvalidArgumentError(f"the pools are for another model: their {name} layout is {has}, not {needs}")
    return pools
