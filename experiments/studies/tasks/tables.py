"""The README's numbers, from results.json alone."""

from statistics import fmean

from experiments.studies.record import Blocks, run_line, spread, table
from experiments.studies.tasks.runs import CONFIGS
from experiments.words import plural

ZOO = "zoo"  # many models of one task: a list of its own


def blocks(r: dict) -> Blocks:
    return {
        "tasks": tasks(r["configs"]),
        "zoo": zoo(r["configs"]),
        "seeds": seeds(r["configs"]),
        "settings": settings(r),
        "run": run_line(r),
    }


def tasks(configs: dict) -> str:
    """A row for each config."""
    head = ["config", "without learning, %", "test rows", "test accuracy, %"]
    rows = [
        [f"`{name}`", ladder(found["baselines"]), f"{found['test rows']:,}", scores(found)]
        for name, found in configs.items()
        if name != ZOO
    ]
    return table(head, rows)


def ladder(baselines: dict) -> str:
    return ", ".join(f"{name} {100 * x:.1f}" for name, x in baselines.items()) or "–"


def scores(found: dict) -> str:
    models = found["models"].items()
    return "; ".join(f"{name} {_bold(spread(row['accuracy']))}" for name, row in models) or "–"


def _bold(score: str) -> str:
    """The mean, not its range."""
    mean, blank, seeds = score.partition(" ")
    return f"**{mean}**{blank}{seeds}"


def zoo(configs: dict) -> str:
    """The mean of each model's seeds."""
    if ZOO not in configs:
        return "Not run."
    models = configs[ZOO]["models"]
    mean = {name: 100 * fmean(row["accuracy"]) for name, row in models.items()}
    return ", ".join(f"{name} {mean[name]:.1f}" for name in ordered(models)) + "."


def ordered(models: dict) -> list[str]:
    """From the worst to the best."""
    return sorted(models, key=lambda name: fmean(models[name]["accuracy"]))


def seeds(configs: dict) -> str:
    """How far apart the lowest and the highest seed of a model are, in points."""
    apart = {
        f"`{config}` {name}": 100 * (max(row["accuracy"]) - min(row["accuracy"]))
        for config, found in configs.items()
        for name, row in found["models"].items()
        if len(row["accuracy"]) > 1
    }
    near, far = sum(x < 1 for x in apart.values()), sum(x > 5 for x in apart.values())
    widest = sorted(apart, key=apart.get, reverse=True)[:5]
    return (
        f"Models with several seeds: {len(apart)}. Their lowest and highest seed are less than one "
        f"point apart in {near}, more than five in {far}. The widest: "
        f"{', '.join(f'{name} by {apart[name]:.1f}' for name in widest) or '–'}."
    )


def settings(r: dict) -> str:
    s, configs = r["settings"], r["configs"].values()
    rows = [row for found in configs for row in found["models"].values()]
    runs = sum(len(row["accuracy"]) for row in rows)
    minutes = sum(sum(row["seconds"]) for row in rows) / 60
    return (
        f"{len(configs)} of the {len(CONFIGS)} configs; {plural(s['seeds'], 'seed')} of each; "
        f"{runs} runs with a result, "
        f"{len(r['without result'])} without; {minutes:,.0f} minutes of training with compilation."
    )
