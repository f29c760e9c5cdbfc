"""The README's numbers, from results.json alone."""

from experiments.measure.turns import MODES
from experiments.studies.record import Blocks, run_line, table


def blocks(r: dict) -> Blocks:
    return {"run": run_line(r), "settings": settings(r), "needs": needs(r), "answer": answer(r)}


def settings(r: dict) -> str:
    s, shape = r["settings"], r["settings"]["shape"]
    return (
        f"{s['topology']}, {shape['dtype']}, T = {shape['T']:,}, batch {shape['B']}, "
        f"{shape['N']} heads of {shape['H']}; `Causal` wherever it is honoured."
    )


def compiled(r: dict) -> dict[str, dict]:
    """Those with both programs."""
    return {name: row for name, row in r["mechanisms"].items() if "error" not in row}


def megabytes(row: dict, mode: str) -> float:
    return row[mode]["temporaries"] / 1e6


def from_most(r: dict) -> list[str]:
    """Those with both programs, by the temporaries of the one with backward."""
    rows = compiled(r)
    return sorted(rows, key=lambda name: -megabytes(rows[name], MODES[1]))


def needs(r: dict) -> str:
    head = ["mechanism", *(f"{mode}, MB" for mode in MODES), "compiled in, s", "by a kernel"]
    rows = []
    for name, row in r["mechanisms"].items():
        if "error" in row:
            rows.append([name, row["error"], "", "", ""])
            continue
        seconds = sum(row[mode]["seconds"] for mode in MODES)
        kernel = "yes" if all(row[mode]["kernel"] for mode in MODES) else ""
        held = [f"{megabytes(row, mode):,.1f}" for mode in MODES]
        rows.append([name, *held, f"{seconds:.0f}", kernel])
    return table(head, rows)


def answer(r: dict) -> str:
    rows, names = r["mechanisms"], from_most(r)
    most = (f"`{name}` {megabytes(rows[name], MODES[1]):,.0f} MB" for name in names[:3])
    told = f"**{len(names)} of {len(rows)} mechanisms compile, forward and with backward.**"
    return f"{told} The most temporaries with backward: {', '.join(most) or 'none'}."
