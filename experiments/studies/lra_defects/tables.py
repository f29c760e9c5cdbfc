"""The README's numbers, from results.json alone."""

from statistics import fmean

from experiments.studies.record import Blocks, run_line, table

ROWS = (
    ("local", "own block", "share of the receptive field inside the own block"),
    ("sinkhorn", "gradient of the sorter", "gradient of the sorter, relative to the values'"),
    ("reformer", "largest weight", "largest share of one key in a row, mean over rows"),
    ("reformer", "pairs alike in two layers", "pairs on which two layers' hashes agree"),
    ("reformer", "change by padding", "change of outputs when padding changes by 1"),
    ("performer", "change of the past", "change of the past when later keys grow tenfold"),
    ("performer", "deviation", "standard deviation of those outputs"),
)


def blocks(r: dict) -> Blocks:
    s = r["settings"]
    return {
        "run": run_line(r),
        "settings": (
            f"{s['draws']} draws of {s['length']} tokens, one head of width {s['width']}, blocks "
            f"and chunks of {s['block']}, {s['features']} features."
        ),
        "defects": table(
            ("", "published", "ours"),
            [
                (f"`{name}`: {words}", *(number(r[name][key][n]) for n in ("published", "ours")))
                for name, key, words in ROWS
            ],
        ),
    }


def number(values: list[float]) -> str:
    """Mean over draws, and the lowest and highest where they differ."""
    low, mean, high = (f"{x:.2g}" for x in (min(values), fmean(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"
