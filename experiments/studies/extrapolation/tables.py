"""The README's numbers, from results.json alone."""

from itertools import combinations
from statistics import fmean

from experiments.report.against import against
from experiments.report.stats import scored
from experiments.studies.extrapolation.published import ORDERS
from experiments.studies.record import Blocks, run_line, spread, table


def blocks(r: dict) -> Blocks:
    return {
        "accuracy": accuracy(r["accuracy"]),
        "answer": answer(r["accuracy"], r["test rows"]),
        "published": published(r["accuracy"]),
        "settings": settings(r),
        "run": run_line(r),
    }


def settings(r: dict) -> str:
    s = r["settings"]
    lengths = list(next(iter(r["accuracy"].values())))
    return (
        f"{s['seeds']} seeds; {s['steps']} steps on rows of {lengths[0]}; "
        f"{r['test rows']:,} test rows, as many of each length; "
        f"chance {100 * r['baselines']['chance']:.1f}%. The runs took {r['seconds'] / 60:.0f} "
        "minutes on a share of one core, with compilation."
    )


def accuracy(found: dict) -> str:
    """The best on the longest rows on top."""
    lengths = list(next(iter(found.values())))
    order = sorted(found, key=lambda name: -longest(found[name]))
    rows = [[name, *(spread(found[name][length]) for length in lengths)] for name in order]
    return table(["", *lengths], rows)


def longest(by_length: dict) -> float:
    """The mean over seeds on the longest rows, which come last."""
    *_, values = by_length.values()
    return fmean(values)


def answer(found: dict, rows: int) -> str:
    """Each against the first at each length that was not trained on, paired by seed."""
    reference, *_ = found
    _, *longer = found[reference]
    of_a_length = rows / len(found[reference])
    lines = []
    for length in longer:
        score = lambda values: scored(dict(enumerate(values)), of_a_length)
        scores = {name: score(x[length]) for name, x in found.items()}
        told = [f"{name} {x.text()}" for name, x in against(scores).items()]
        lines.append(f"* {length}, against {reference}: {'; '.join(told) or 'one seed'}.")
    return "\n".join(lines)


def published(found: dict) -> str:
    """How many pairs of a published order stand in it here, on the longest rows."""
    lines = []
    for who, order in ORDERS.items():
        pairs = list(combinations([name for name in order if name in found], 2))
        other = [f"{b} over {a}" for a, b in pairs if longest(found[a]) < longest(found[b])]
        line = f"* {who} ({' > '.join(order)}): {len(pairs) - len(other)} of {len(pairs)} pairs"
        lines.append(f"{line} in this order{'; but ' if other else ''}{', '.join(other)}.")
    return "\n".join(lines)
