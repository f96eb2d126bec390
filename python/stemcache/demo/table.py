"""What a conversation showed, as rows and as text."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from stemcache.demo.conversation import Turn
from stemcache.integrations.transformers import Proof

HEADS = ("turn", "prompt", "reused", "computed", "cached", "plain", "faster", "apart")
NOTE = (
    "Turn and user; tokens of the prompt, reused and computed; time to the first token with the cache and without; "
    "how far the logits are apart at most, over the answer."
)


def rows(turns: Sequence[Turn]) -> list[tuple[str, ...]]:
    """One a turn, in the order in which they were played."""
    return [
        (
            f"{turn.turn}.{turn.user}",
            f"{turn.reused + turn.computed:,}",
            f"{turn.reused:,}",
            f"{turn.computed:,}",
            f"{1000 * turn.with_cache:.1f} ms",
            f"{1000 * turn.without_cache:.1f} ms",
            f"{turn.without_cache / turn.with_cache:.1f} x",
            f"{turn.difference:.1e}",
        )
        for turn in turns
    ]


def render(title: str, turns: Sequence[Turn]) -> Table:
    """The table for the terminal."""
    table = Table(title=title, caption=NOTE, title_justify="left", caption_justify="left", box=box.SIMPLE)
    for head in HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows(turns):
        table.add_row(*row)
    return table


def trial(proof: Proof) -> str:
    """What was found when the model was wrapped."""
    return f"Tried before it was trusted: resumed from a restored prefix, {proof}."


def verdict(turns: Sequence[Turn]) -> list[str]:
    """What it comes to."""
    reused, computed = sum(turn.reused for turn in turns), sum(turn.computed for turn in turns)
    cached, plain = sum(turn.with_cache for turn in turns), sum(turn.without_cache for turn in turns)
    agreed = sum(turn.agreed for turn in turns)
    share, spread = 100 * reused / (reused + computed), min(turn.spread for turn in turns)
    difference = max(turn.difference for turn in turns)
    return [
        f"prompt tokens: {reused:,} of {reused + computed:,} reused ({share:.1f} %)",
        f"all first tokens: after {cached:.2f} s instead of {plain:.2f} s",
        f"logits: at most {difference:.1e} apart, where they spread by {spread:.2f}",
        f"answers: the plain model picks the same tokens in {agreed} of {len(turns)}",
    ]
