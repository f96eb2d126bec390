"""What a replay is asked to do, checked once, and the sizes of its pools."""

from dataclasses import asdict, dataclass, field
from typing import Any

from stemcache.replay.checkpoints import Checkpoints
from stemcache.replay.errors import SettingsError
from stemcache.replay.ideal import Ideal
from stemcache.replay.trace import Trace

# As RadixIndex: the grid of branching points is the smallest multiple of the page that is at least this.
_LEAST_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a replay.

    Attributes:
        page_size: tokens in a page.
        chunk: tokens in a prefill chunk, and the grid of branching points. 0: the smallest multiple of the page that is
            at least 64.
        kv_tokens: slots of the KV pool; None for as many as it takes never to evict.
        states: slots of the state pool; None likewise.
        policy: which entry is evicted first.
        concurrency: requests in flight.
        outputs: decode the outputs, too.
        checkpoints: where states are kept.

    Raises:
        SettingsError: a size below 1, a chunk or step that is not whole pages, no mode at all.
    """

    page_size: int = 1
    chunk: int = 0
    kv_tokens: int | None = None
    states: int | None = None
    policy: str = "lru"
    concurrency: int = 1
    outputs: bool = True
    checkpoints: Checkpoints = field(default_factory=lambda: Checkpoints(ends=True, branches=True))

    def __post_init__(self) -> None:
        """Checks everything that does not need the trace."""
        self._check_sizes()
        if not self.chunk:
            object.__setattr__(self, "chunk", -(-_LEAST_CHUNK // self.page_size) * self.page_size)
        self._check_grid("--chunk", self.chunk)
        self._check_grid("the step of --checkpoint every:N", self.checkpoints.every)
        if not str(self.checkpoints):
            raise SettingsError("--checkpoint names no mode, and without a state nothing is ever cached")

    def pages(self, tokens: int) -> int:
        """So many tokens, rounded up to whole pages."""
        return -(-tokens // self.page_size) * self.page_size

    def to_json(self) -> dict[str, Any]:
        """The settings as plain values."""
        return {**asdict(self), "checkpoints": str(self.checkpoints)}

    def _check_sizes(self) -> None:
        sizes = {"--page-size": self.page_size, "--concurrency": self.concurrency, "--states": self.states}
        for name, size in {**sizes, "--kv-tokens": self.kv_tokens}.items():
            if size is not None and size < 1:
                raise SettingsError(f"{name} must be at least 1, not {size}")
        if self.kv_tokens is not None and self.kv_tokens < self.page_size:
            raise SettingsError(f"--kv-tokens {self.kv_tokens} is less than a page of {self.page_size}")

    def _check_grid(self, name: str, size: int) -> None:
        if size < 0 or size % self.page_size:
            raise SettingsError(f"{name} must be a multiple of the page size {self.page_size}, not {size}")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Slots of the two pools."""

    kv: int
    states: int


def sizes_of(trace: Trace, settings: Settings, ideal: Ideal) -> Sizes:
    """The pools asked for (whole pages), or pools so large that nothing is ever evicted."""
    kv = settings.kv_tokens or _enough_tokens(trace, settings, ideal)
    return Sizes(kv // settings.page_size * settings.page_size, settings.states or _enough_states(trace, settings))


def _lengths(trace: Trace, settings: Settings) -> list[int]:
    return [r.total_length if settings.outputs else r.input_length for r in trace.requests]


def _enough_tokens(trace: Trace, settings: Settings, ideal: Ideal) -> int:
    """The lesser of two bounds: every request apart, or every distinct block and what is in flight."""
    needs = [settings.pages(length) for length in _lengths(trace, settings)]
    if trace.block % settings.page_size:
        return sum(needs)
    return min(sum(needs), settings.pages(ideal.distinct_tokens) + settings.concurrency * max(needs))


def _enough_states(trace: Trace, settings: Settings) -> int:
    """Every state that may ever be kept, and for each request in flight its own and one on its way into the tree."""
    kept = sum(settings.checkpoints.most(length) for length in _lengths(trace, settings))
    return kept + 2 * min(settings.concurrency, len(trace.requests))
