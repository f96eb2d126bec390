"""`stemcache replay`: arguments in, tables and files out."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stemcache.replay.checkpoints import parse_checkpoints
from stemcache.replay.errors import ReplayError, SettingsError
from stemcache.replay.figures import Result
from stemcache.replay.files import check_writable, write_whole
from stemcache.replay.pictures import check_matplotlib
from stemcache.replay.report import render_report
from stemcache.replay.run import replay
from stemcache.replay.settings import Settings
from stemcache.replay.table import render, verdict
from stemcache.replay.trace import Trace, read_trace
from stemcache.replay.workloads import WORKLOADS, make_workload

_REQUESTS = 2000
# Moving the bar costs more than serving a request.
_BAR_STEP = 50

_Size = Annotated[int | None, typer.Option(min=1, show_default=False)]
_FROM, _POOLS, _ENGINE, _OUT = "What to replay", "Memory", "The engine", "Results"


def replay_command(  # noqa: PLR0913 - one argument an option
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[TRACE]", help="A block-hash trace, plain or gzipped.", show_default=False),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(help=f"Without a trace: {', '.join(WORKLOADS)}.", show_default=False, rich_help_panel=_FROM),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Length of the workload. [default: {_REQUESTS}]",
            show_default=False,
            rich_help_panel=_FROM,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the workload.", rich_help_panel=_FROM)] = 1,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Only the first so many requests.", show_default=False, rich_help_panel=_FROM),
    ] = None,
    block: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens in a block of the trace. [default: guessed]",
            show_default=False,
            rich_help_panel=_FROM,
        ),
    ] = None,
    no_outputs: Annotated[
        bool,
        typer.Option("--no-outputs", help="Prefill only: outputs are not decoded.", rich_help_panel=_FROM),
    ] = False,
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Slots of the KV pool. [default: so many that nothing is evicted]",
            show_default=False,
            rich_help_panel=_POOLS,
        ),
    ] = None,
    states: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Slots of the state pool. [default: so many that nothing is evicted]",
            show_default=False,
            rich_help_panel=_POOLS,
        ),
    ] = None,
    policy: Annotated[str, typer.Option(help="Who is evicted first.", rich_help_panel=_POOLS)] = "lru",
    page_size: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in a page. [default: the block]", show_default=False, rich_help_panel=_ENGINE),
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens in a prefill chunk, and the grid of branch points; whole pages. "
            "[default: the smallest number of whole pages from 64 up]",
            show_default=False,
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    checkpoint: Annotated[
        str,
        typer.Option(metavar="MODES", help="Where states are kept: see above.", rich_help_panel=_ENGINE),
    ] = "ends,branches",
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.", rich_help_panel=_ENGINE)] = 1,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="All figures and settings.",
            show_default=False,
            rich_help_panel=_OUT,
        ),
    ] = None,
    report_file: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE.html",
            help="Tables and pictures over time in one file. Needs matplotlib: pip install 'stemcache[report]'.",
            show_default=False,
            rich_help_panel=_OUT,
        ),
    ] = None,
) -> None:
    """Runs a serving workload through the real index and the real slot allocators, and says what the cache was worth.

    Each request lives its whole life, only without a model: match, lock, allocate (evicting what is short), prefill in
    chunks, decode, insert, unlock. At the end every slot must be accounted for.

    **Where states are kept** decides what can be hit, for a prefix is usable only where a recurrent state was kept.
    --checkpoint takes one or several of

    * `ends`: at the end of each request, floored to whole pages. (The replay lets the engine stop there; a real one
      that keeps only its running state has it there only if it does the same.)

    * `branches`: where an earlier request had the KV, but no state, so that this one leaves it for the next.

    * `every:N`: at each multiple of N tokens, whole pages.

    **Pages.** A trace knows nothing finer than its blocks: the last, partial block of a request and the block it became
    a turn later have different ids, hence different tokens. With pages smaller than the block, a state at the end of a
    request mostly lies inside such a block, where no later request can find it.

    **Examples**

    * `stemcache replay --workload chat`

    * `stemcache replay trace.jsonl.gz --no-outputs --checkpoint ends,every:512`

    * `stemcache replay trace.jsonl --kv-tokens 500000 --states 400 --concurrency 32 --report replay.html`

    Exit code 0: sound. 1: a slot is lost or an invariant broken. 2: the input cannot be used.
    """
    try:
        _check_outputs(json_file, report_file)
        trace = _load(path, workload, requests, seed, limit, block)
        settings = Settings(
            page_size=page_size or trace.block,
            chunk=chunk or 0,
            kv_tokens=kv_tokens,
            states=states,
            policy=policy,
            concurrency=concurrency,
            outputs=not no_outputs,
            checkpoints=parse_checkpoints(checkpoint),
        )
        result = _run(trace, settings)
        _write(result, json_file, report_file)
    except ReplayError as error:
        typer.echo(f"stemcache replay: {error}", err=True)
        raise typer.Exit(2) from None
    Console().print(render(result))
    typer.echo(verdict(result))
    raise typer.Exit(1 if result.problems else 0)


def _check_outputs(json_file: Path | None, report_file: Path | None) -> None:
    for path in (json_file, report_file):
        if path is not None:
            check_writable(path)
    if report_file is not None:
        check_matplotlib()


def _load(
    path: Path | None,
    workload: str | None,
    requests: int | None,
    seed: int,
    limit: int | None,
    block: int | None,
) -> Trace:
    if (path is None) == (workload is None):
        raise SettingsError("give either a trace or --workload NAME")
    if workload is not None:
        if block is not None:
            raise SettingsError("--block is for traces; a workload has blocks of 16")
        return make_workload(workload, min(requests or _REQUESTS, limit or requests or _REQUESTS), seed)
    if requests is not None:
        raise SettingsError("--requests is for workloads; of a trace, --limit takes the first N requests")
    assert path is not None
    return read_trace(path, block, limit)


def _run(trace: Trace, settings: Settings) -> Result:
    with _bar(len(trace.requests)) as moved:
        return replay(trace, settings, moved)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)

        def moved(done: int) -> None:
            if done % _BAR_STEP == 0 or done == total:
                progress.update(task, completed=done)

        yield moved


def _write(result: Result, json_file: Path | None, report_file: Path | None) -> None:
    """Makes all texts before it writes the first file."""
    texts = []
    if json_file is not None:
        texts.append((json_file, json.dumps(result.to_json(), indent=2) + "\n"))
    if report_file is not None:
        texts.append((report_file, render_report(result)))
    for path, text in texts:
        write_whole(path, text)
