"""The conversation as one HTML file with pictures that needs no other file."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from stemcache.demo.conversation import Turn
from stemcache.demo.run import Show
from stemcache.demo.table import HEADS, NOTE, rows, trial, verdict
from stemcache.replay.pictures import draw_svg
from stemcache.replay.report import page, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def render_report(shown: Show) -> str:
    """The whole page."""
    turns = shown.turns
    drawn = (
        ("Prompt tokens of each turn", draw_svg(1, lambda axes: _draw_tokens(axes[0], turns))),
        ("Time to the first token", draw_svg(1, lambda axes: _draw_seconds(axes[0], turns))),
        ("Largest difference to the plain model's logits", draw_svg(1, lambda axes: _draw_difference(axes[0], turns))),
    )
    parts = [
        f"<h1>stemcache demo</h1>\n<p>{escape(shown.title)}</p>",
        *(f"<p>{escape(line)}</p>" for line in (*verdict(turns), trial(shown.proof))),
        *(f"<h2>{caption}</h2>\n{svg}" for caption, svg in drawn),
        "<h2>Turn by turn</h2>",
        table(rows(turns), HEADS, "costs"),
        f"<p>{escape(NOTE)}</p>",
    ]
    return page("stemcache demo", "\n".join(parts))


def _draw_tokens(plot: "Axes", turns: Sequence[Turn]) -> None:
    reused = [turn.reused for turn in turns]
    plot.bar(range(len(turns)), reused, label="reused")
    plot.bar(range(len(turns)), [turn.computed for turn in turns], bottom=reused, label="computed")
    plot.set_ylabel("tokens")
    _name_turns(plot, turns)
    plot.legend()


def _draw_seconds(plot: "Axes", turns: Sequence[Turn]) -> None:
    plot.plot([1000 * turn.without_cache for turn in turns], "o-", label="without the cache")
    plot.plot([1000 * turn.with_cache for turn in turns], "o-", label="with the cache")
    plot.set_ylabel("ms")
    plot.set_ylim(bottom=0)
    _name_turns(plot, turns)
    plot.legend()


def _draw_difference(plot: "Axes", turns: Sequence[Turn]) -> None:
    plot.plot([turn.difference for turn in turns], "o-", label="with the cache")
    plot.axhline(turns[0].spread, linestyle="--", color="black", linewidth=0.8, label="spread of the logits")
    plot.set_yscale("log")
    _name_turns(plot, turns)
    plot.legend()


def _name_turns(plot: "Axes", turns: Sequence[Turn]) -> None:
    plot.set_xticks(range(len(turns)), [f"{turn.turn}.{turn.user}" for turn in turns])
    plot.set_xlabel("turn.user")
