"""`stemcache demo`: builds a model, plays a conversation, prints what the cache saved."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from stemcache.replay.errors import ReplayError
from stemcache.replay.files import check_writable, write_whole
from stemcache.replay.pictures import check_matplotlib

if TYPE_CHECKING:
    from stemcache.demo.run import Show

_REPORT = "The same with pictures in one file. Needs matplotlib: pip install 'stemcache[report]'."
_INT8 = "Keep cached states as int8: less memory, and a small difference."

Model = Annotated[str, typer.Option(help="qwen3-next, bamba or falcon-h1.", metavar="FAMILY")]
Users = Annotated[int, typer.Option(help="Who talk under one system prompt.", min=1)]
Turns = Annotated[int, typer.Option(help="Questions of each user.", min=1)]
Seed = Annotated[int, typer.Option(help="Of the weights and of what is said.")]
Int8 = Annotated[bool, typer.Option("--int8", help=_INT8)]
Report = Annotated[Path | None, typer.Option("--report", help=_REPORT, metavar="FILE.html", show_default=False)]


def demo_command(
    *,
    model: Model = "qwen3-next",
    users: Users = 3,
    turns: Turns = 4,
    seed: Seed = 1,
    int8: Int8 = False,
    report_file: Report = None,
) -> None:
    """Plays a conversation of several users with a small hybrid model, with and without the cache.

    The model has random weights and is built on the spot; nothing is downloaded. All users share a system prompt, and
    each question comes with all that was said before. For each turn you see the tokens of the prompt that were reused
    and computed, the time to the first token both ways, and the largest difference between the logits of the two.

    Needs torch and transformers: `pip install 'stemcache[transformers]'`.
    """
    with _errors():
        if report_file is not None:
            check_writable(report_file)
            check_matplotlib()
        # torch is optional, and slow to import.
        from stemcache.demo.conversation import Plan  # noqa: PLC0415
        from stemcache.demo.run import show  # noqa: PLC0415

        with _bar(users * turns) as moved:
            shown = show(model, Plan(users=users, turns=turns, seed=seed), int8=int8, moved=moved)
        if report_file is not None:
            _write(shown, report_file)
    _print(shown)


def _write(shown: "Show", path: Path) -> None:
    from stemcache.demo.report import render_report  # noqa: PLC0415

    write_whole(path, render_report(shown))


def _print(shown: "Show") -> None:
    from stemcache.demo.table import render, trial, verdict  # noqa: PLC0415

    Console().print(render(shown.title, shown.turns))
    for line in (*verdict(shown.turns), trial(shown.proof)):
        typer.echo(line)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("talking"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def _errors() -> Iterator[None]:
    """Says what is wrong with the input or missing, and exits with 2."""
    try:
        yield
    except (ReplayError, ImportError) as error:
        typer.echo(f"stemcache demo: {error}", err=True)
        raise typer.Exit(2) from None
