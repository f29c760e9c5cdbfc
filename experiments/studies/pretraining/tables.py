"""The README's numbers, from results.json alone."""

from statistics import fmean

from experiments.report.against import against
from experiments.report.stats import scored
from experiments.studies.pretraining.runs import WAYS
from experiments.studies.record import Blocks, run_line, spread, table
from experiments.tasks.digits import HELD_OUT

FIRST = WAYS[1]  # what pretraining is held against: as many steps in all


def blocks(r: dict) -> Blocks:
    return {
        "accuracy": accuracy(r["accuracy"]),
        "answer": answer(r["accuracy"]),
        "settings": settings(r["settings"]),
        "run": run_line(r),
    }


def accuracy(found: dict) -> str:
    rows = [[variant, *(spread(runs[way]) for way in WAYS)] for variant, runs in found.items()]
    return table(["", *WAYS], rows)


def settings(s: dict) -> str:
    return (
        f"{s['seeds']} seeds; two layers of width {s['width']}; {s['steps']} steps of "
        f"{s['batch_size']} rows, pretraining as many before, with {100 * s['mask_rate']:g}% of "
        f"the pixels hidden; AdamW at {s['rate']:g}."
    )


def answer(found: dict) -> str:
    """Pretraining against as many steps without it, paired by seed; and the gap of variants."""
    lines = []
    for variant, runs in found.items():
        score = lambda values: scored(dict(enumerate(values)), HELD_OUT)
        told = against({way: score(runs[way]) for way in (FIRST, "pretrained")}).get("pretrained")
        lines.append(f"* {variant}: pretrained {'one seed' if told is None else told.text()}.")
    means = {way: [fmean(runs[way]) for runs in found.values()] for way in WAYS}
    gaps = ", ".join(f"{100 * (max(x) - min(x)):.1f} {way}" for way, x in means.items())
    lines.append(f"* From the best variant to the worst, in points: {gaps}.")
    return "\n".join(lines)
