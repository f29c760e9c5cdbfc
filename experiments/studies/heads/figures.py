"""The pictures of the study."""

import numpy as np

from experiments.report import palette, plots
from experiments.studies.heads.inputs import Sizes, draw
from experiments.studies.heads.matrices import weights
from experiments.studies.record import Figures, saved

COLOURS = {"1": palette.COLOURS[3], "2": palette.COLOURS[0], "4": palette.COLOURS[2]}


def figures(results: dict, maps: dict, sizes: Sizes, steps: int) -> Figures:
    return {
        "matrices": matrices(sizes),
        "training": training(results["relations"], results["single pattern"], steps),
        "maps": trained_maps(maps),
    }


def matrices(sizes: Sizes) -> tuple[str, bytes]:
    x, w = draw(sizes)
    q, k = x @ w.wq, x @ w.wk
    one, many = (np.asarray(weights(q, k, n)[0]) for n in (1, sizes.heads))
    columns = -(-sizes.heads // 2)
    with plots.figure(1.25 * (columns + 2), 2.9) as fig:
        grid = fig.add_gridspec(2, columns + 2)
        matrix(fig.add_subplot(grid[:, :2]), one[0], "the one head")
        for n, a in enumerate(many):
            ax = fig.add_subplot(grid[n // columns, 2 + n % columns])
            matrix(ax, a, f"head {n + 1} of {sizes.heads}")
        return saved(fig, "matrices")


def trained_maps(maps: dict) -> tuple[str, bytes]:
    count = sum(len(after) for _, after in maps.values())
    with plots.figure(1.25 * count, 3.1) as fig:
        axes = fig.subplots(2, count, squeeze=False)
        titles = [f"head {n + 1} of {heads}" for heads in maps for n in range(heads)]
        for row, when in enumerate(("before", "after")):
            drawn = [a for pair in maps.values() for a in pair[row]]
            for ax, a, title in zip(axes[row], drawn, titles):
                matrix(ax, a, title)
            axes[row, 0].set_ylabel(f"{when} training", fontsize=8.5)
        return saved(fig, "maps")


def matrix(ax, a, title: str) -> None:
    """Rows are queries, columns keys; from 0 to its own largest weight."""
    ax.grid(False)
    ax.imshow(a, vmin=0, cmap="viridis", interpolation="nearest")
    ax.set(xticks=[], yticks=[])
    ax.set_title(title, fontsize=8, pad=3)


def training(relations: dict, single: dict, steps: int) -> tuple[str, bytes]:
    with plots.figure(7.6, 3.2) as fig:
        left, right = fig.subplots(1, 2, width_ratios=(1.1, 1))
        for heads, row in relations["two relations"].items():
            mean, low, high = (row["curve"][n] for n in ("mean", "min", "max"))
            at = (np.arange(len(mean)) + 0.5) * steps / len(mean)
            name = f"{heads} head{'s' * (heads != '1')}"
            left.plot(at, mean, color=COLOURS[heads], label=name)
            left.fill_between(at, low, high, color=COLOURS[heads], alpha=0.18, lw=0)
        left.set(xlabel="step", ylabel="loss, two relations", ylim=(0, 2.6), xlim=(0, steps))
        left.legend()
        points(right, relations, single)
        return saved(fig, "training")


def points(ax, relations: dict, single: dict) -> None:
    """One dot a seed: the share of positions with every answer right."""
    names = list(relations)
    for place, name in enumerate(names):
        counts = relations[name]
        for n, (heads, row) in enumerate(counts.items()):
            beside = place + 0.22 * (n - (len(counts) - 1) / 2)
            near = beside + np.linspace(-0.05, 0.05, len(row["all"]))
            ax.plot(near, row["all"], "o", ms=3.5, alpha=0.8, color=COLOURS[heads])
    ceiling = single["order-blind, both"]
    ax.plot([-0.45, 0.45], [ceiling] * 2, "--", color=palette.COLOURS[6], lw=1.2)
    ax.text(0.5, ceiling, "order guessed", fontsize=7.5, va="center", color=palette.COLOURS[6])
    ax.set(ylim=(-0.03, 1.05), xlim=(-0.5, len(names) - 0.5), ylabel="all answers right")
    ax.set_xticks(range(len(names)), [n.replace(" ", "\n") for n in names], fontsize=8)
    ax.grid(axis="x", visible=False)
