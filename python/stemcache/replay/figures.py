"""What a replay counts: totals, and one row a request for the pictures."""

from dataclasses import asdict, dataclass, field
from typing import Any

from stemcache import RadixIndex, Stats
from stemcache.replay.clock import Operation
from stemcache.replay.pools import Account, Evictions, Pools
from stemcache.replay.record import Request
from stemcache.replay.settings import Settings, Sizes
from stemcache.replay.trace import Trace


@dataclass(slots=True)
class Counts:
    """Totals over all requests, in tokens where nothing else is said.

    Attributes:
        requests: requests read, refused ones included.
        input_tokens: the length of all inputs.
        served: of those, what the cache served.
        ideal: what a cache of infinite memory would have served, in whole blocks of the trace.
        kv_only: hits lost for want of a state: the KV was there.
        refused: requests that can never fit into the KV pool.
        hits_given_up: requests that had to start from nothing because their own hit held the last state slot.
        checkpoints_kept: states that the tree took.
        checkpoints_skipped: states not kept because no slot could be had.
        prefill_steps: forward passes of the prefill, the extra stops at checkpoints included.
    """

    requests: int = 0
    input_tokens: int = 0
    served: int = 0
    ideal: int = 0
    kv_only: int = 0
    refused: int = 0
    hits_given_up: int = 0
    checkpoints_kept: int = 0
    checkpoints_skipped: int = 0
    prefill_steps: int = 0

    def share(self, tokens: int) -> float:
        """So many tokens, as percent of all input tokens."""
        return 100.0 * tokens / self.input_tokens if self.input_tokens else 0.0


@dataclass(slots=True)
class Series:
    """One value a request, in order of arrival; evictions are running totals."""

    seconds: list[float] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=list)
    served: list[int] = field(default_factory=list)
    ideal: list[int] = field(default_factory=list)
    kv_used: list[int] = field(default_factory=list)
    kv_tree: list[int] = field(default_factory=list)
    states_used: list[int] = field(default_factory=list)
    states_tree: list[int] = field(default_factory=list)
    kv_evicted: list[int] = field(default_factory=list)
    states_evicted: list[int] = field(default_factory=list)

    def add(self, request: Request, served: int, ideal: int, pools: Pools, index: RadixIndex) -> None:
        """Adds a row for a request that has just been prefilled."""
        self.seconds.append(request.timestamp / 1000)
        self.input_tokens.append(request.input_length)
        self.served.append(served)
        self.ideal.append(ideal)
        self.kv_used.append(pools.kv_used)
        self.kv_tree.append(index.total_tokens)
        self.states_used.append(pools.states_used)
        self.states_tree.append(index.total_states)
        self.kv_evicted.append(pools.evictions.kv_tokens)
        self.states_evicted.append(pools.evictions.states)


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that a finished replay has to say.

    Attributes:
        broken: the invariants that the index found broken at the end; None when all hold.
        accounts: KV and states: where every slot is.
    """

    trace: Trace
    settings: Settings
    sizes: Sizes
    counts: Counts
    evictions: Evictions
    peak_kv: int
    peak_states: int
    operations: dict[str, Operation]
    stats: Stats
    series: Series
    seconds: float
    broken: str | None
    accounts: tuple[Account, Account]

    @property
    def problems(self) -> list[str]:
        """What is wrong with the cache after the replay; empty when it is sound."""
        lost = [problem for account in self.accounts for problem in account.problems]
        locks = [f"{self.stats.locks_held} locks are still held"] if self.stats.locks_held else []
        return ([self.broken] if self.broken else []) + locks + lost

    @property
    def operations_a_second(self) -> float:
        """Calls into the index and the allocators, by the time spent in them."""
        spent = sum(operation.nanoseconds for operation in self.operations.values())
        return 1e9 * sum(operation.calls for operation in self.operations.values()) / spent if spent else 0.0

    def microseconds(self, operation: Operation) -> float:
        """Time of an operation for each request."""
        return operation.nanoseconds / 1000 / self.counts.requests

    def to_json(self) -> dict[str, Any]:
        """All figures and settings as plain values."""
        return {
            "trace": {
                "name": self.trace.name,
                "block": self.trace.block,
                "requests": len(self.trace.requests),
            },
            "settings": {
                **self.settings.to_json(),
                "kv_slots": self.sizes.kv,
                "state_slots": self.sizes.states,
            },
            "figures": self._figures(),
            "operations": {name: self._operation(operation) for name, operation in self.operations.items()},
            "index": self.stats.as_dict(),
            "accounts": [asdict(account) for account in self.accounts],
            "problems": self.problems,
        }

    def _figures(self) -> dict[str, float]:
        counts = self.counts
        return {
            **asdict(counts),
            "served_percent": counts.share(counts.served),
            "ideal_percent": counts.share(counts.ideal),
            "evicted_kv_tokens": self.evictions.kv_tokens,
            "evicted_states": self.evictions.states,
            "evicted_states_whose_kv_stayed": self.stats.tombstoned_states,
            "peak_kv": self.peak_kv,
            "peak_states": self.peak_states,
            "seconds": self.seconds,
            "operations_a_second": self.operations_a_second,
        }

    def _operation(self, operation: Operation) -> dict[str, float]:
        return {
            "calls": operation.calls,
            "microseconds": operation.nanoseconds / 1000,
            "microseconds_a_request": self.microseconds(operation),
        }
