"""The `stemcache` command and its subcommands."""

from typing import Annotated

import typer

from stemcache import __version__
from stemcache.cli.demo import demo_command
from stemcache.cli.replay import replay_command

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("replay", no_args_is_help=True)(replay_command)
app.command("demo")(demo_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stemcache {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """The prefix cache for hybrid (attention + recurrent) language models."""


def main() -> None:
    """Runs the command line."""
    app()
