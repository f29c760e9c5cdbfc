"""Do two lists of accuracies put models in one order? Spearman's rho and Kendall's tau."""

from itertools import combinations
from statistics import fmean
from typing import Any

from scipy.stats import kendalltau, spearmanr

from experiments.errors import LabError
from experiments.studies.lra.published import ACCURACY


def agreement(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, Any]:
    """Over the models that both have; p are of no relation at all, two-sided. Without numbers where
    all are equal: they have no order."""
    names = [name for name in theirs if name in ours]
    a, b = [ours[n] for n in names], [theirs[n] for n in names]
    found: dict[str, Any] = {"models": len(names)}
    if min(len(set(a)), len(set(b))) > 1:
        for name, test in {"rho": spearmanr, "tau": kendalltau}.items():
            found |= {name: float(test(a, b).statistic), f"{name} p": float(test(a, b).pvalue)}
    return found


def by_seed(row: dict[str, Any]) -> dict[int, float]:
    """A model's accuracies."""
    return dict(zip(row["seeds"], row["accuracy"], strict=True))


def ranked(task: str, rows: dict[str, Any]) -> dict[str, Any]:
    """Our means against the paper's accuracies on this task and on average; and our seeds against
    each other, the most that anything could agree with them. Raises LabError without any."""
    means = {name: fmean(row["accuracy"]) for name, row in rows.items() if name in ACCURACY[task]}
    if not means:
        raise LabError(f"{task}: no model of the paper has a result, so there is nothing to rank")
    found = {name: by_seed(rows[name]) for name in means}
    seeds = sorted(set.intersection(*map(set, found.values())))
    each = [{name: accuracy[seed] for name, accuracy in found.items()} for seed in seeds]
    pairs = [x["rho"] for a, b in combinations(each, 2) if "rho" in (x := agreement(a, b))]
    return {
        "task": agreement(means, ACCURACY[task]),
        "average": agreement(means, ACCURACY["average"]),
        "between seeds": fmean(pairs) if pairs else None,
    }
