"""Pictures of a benchmark: time and memory against length, and how many times faster."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from experiments.report import axis, crossover, palette, plots
from experiments.report.measurements import OURS, Row, configurations, label
from experiments.report.page import picture


def pictures(
    name: str, rows: Sequence[Row], known: Sequence[str] = (), mechanism: str = ""
) -> Iterator[str]:
    """Time and memory of the first configuration, then how many times faster in each; `known`
    contenders come first where colours are given out, and attn is named with its mechanism."""
    ours_is = f"{OURS}: {mechanism}" if mechanism else OURS
    several = configurations(rows)
    style = palette.looks(list(dict.fromkeys([*known, *(row["contender"] for row in rows)])))
    if mechanism in known:
        style[OURS] = style[mechanism]  # one colour in the whole report
    modes = dict.fromkeys(row["mode"] for row in rows)
    if not several:
        return
    shape, of_shape = next(iter(several.items()))
    for mode in modes:
        for key, quantity in crossover.MEASURED.items():
            series = crossover.scaling(of_shape, mode, key)
            if max((len(steps) for steps, _ in series.values()), default=0) < 2:
                continue
            code = f"{name}-{mode}-{key}".replace(" ", "").replace("+", "-")
            ours = series.get(OURS, ([], []))
            noisy = crossover.within_noise(of_shape, mode, key)
            meet = {
                x: crossover.crossings(ours, curve, noisy.get(x, ()))
                for x, curve in series.items()
                if x != OURS
            }
            ylabel = f"{mode}, {quantity.unit}"
            called = {x: ours_is if x == OURS else label(x) for x in series}
            svg = scaling(series, style, called, ylabel=ylabel, name=code, meet=meet)
            crossed = f" Rings: where {ours_is} crosses a peer." if any(meet.values()) else ""
            yield picture(svg, f"{quantity.unit} of {mode} against length; {shape}.{crossed}")
    if len(several) > 1:
        yield from _speedups(name, several, style, ours_is)


def _speedups(name: str, several: dict[str, list[Row]], style: dict, ours_is: str) -> Iterator[str]:
    panels = {}
    for mode in dict.fromkeys(row["mode"] for of_shape in several.values() for row in of_shape):
        for shape, of_shape in several.items():
            series = crossover.scaling(of_shape, mode, "minimum")
            ours = series.pop(OURS, ([], []))
            noisy = crossover.within_noise(of_shape, mode, "minimum")
            faster = {
                peer: [
                    (t, math.exp(-gap), t not in noisy.get(peer, ()))
                    for t, gap in crossover.gaps(ours, curve)
                ]
                for peer, curve in series.items()
            }
            if any(len(points) > 1 for points in faster.values()):
                panels[f"{mode}\n{shape}"] = {k: x for k, x in faster.items() if x}
    if panels:
        svg = ratios(panels, style, name=f"{name}-ratios")
        text = (
            f"How many times faster {ours_is} is than each peer, by length; below the line slower; "
            "hollow where the two are within noise."
        )
        yield picture(svg, text, wide=True)


def scaling(
    series: dict[str, plots.Curve],
    style: dict[str, palette.Look],
    called: dict[str, str],
    *,
    ylabel: str,
    name: str,
    meet: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> str:
    """A quantity against length, both logarithmic, one line per contender, each as it is `called`
    in the legend; `meet` has the points (length, value) where a contender's line is crossed."""
    with plots.figure() as fig:
        ax = fig.add_subplot()
        for contender, (steps, values) in series.items():
            look = style[contender]
            line = {"color": look.colour, "ls": look.dash, "marker": "o", "ms": 4}
            ax.plot(steps, values, label=called[contender], **line)
        _length_axis(ax, {t for steps, _ in series.values() for t in steps})
        ax.set(xlabel="length T", ylabel=ylabel)
        axis.log_axis(ax)
        floor, rank = ax.get_ylim()[0], 0
        for contender, points in (meet or {}).items():
            for t, value in points:
                colour = style[contender].colour
                ax.plot([t, t], [floor, value], ":", color=colour, lw=1)
                ax.plot([t], [value], "o", ms=9, mfc="none", mec=colour, mew=1.5)
                # beside the foot of the tick, one line higher for each: they lie close together
                place = {"xytext": (4, 3 + 11 * rank), "textcoords": "offset points"}
                ax.annotate(f"T ≈ {t:,.0f}", (t, floor), color=colour, fontsize=8, **place)
                rank += 1
        ax.set_ylim(bottom=floor)
        axis.legend(fig, called.values())
        return plots.svg(fig, name)


def ratios(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float, bool]]]],
    style: dict[str, palette.Look],
    *,
    name: str,
) -> str:
    """Small panels, by title, of (length, times faster, told apart) for each peer, on the same
    axes."""
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    with plots.figure(2.7 * columns, 0.5 + 2.0 * rows) as fig:
        grid = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for ax in grid.flat[len(panels) :]:
            ax.set_axis_off()
        for ax, (title, peers) in zip(grid.flat, panels.items()):
            for peer, points in peers.items():
                look = style[peer]
                lengths, faster, _ = zip(*points)
                line = {"color": look.colour, "ls": look.dash, "marker": "o", "ms": 3}
                ax.plot(lengths, faster, label=label(peer), **line)
                if noisy := [(t, x) for t, x, apart in points if not apart]:
                    ax.plot(*zip(*noisy), "o", mfc="white", mec=look.colour, ms=4)
            ax.axhline(1, color=plots.INK, lw=1)
            ax.set_title(title, fontsize=8)
        _length_axis(grid[0, 0], {t for p in panels.values() for x in p.values() for t, *_ in x})
        for ax in grid.flat:
            ax.tick_params(axis="x", rotation=45, labelsize=7)
        axis.log_axis(grid[0, 0])
        fig.supylabel("times faster", fontsize=9)
        axis.legend(fig, {label(peer) for peers in panels.values() for peer in peers})
        return plots.svg(fig, name)


def _length_axis(ax, lengths: Collection[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(sorted(lengths), [f"{t:,}" for t in sorted(lengths)])
    ax.xaxis.minorticks_off()
