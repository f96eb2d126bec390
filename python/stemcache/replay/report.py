"""The report of a replay: one HTML file that needs no other."""

from collections.abc import Iterable
from html import escape

from stemcache.replay.figures import Result
from stemcache.replay.pictures import pictures
from stemcache.replay.table import OPERATION_HEADS, OPERATION_NOTE, operation_rows, rows, title, verdict

_STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; color: #222; background: #fff }
table { border-collapse: collapse; margin: 1em 0 }
td, th { padding: .2em .9em; border-bottom: 1px solid #ddd; text-align: left }
td:nth-child(2), table.costs td:nth-child(n+2), table.costs th:nth-child(n+2) { text-align: right }
.sound { color: #06662b } .broken { color: #a00; font-weight: bold }
svg { width: 100%; height: auto }
"""


def render_report(result: Result) -> str:
    """The whole page."""
    kind = "broken" if result.problems else "sound"
    parts = [
        f"<h1>stemcache replay</h1>\n<p>{escape(title(result))}</p>",
        table(rows(result)),
        f'<p class="{kind}">{escape(verdict(result))}</p>',
        *(f"<h2>{escape(caption)}</h2>\n{svg}" for caption, svg in pictures(result)),
        "<h2>Cost</h2>",
        table(operation_rows(result), OPERATION_HEADS, "costs"),
        f"<p>{escape(OPERATION_NOTE)}</p>",
    ]
    return page("stemcache replay", "\n".join(parts))


def page(title: str, body: str) -> str:
    """An HTML page in the style of all reports."""
    head = f'<meta charset="utf-8">\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def table(lines: Iterable[tuple[str, ...]], heads: tuple[str, ...] = (), kind: str = "figures") -> str:
    """An HTML table; of kind "costs" all columns but the first hold numbers, else the second does."""
    top = [_row(heads, "th")] if heads else []
    return f'<table class="{kind}">\n' + "\n".join([*top, *(_row(line, "td") for line in lines)]) + "\n</table>"


def _row(cells: tuple[str, ...], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
