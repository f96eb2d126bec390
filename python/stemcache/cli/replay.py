"""`stemcache replay`: arguments in, tables and files out."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stemcache.cli import options
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
from stemcache.replay.workloads import make_workload

# Moving the bar costs more than serving a request.
_BAR_STEP = 50


def replay_command(  # noqa: PLR0913 - one argument an option
    path: options.TracePath = None,
    *,
    workload: options.Workload = None,
    requests: options.Requests = None,
    seed: options.Seed = 1,
    limit: options.Limit = None,
    block: options.Block = None,
    no_outputs: options.NoOutputs = False,
    kv_tokens: options.KvTokens = None,
    states: options.States = None,
    policy: options.Policy = "lru",
    page_size: options.PageSize = None,
    chunk: options.Chunk = None,
    checkpoint: options.Checkpoint = "ends,branches",
    concurrency: options.Concurrency = 1,
    json_file: options.JsonFile = None,
    report_file: options.ReportFile = None,
) -> None:
    """Runs a serving workload through the real index and the real slot allocators, and says what the cache was worth.

    Each request lives its whole life, only without a model: match, lock, allocate (evicting what is short), prefill in
    chunks, decode, insert, unlock. At the end every slot must be accounted for.

    **Where states are kept** decides what can be hit, for a prefix is usable only where a recurrent state was kept.
    --checkpoint takes one or several of

    * `ends`: at the end of each request, floored to whole pages. (The replay lets the engine stop there; a real one
      that keeps only its running state has it there only if it does the same.)

    * `branches`: where an earlier request had the KV, but no state, so that this one leaves it for the next.
      (Alone it keeps nothing, as KV enters the tree only with a state: combine it.)

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
    with _errors():
        _check_outputs(json_file, report_file)
        checkpoints = parse_checkpoints(checkpoint)
        trace = _load(path, workload, requests, seed, limit, block)
        settings = Settings(
            page_size=page_size or trace.block,
            chunk=chunk or 0,
            kv_tokens=kv_tokens,
            states=states,
            policy=policy,
            concurrency=concurrency,
            outputs=not no_outputs,
            checkpoints=checkpoints,
        )
        result = _run(trace, settings)
        _write(result, json_file, report_file)
    Console().print(render(result))
    typer.echo(verdict(result))
    raise typer.Exit(1 if result.problems else 0)


@contextmanager
def _errors() -> Iterator[None]:
    """Says what is wrong with the input, and exits with 2."""
    try:
        yield
    except ReplayError as error:
        typer.echo(f"stemcache replay: {error}", err=True)
        raise typer.Exit(2) from None


def _check_outputs(json_file: Path | None, report_file: Path | None) -> None:
    for path in (json_file, report_file):
        if path is not None:
            check_writable(path)
    if report_file is not None:
        check_matplotlib()


def _load(
    path: Path | None, workload: str | None, requests: int | None, seed: int, limit: int | None, block: int | None
) -> Trace:
    if path is not None and workload is None:
        _refuse(requests, "--requests is for workloads; --limit takes the first requests of a trace")
        return read_trace(path, block, limit)
    if workload is not None and path is None:
        _refuse(block, "--block is for traces; a workload has blocks of 16")
        length = requests or options.REQUESTS
        return make_workload(workload, min(length, limit or length), seed)
    raise SettingsError("give either a trace or --workload NAME")


def _refuse(option: int | None, problem: str) -> None:
    if option is not None:
        raise SettingsError(problem)


def _run(trace: Trace, settings: Settings) -> Result:
    with _bar(len(trace.requests)) as moved:
        return replay(trace, settings, moved)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
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
