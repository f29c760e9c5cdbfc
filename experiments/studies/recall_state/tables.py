"""The README's numbers, from results.json alone."""

from itertools import pairwise
from statistics import fmean

from scipy.stats import spearmanr

from experiments.studies.recall_state.runs import EXACT
from experiments.studies.record import Blocks, run_line, spread, table

ENOUGH = 0.99


def blocks(r: dict) -> Blocks:
    return {
        "accuracy": accuracy(r["accuracy"]),
        "answer": answer(r["accuracy"], r["baselines"]),
        "settings": settings(r),
        "run": run_line(r),
    }


def settings(r: dict) -> str:
    s = r["settings"]
    changed = ", ".join(f"{name} {value}" for name, value in s["fields"].items())
    ladder = ", ".join(f"{name} {100 * x:.1f}%" for name, x in r["baselines"].items())
    seeds = "one seed" if s["seeds"] == 1 else f"{s['seeds']} seeds"
    runs = sum(len(scores) for sizes in r["accuracy"].values() for scores in sizes.values())
    return (
        f"{seeds}; {runs} runs with a result, {len(r['without result'])} without; {s['steps']} "
        f"steps; changed in the configs: {changed}. Without learning: {ladder}."
    )


def accuracy(found: dict) -> str:
    """A row for each family, its states from small to large."""
    most = max(map(len, found.values()))
    rows = []
    for name, sizes in found.items():
        cells = [f"{int(size):,}: {spread(sizes[size])}" for size in ordered(sizes)]
        rows.append([name, *cells, *[""] * (most - len(cells))])
    return table(["bytes of state: accuracy", *[""] * most], rows)


def ordered(sizes: dict) -> list[str]:
    return sorted(sizes, key=int)


def means(sizes: dict) -> list[float]:
    return [fmean(sizes[size]) for size in ordered(sizes)]


def all_of(scores: list[float]) -> bool:
    return fmean(scores) >= ENOUGH


def answer(found: dict, baselines: dict) -> str:
    """How accuracy goes with the state, over all and within each family; who learned at all."""
    others = {name: sizes for name, sizes in found.items() if name != EXACT}
    points = [(int(size), fmean(x)) for sizes in others.values() for size, x in sizes.items()]
    floor = max(baselines.values())
    learned = {name: max(means(sizes)) > floor for name, sizes in others.items()}
    steps = [x for name in others if learned[name] for x in pairwise(means(others[name]))]
    room = [x for x in steps if min(x) < ENOUGH]  # what begins at the ceiling may fall from it
    better = lambda some: sum(b > a for a, b in some)
    still = [name for name, there in learned.items() if not there]
    lines = []
    if len(points) > 2:
        rho = spearmanr(*zip(*points)).statistic  # no p: models of one family are not independent
        lines.append(
            f"* Over {len(points)} models with a state of fixed size, of {len(others)} families: "
            f"Spearman's rho of bytes and accuracy {rho:+.2f}."
        )
    if steps:
        lines.append(
            f"* The next larger state is better in {better(steps)} of {len(steps)} steps; of those "
            f"not wholly at {ENOUGH:.0%} or above, in {better(room)} of {len(room)}."
        )
    if EXACT in found:
        size, score = ordered(found[EXACT])[-1], means(found[EXACT])[-1]
        enough = [(int(s), name) for name in others for s, x in others[name].items() if all_of(x)]
        fewest = min(enough)[0] if enough else 0
        names = ", ".join(name for size, name in enough if size == fewest)
        low = f"{fewest:,} ({names})" if enough else "none"
        lines.append(f"* {EXACT} with {int(size):,} bytes: {100 * score:.1f}%.")
        lines.append(f"* The smallest state of fixed size that recalls {ENOUGH:.0%}: {low}.")
    apart = lambda seeds: min(seeds) <= floor < max(seeds)
    by_seed = [name for name, sizes in others.items() if any(map(apart, sizes.values()))]
    lines.append(
        f"* Not above {100 * floor:.1f}% by one seed, and above it at the same size by another: "
        f"{', '.join(by_seed) or 'none'} ({len(by_seed)} of {len(others)} families)."
    )
    if still:
        lines.append(f"* Never above {100 * floor:.1f}%, so not learned: {', '.join(still)}.")
    return "\n".join(lines)
