"""The README's numbers, from results.json alone."""

import math
from statistics import fmean
from typing import Any

from experiments.report.against import against
from experiments.report.stats import Score, interval, scored
from experiments.studies.lra.published import ACCURACY, MODERN
from experiments.studies.lra.ranks import by_seed
from experiments.studies.lra.runs import EQUAL_SIZE
from experiments.studies.record import Blocks, run_line, table

FIRST = "softmax"  # what others are compared with


def blocks(r: dict) -> Blocks:
    tasks = r["tasks"]
    return {
        "accuracy": "\n\n".join(f"{name}:\n\n{accuracy(name, x)}" for name, x in tasks.items()),
        "run": run_line(r),
        "settings": settings(r),
        "ladder": "\n".join(f"* {name}: {ladder(found)}." for name, found in tasks.items()),
        "ranks": ranks(tasks),
        "answer": "\n".join(answer(name, found) for name, found in tasks.items()),
    }


def settings(r: dict) -> str:
    tasks = r["tasks"]
    steps = ", ".join(f"{found['steps']:,} steps on {name}" for name, found in tasks.items())
    runs, seconds = (sum(found[key] for found in tasks.values()) for key in ("runs", "seconds"))
    missing = sum(len(found["without result"]) for found in tasks.values())
    return (
        f"{steps}; as many seeds as the table says, else one; {runs} different runs, "
        f"{missing} of them without a result; "
        f"{seconds / 60:.0f} minutes on a share of one core with compilation."
    )


def ordered(settings: dict[str, dict[str, Any]], task: str) -> list[str]:
    """The models with a result in any setting: the paper's best first, then the modern ones."""
    paper = ACCURACY[task]
    names = dict.fromkeys(name for rows in settings.values() for name in rows)
    return sorted(names, key=lambda name: (name in MODERN, -paper.get(name, 0)))


def accuracy(task: str, found: dict) -> str:
    settings, tested = found["settings"], found["test rows"]
    head = [
        "",
        "paper, at its lengths",
        *(word for key in settings for word in (key, "parameters")),
    ]
    lines = []
    for name in ordered(settings, task):
        line = [name, f"{ACCURACY[task][name]:.2f}" if name in ACCURACY[task] else ""]
        for key in settings:
            row = settings[key].get(name)
            if not row or (key == EQUAL_SIZE and not row["matched"]):
                line += ["the same" if row else "–", ""]
            else:
                line += [percent(row["accuracy"], tested), f"{row['parameters']:,}"]
        lines.append(line)
    return table(head, lines)


def differences(rows: dict[str, Any], tested: int) -> dict[str, str]:
    """Each against softmax, paired by seed, corrected for being many."""
    scores = {name: scored(by_seed(row), tested) for name, row in rows.items()}
    first = {FIRST: scores.pop(FIRST, {})}  # not the first in `rows`, if its first run failed
    return {name: found.text() for name, found in against(first | scores).items()}


def spread(values: list[float], rows: int) -> tuple[float, float]:
    """(mean, half width of its 95% interval): Student's over seeds; of one seed the binomial one of
    the test's rows, which does not know of seeds."""
    mean, half = interval([Score(x, rows) for x in values])
    return mean, 1.96 * math.sqrt(mean * (1 - mean) / rows) if half is None else half


def percent(values: list[float], rows: int) -> str:
    mean, half = spread(values, rows)
    many = f" ({len(values)} seeds)" if len(values) > 1 else ""
    return f"{100 * mean:.1f} ± {100 * half:.1f}{many}"


def ladder(found: dict) -> str:
    return ", ".join(f"{name} {100 * x:.1f}" for name, x in found["baselines"].items())


def ranks(tasks: dict) -> str:
    head = ["", "rho, the task", "tau, the task", "rho, the average", "tau, the average"]
    head += ["rho, our seeds"]
    lines = []
    for task, found in tasks.items():
        for key, agreed in found["ranks"].items():
            line = [f"{task}, {key}"]
            for other in ("task", "average"):
                line += [with_p(agreed[other], "rho"), with_p(agreed[other], "tau")]
            seeds = agreed["between seeds"]
            lines.append([*line, "" if seeds is None else f"{seeds:+.2f}"])
    return table(head, lines)


def with_p(agreed: dict, name: str) -> str:
    return f"{agreed[name]:+.2f} (p {agreed[f'{name} p']:.2g})" if name in agreed else "no order"


def answer(task: str, found: dict) -> str:
    """How the ranks agree; the best and the worst; who differs from softmax, where seeds tell."""
    parts = []
    for key, rows in found["settings"].items():
        agreed = found["ranks"][key]
        rho = [with_p(agreed[other], "rho") for other in ("task", "average")]
        text = f"* {task}, {key}: rho {rho[0]} with the paper's {task}, {rho[1]} with its average, "
        text += f"over {agreed['task']['models']} models"
        mean = {name: fmean(row["accuracy"]) for name, row in rows.items()}
        high, low = max(mean, key=mean.get), min(mean, key=mean.get)
        text += f"; from {low} {100 * mean[low]:.1f} to {high} {100 * mean[high]:.1f}"
        told = differences(rows, found["test rows"])
        tested = [f"{name} {x}" for name, x in told.items()]
        parts.append(text + ("; against softmax: " + ", ".join(tested) if tested else "") + ".")
    return "\n".join(parts)
