"""The README's numbers, from results.json alone."""

from statistics import median

from scipy.stats import spearmanr

from experiments.studies.lra_speed.measure import BLOCKS, DRAWN
from experiments.studies.lra_speed.published import LENGTHS, MEMORY, SPEED
from experiments.studies.record import Blocks, run_line, table


def blocks(r: dict) -> Blocks:
    return {
        "run": run_line(r),
        "settings": settings(r),
        "speed": speed(r),
        "memory": memory(r),
        "answer": answer(r),
    }


def settings(r: dict) -> str:
    s = r["settings"]
    changed = ", ".join(f"{name} {value}" for name, value in s["fields"].items())
    of = lambda row: (row["high"] - row["low"]) / row["milliseconds"]
    spreads = [of(row) for rows in r["lengths"].values() for row in rows.values()]
    return (
        f"Medians of at most {s['steps']} steps in turns, of which the middle half spans "
        f"{median(spreads):.0%} of the median, at most {max(spreads):.0%}; changed in the config: "
        f"{changed}."
    )


def last(r: dict) -> dict:
    """Of the longest texts."""
    return r["lengths"][list(r["lengths"])[-1]]


def longest(r: dict) -> str:
    return f"{int(list(r['lengths'])[-1]):,}"


def faster(r: dict, name: str, length: str, than: str = DRAWN) -> float:
    """Steps a second, as a multiple of another model's."""
    at = r["lengths"][length]
    return at[than]["milliseconds"] / at[name]["milliseconds"]


def paper(name: str, length: str) -> float | None:
    at = LENGTHS.index(int(length)) if int(length) in LENGTHS else None
    return SPEED[name][at] if name in SPEED and at is not None else None


def speed(r: dict) -> str:
    """Against the Transformer that makes its matrix, the paper's in brackets; last, at the longest,
    against the one in blocks."""
    lengths = list(r["lengths"])
    head = ["steps a second", *(f"{int(n):,} bytes" for n in lengths), "against blocks"]
    rows = []
    for name in r["lengths"][lengths[-1]]:
        told = [(faster(r, name, n), paper(name, n)) for n in lengths]
        cells = [f"{x:.2f}" + (f" ({y})" if y else "") for x, y in told]
        rows.append([name, *cells, f"{faster(r, name, lengths[-1], BLOCKS):.2f}"])
    return table(head, rows)


def memory(r: dict) -> str:
    at = last(r)
    share = lambda found, name: f"{found[name] / found[DRAWN]:.2f}" if name in found else ""
    held = {name: row["peak bytes"] for name, row in at.items()}
    rows = [
        [name, f"{x / 1e6:,.0f}", share(held, name), share(MEMORY, name)]
        for name, x in held.items()
    ]
    head = f"a step of {longest(r)} bytes", "MB", f"of {DRAWN}'s", "in the paper, a device"
    return table(head, rows)


def ahead(at: dict, names: list[str], than: str) -> str:
    """The models that are faster than another, and those whose middle half of steps meets its."""
    one = at[than]
    beyond = [name for name in names if at[name]["high"] < one["low"]]
    near = [name for name in names if at[name]["low"] <= one["high"] and name not in beyond]
    within = f" (within noise, as the middle halves overlap: {', '.join(near)})" if near else ""
    return (", ".join(beyond) or "none") + within


def answer(r: dict) -> str:
    """At the longest: the paper's order, and which are faster than exact attention."""
    length = list(r["lengths"])[-1]
    names = [name for name in SPEED if name in last(r)]
    theirs = [paper(name, length) for name in names]
    lines = []
    if len(names) > 2 and None not in theirs:
        found = spearmanr([faster(r, name, length) for name in names], theirs)
        lines.append(
            f"* At {longest(r)} bytes the order of {len(names)} models by speed has Spearman's "
            f"rho {found.statistic:+.2f} (p {found.pvalue:.2g}) with the paper's."
        )
    lines.append(
        f"* Faster there than softmax that materializes its matrix: {ahead(last(r), names, DRAWN)};"
        f" than softmax in blocks: {ahead(last(r), names, BLOCKS)}."
    )
    memory = last(r)[BLOCKS]["peak bytes"] / last(r)[DRAWN]["peak bytes"]
    lines.append(
        f"* Exact softmax in blocks takes {1 / faster(r, BLOCKS, length):.2f} of the time and "
        f"{memory:.2f} of the memory of softmax that materializes its matrix."
    )
    return "\n".join(lines)
