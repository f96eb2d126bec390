"""The options of `stemcache replay`: names, checks and help."""

from pathlib import Path
from typing import Annotated, Any

import typer

from stemcache.replay.workloads import WORKLOADS

REQUESTS = 2000

_FROM, _MEMORY, _ENGINE, _RESULTS = "What to replay", "Memory", "The engine", "Results"


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, show_default=False, rich_help_panel=panel, **more)


TracePath = Annotated[
    Path | None,
    typer.Argument(metavar="[TRACE]", help="A block-hash trace, plain or gzipped.", show_default=False),
]
Workload = Annotated[str | None, _option(_FROM, f"Instead of a trace: {', '.join(WORKLOADS)}.", metavar="NAME")]
Requests = Annotated[int | None, _option(_FROM, f"Length of the workload. [default: {REQUESTS}]", min=1)]
Seed = Annotated[int, _option(_FROM, "Seed of the workload. [default: 1]")]
Limit = Annotated[int | None, _option(_FROM, "Only the first so many requests.", min=1)]
Block = Annotated[int | None, _option(_FROM, "Tokens in a block of the trace. [default: guessed]", min=1)]
NoOutputs = Annotated[bool, _option(_FROM, "Prefill only: outputs are not decoded.", "--no-outputs")]

_ENOUGH = "[default: so many that nothing is evicted]"
KvTokens = Annotated[int | None, _option(_MEMORY, f"Slots of the KV pool. {_ENOUGH}", min=1)]
States = Annotated[int | None, _option(_MEMORY, f"Slots of the state pool. {_ENOUGH}", min=1)]
Policy = Annotated[str, _option(_MEMORY, "What is evicted first. [default: lru]")]

_CHUNK = (
    "Tokens in a prefill chunk, and the grid of branch points: whole pages. [default: the fewest from 64 tokens up]"
)
PageSize = Annotated[int | None, _option(_ENGINE, "Tokens in a page. [default: the block]", min=1)]
Chunk = Annotated[int | None, _option(_ENGINE, _CHUNK, min=1)]
Checkpoint = Annotated[
    str, _option(_ENGINE, "Where states are kept: see above. [default: ends,branches]", metavar="MODES")
]
Concurrency = Annotated[int, _option(_ENGINE, "Requests in flight. [default: 1]", min=1)]

_REPORT = "Tables and pictures over time in one file. Needs matplotlib: pip install 'stemcache[report]'."
JsonFile = Annotated[Path | None, _option(_RESULTS, "All figures and settings.", "--json", metavar="FILE")]
ReportFile = Annotated[Path | None, _option(_RESULTS, _REPORT, "--report", metavar="FILE.html")]
