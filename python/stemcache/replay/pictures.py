"""The pictures of a report, as SVG text with nothing in it that points elsewhere. Needs matplotlib."""

import importlib.util
import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stemcache.replay.errors import ReplayError
from stemcache.replay.figures import Result, Series

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

# A picture is some 900 pixels wide; more points than this only make the file larger.
_POINTS = 600
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "stemcache",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.3,
}
_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def check_matplotlib() -> None:
    """Finds out before the work is done whether pictures can be drawn.

    Raises:
        ReplayError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ReplayError("--report draws with matplotlib, which is not installed: pip install 'stemcache[report]'")


def pictures(result: Result) -> list[tuple[str, str]]:
    """Captions and pictures."""
    parts: list[tuple[str, int, Callable[[list[Axes], Result], None]]] = [
        ("Share of the input served from the cache", 1, _draw_share),
        ("Memory: slots in use, of them in the tree", 2, _draw_memory),
        ("Evicted so far", 2, _draw_evictions),
    ]
    return [(caption, _picture(result, count, draw)) for caption, count, draw in parts]


def _picture(result: Result, count: int, draw: "Callable[[list[Axes], Result], None]") -> str:
    return draw_svg(count, lambda axes: draw(axes, result))


def draw_svg(count: int, draw: "Callable[[list[Axes]], None]") -> str:
    """A picture of `count` plots side by side, which `draw` fills."""
    import matplotlib as mpl  # noqa: PLC0415 - it is optional, and slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        draw([figure.add_subplot(1, count, place + 1) for place in range(count)])
        return _svg(figure)


def _svg(figure: "Figure") -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata=_METADATA)
    return _bare(file.getvalue())


def _bare(svg: str) -> str:
    """The `<svg>` element without what only a file of its own needs: prologue, name spaces, metadata."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)


def _sample(series: Series) -> npt.NDArray[np.int64]:
    """Which requests are drawn: all, or evenly spread ones, the last always."""
    count = len(series.seconds)
    return np.unique(np.linspace(0, count - 1, min(count, _POINTS)).astype(np.int64))


def _times(axes: "Axes", series: Series) -> Floats:
    """What the drawn requests have on the x axis: minutes, or their number if the trace has no times."""
    drawn = _sample(series)
    seconds = np.array(series.seconds)
    if seconds.max() > seconds.min():
        axes.set_xlabel("minutes of the trace")
        return np.asarray((seconds[drawn] - seconds.min()) / 60)
    axes.set_xlabel("requests")
    return drawn.astype(np.float64) + 1


def _draw_share(axes: "list[Axes]", result: Result) -> None:
    (plot,), series = axes, result.series
    x = _times(plot, series)
    for name, values, style in (("ideal", series.ideal, "--"), ("served", series.served, "-")):
        plot.plot(x, _so_far(series, values), style, label=f"{name}, so far")
    plot.plot(x, _lately(series, series.served), alpha=0.5, linewidth=0.8, label="served, lately")
    plot.set_ylabel("% of input tokens")
    plot.set_ylim(0, 100)
    plot.legend()


def _so_far(series: Series, values: list[int]) -> Floats:
    share = 100 * np.cumsum(values) / np.cumsum(series.input_tokens)
    return np.asarray(share[_sample(series)], dtype=np.float64)


def _lately(series: Series, values: list[int]) -> Floats:
    """The share over the last fiftieth of all requests."""
    window = max(1, len(values) // 50)
    ends = _sample(series) + 1
    starts = np.maximum(0, ends - window)
    part, whole = (np.concatenate([[0], np.cumsum(numbers)]) for numbers in (values, series.input_tokens))
    return np.asarray(100 * (part[ends] - part[starts]) / (whole[ends] - whole[starts]), dtype=np.float64)


def _draw_memory(axes: "list[Axes]", result: Result) -> None:
    series, asked = result.series, result.settings
    pairs = (
        ("KV slots", series.kv_used, series.kv_tree, asked.kv_tokens and result.sizes.kv),
        ("state slots", series.states_used, series.states_tree, asked.states),
    )
    for plot, (name, used, tree, size) in zip(axes, pairs, strict=True):
        x, drawn = _times(plot, series), _sample(series)
        plot.plot(x, np.array(used)[drawn], label="in use")
        plot.fill_between(x, np.array(tree)[drawn], alpha=0.3, label="in the tree")
        if size:
            plot.axhline(size, linestyle="--", color="black", linewidth=0.8, label="pool")
        _count_axis(plot, name)
        plot.legend()


def _draw_evictions(axes: "list[Axes]", result: Result) -> None:
    series = result.series
    for plot, (name, values) in zip(
        axes, (("KV tokens", series.kv_evicted), ("states", series.states_evicted)), strict=True
    ):
        plot.plot(_times(plot, series), np.array(values)[_sample(series)], color="tab:red")
        _count_axis(plot, f"{name} evicted")


def _count_axis(plot: "Axes", name: str) -> None:
    plot.set_ylabel(name)
    plot.set_ylim(bottom=0)
    plot.yaxis.set_major_formatter("{x:,.0f}")
