"""The README's numbers, from results.json alone."""

from experiments.studies.record import Blocks, run_line, table

MODES = ("forward", "forward + backward")


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
    fine, every = compiled(r), r["mechanisms"]
    most = sorted(fine, key=lambda name: -megabytes(fine[name], MODES[1]))[:3]
    told = ", ".join(f"`{name}` {megabytes(fine[name], MODES[1]):,.0f} MB" for name in most)
    compile = f"**{len(fine)} of {len(every)} mechanisms compile, forward and with backward.**"
    return f"{compile} The most temporaries with backward: {told or 'none'}."
