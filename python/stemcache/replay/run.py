"""One replay from beginning to end."""

from collections.abc import Callable

from stemcache import CacheError, InvariantError, RadixIndex
from stemcache.replay.engine import Engine
from stemcache.replay.errors import SettingsError
from stemcache.replay.figures import Result
from stemcache.replay.ideal import Ideal, ideal_of
from stemcache.replay.settings import Settings, Sizes, sizes_of
from stemcache.replay.trace import Trace


def replay(trace: Trace, settings: Settings, progress: Callable[[int], None] = lambda _: None) -> Result:
    """Runs a trace through the index and the allocators, and checks both when it is through.

    Args:
        trace: what to run.
        settings: how.
        progress: is told how many requests are behind, after each.

    Raises:
        SettingsError: pools or an index of these settings cannot be made.
    """
    ideal = ideal_of(trace, outputs=settings.outputs)
    engine = _engine(trace, settings, sizes_of(trace, settings, ideal), ideal)
    engine.run(progress)
    return _result(trace, settings, engine)


def _engine(trace: Trace, settings: Settings, sizes: Sizes, ideal: Ideal) -> Engine:
    try:
        return Engine(trace, settings, sizes, ideal)
    except (CacheError, MemoryError, OverflowError) as error:
        pools = f"an index with {sizes.kv:,} KV slots and {sizes.states:,} state slots cannot be made"
        raise SettingsError(f"{pools} ({error}); see --kv-tokens, --states, --chunk and --policy") from error


def _result(trace: Trace, settings: Settings, engine: Engine) -> Result:
    pools = engine.pools
    return Result(
        trace=trace,
        settings=settings,
        sizes=Sizes(pools.kv.size, pools.states.size),
        counts=engine.counts,
        evictions=pools.evictions,
        peak_kv=pools.peak_kv,
        peak_states=pools.peak_states,
        operations=engine.clock.operations,
        stats=engine.index.stats(),
        series=engine.series,
        seconds=engine.seconds,
        broken=_broken(engine.index),
        accounts=pools.accounts(),
    )


def _broken(index: RadixIndex) -> str | None:
    try:
        _check(index)
    except InvariantError as error:
        return str(error)
    return None


def _check(index: RadixIndex) -> None:
    index.check_invariants()
