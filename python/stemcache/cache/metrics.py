"""`stats()` for Prometheus. Numbers are read when they are scraped; serving pays nothing in between."""

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError("metrics=True needs prometheus-client: pip install stemcache[metrics]") from error

from stemcache.errors import InvalidArgumentError

if TYPE_CHECKING:
    from stemcache.cache.hybrid import HybridRadixCache

_SHORT = ("namespace", "limit", "state_evicted", "no_state", "miss")
# Counters without a label: their name here, in `stats()`, and what they say.
_PLAIN = (
    ("matched_tokens", "matched_tokens", "Tokens that requests did not have to compute"),
    ("kv_only_tokens", "kv_only_tokens", "Tokens whose KV was there, but no state: hits lost for want of a checkpoint"),
    ("inserts", "inserts", "Sequences given to the tree"),
    ("stored_tokens", "stored_tokens", "Tokens whose KV the tree took"),
    ("duplicate_tokens", "duplicate_tokens", "Tokens that were computed though the tree had them"),
    ("stored_states", "stored_states", "States that the tree took"),
    ("duplicate_states", "duplicate_states", "States that the tree had already"),
    ("splits", "splits", "Edges that were cut"),
    ("tombstoned_states", "tombstoned_states", "States evicted from prefixes whose KV stayed"),
)
_GAUGES = (
    ("live_requests", "Requests that hold anything"),
    ("running_requests", "Requests that hold a row"),
    ("locks_held", "Locks on the tree"),
)


def show(cache: "HybridRadixCache", registry: CollectorRegistry | None = None) -> None:
    """Shows a cache's numbers in a registry, as long as the cache lives.

    Args:
        cache: whose numbers.
        registry: where to. None: the default one of prometheus-client.

    Raises:
        InvalidArgumentError: the registry shows another cache.
    """
    registry = REGISTRY if registry is None else registry
    collector = CacheCollector(cache)
    try:
        registry.register(collector)
    except ValueError:
        raise InvalidArgumentError(
            "the registry shows another cache already: give each its own (metrics=CollectorRegistry())"
        ) from None
    weakref.finalize(cache, registry.unregister, collector)


class CacheCollector(Collector):
    """Reads a cache when it is scraped, and keeps it alive no longer than others do."""

    def __init__(self, cache: "HybridRadixCache") -> None:
        self._cache = weakref.ref(cache)

    def describe(self) -> Iterator[Metric]:
        """Their names, by which a registry knows one that is shown already."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        cache = self._cache()
        if cache is not None:
            yield from _families(cache.stats())


def _families(stats: Mapping[str, int]) -> Iterator[Metric]:
    short = {reason: stats[f"short_by_{reason}"] for reason in _SHORT}
    hits = {"hit": stats["matches"] - sum(short.values()), **short}
    yield _labelled("match", "Matches, by why they were shorter than the key (hit: they were not)", "reason", hits)
    for name, key, text in _PLAIN:
        yield CounterMetricFamily(f"stemcache_{name}", text, value=stats[key])
    for what in ("tokens", "states"):
        causes = _prefixed(stats, f"evicted_{what}_")
        yield _labelled(f"evicted_{what}", f"Cached {what} that were dropped, by cause", "cause", causes)
    skipped = _prefixed(stats, "skipped_")
    yield _labelled("skipped_states", "States that were not cached, by reason", "reason", skipped)
    for name, text in _GAUGES:
        yield GaugeMetricFamily(f"stemcache_{name}", text, value=stats[name])
    yield _levels(stats)


def _labelled(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"stemcache_{name}", text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family


def _levels(stats: Mapping[str, int]) -> Metric:
    """Slots of each pool, by where they are; `in_use` is what requests and copies hold."""
    family = GaugeMetricFamily("stemcache_pool_slots", "Slots of a pool", labels=["pool", "state"])
    for pool in ("kv", "state", "checkpoint"):
        if f"{pool}_total" not in stats:
            continue
        levels = {state: stats[f"{pool}_{state}"] for state in ("available", "evictable", "protected")}
        levels["in_use"] = stats[f"{pool}_total"] - sum(levels.values())
        for state, size in levels.items():
            family.add_metric([pool, state], size)
    return family


def _prefixed(stats: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): count for name, count in stats.items() if name.startswith(prefix)}
