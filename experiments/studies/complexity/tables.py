"""The README's numbers, from results.json alone."""

from experiments.report.powers import power
from experiments.studies.complexity.claims import CLAIMS, growths
from experiments.studies.complexity.growth import TOLERANCE, departs, untold
from experiments.studies.record import Blocks, run_line, table

OTHERWISE = " ≠"


def lengths(r: dict, of: str) -> list[int]:
    return [at["length"] for at in r["settings"][of]]


def judged(r: dict, name: str) -> dict[str, tuple[str, list[int], list[float]]]:
    """What is held against each claim: its formula, the lengths and what was measured there.

    A path goes through as many layers as it takes, and in each through the steps that its
    definition takes in a row, one at least.
    """
    claim, row = CLAIMS[name], r["mixers"][name]
    steps = [max(1, n) for n in row["steps by definition"]]
    found = {"steps": (claim.steps, lengths(r, "reach"), steps)}
    if None not in row["flops"]:
        found["work"] = claim.work, lengths(r, "work"), row["flops"]
    if claim.path is not None and None not in row["layers"]:
        paths = [layers * n for layers, n in zip(row["layers"], steps)]
        found["path"] = claim.path, lengths(r, "reach"), paths
    return found


def departures(r: dict, name: str) -> set[str]:
    """Which claims do not say how the measured grows."""
    found = {column for column, held in judged(r, name).items() if departs(*held)}
    unreached = CLAIMS[name].path is not None and None in r["mixers"][name]["layers"]
    return found | ({"path"} if unreached else set())


def blocks(r: dict) -> Blocks:
    table, count = complexity(r), counted(r)
    return {"run": run_line(r), "settings": settings(r), "table": table, "count": count}


def settings(r: dict) -> str:
    s = r["settings"]
    listed = lambda of: ", ".join(f"{T:,}" for T in lengths(r, of))
    form = "causal wherever it can be" if s["causal"] else "bidirectional unless it requires Causal"
    return (
        f"{s['heads']} heads of width {s['head_dim']}, so d = {s['heads'] * s['head_dim']}; each "
        f"mixer {form}. Work and loops at T = {listed('work')}, definitions and paths at T = "
        f"{listed('reach')}, {s['draws']} draws."
    )


def complexity(r: dict) -> str:
    longest = lengths(r, "work")[-1]
    short = "/".join(map(str, lengths(r, "reach")))
    head = (
        "mixer",
        "work claimed",
        "record's formula",
        "counted",
        f"counted / formula, T = {longest:,}",
        "steps claimed",
        f"in the definition, T = {short}",
        f"in our loops, T = {longest:,}",
        "path claimed",
        f"layers, T = {short}",
        "path = layers x steps",
    )
    return table(head, [cells(r, name) for name in r["mixers"]])


def cells(r: dict, name: str) -> list[str]:
    claim, row, other = CLAIMS[name], r["mixers"][name], departures(r, name)
    T, flops, formula = lengths(r, "work"), row["flops"], row["formula"]
    mark = lambda column: OTHERWISE if column in other else ""
    slash = lambda values: "/".join("never" if x is None else str(x) for x in values)
    least = [max(1, n) for n in row["steps by definition"]]
    paths = [None if n is None else n * m for n, m in zip(row["layers"], least)]
    known, has_formula = None not in flops, None not in formula
    return [
        f"`{name}`",
        claim.work,
        power(T, formula) if has_formula else "–",
        (power(T, flops) if known else ", ".join(row["unknown"][-1])) + mark("work"),
        f"{flops[-1] / formula[-1]:.2g}" if known and has_formula else "–",
        claim.steps,
        slash(least) + mark("steps"),
        f"{row['steps'][-1]:,}",
        claim.path or "–",
        slash(row["layers"]),
        slash(paths) + mark("path"),
    ]


def counted(r: dict) -> str:
    """In a sentence, which claims the measured departs from."""
    every = {column: [n for n in r["mixers"] if column in departures(r, n)] for column in COLUMNS}
    lines = [
        f"* {words}: {', '.join(f'`{n}`' for n in names) or 'none'}."
        for (column, words), names in zip(COLUMNS.items(), every.values())
    ]
    held = sum(len(judged(r, name)) for name in r["mixers"])
    first = (
        f"Of {held} claims that can be compared with a measurement, these differ by more than "
        f"T^{TOLERANCE} and by more than the interval of the fit:"
    )
    unknown = ", ".join(
        f"`{name}` ({column})"
        for name in r["mixers"]
        for column, held in judged(r, name).items()
        if untold(*held)
    )
    last = f"Undecided, as the interval holds the claim and much else: {unknown or 'none'}."
    sums = [f"`{name}`" for name in r["mixers"] if len({*growths(CLAIMS[name].work, 4)}) > 1]
    between = f"Claimed as a sum, held to grow between its terms: {', '.join(sums) or 'none'}."
    return "\n".join([first, "", *lines, "", last, "", between])


COLUMNS = {
    "work": "work",
    "steps": "sequential steps of the definition",
    "path": "path length",
}
