"""Part 5's runs: which tasks, with how many heads, and what is kept of each."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.stdout import tell
from experiments.studies.heads.relations import FIRST, Task, maps, score, train

RATES = (3e-3, 1e-2, 3e-2)  # each number of heads is judged at its own best of these
CASES = {
    "two relations": (Task(), (1, 2, 4)),
    "one relation": (Task(relations=(3,)), (1, 2, 4)),
    "marked values": (Task(marked=True), (1, 2)),
    "joint answer": (Task(joint=True), (1, 2)),
}


def measure(seeds: int, steps: int) -> tuple[dict, dict]:
    """(results, maps): maps[heads] is (before, after) of the first seed on two relations."""
    results, drawn = {}, {}
    for name, (task, counts) in CASES.items():
        results[name] = {}
        for heads in counts:
            first, last, losses = train(
                jnp.arange(seeds), jnp.array(RATES), task=task, heads=heads, steps=steps
            )
            found = jax.device_get(score(last, task=task, heads=heads))
            best = int(found["loss"].mean(1).argmin())
            row = kept(found, np.asarray(losses), best)
            if name == "two relations":
                tokens, _ = task.batch(jax.random.key(1), 256)
                of = lambda p: np.asarray(
                    maps(jax.tree.map(lambda x: x[best, 0], p), tokens, task=task, heads=heads)
                )
                drawn[heads] = of(first), of(last)
                row["parameters"] = sum(x[0, 0].size for x in jax.tree.leaves(last))
                row["weights"] = [back(a) for a in drawn[heads][1]]
            results[name][str(heads)] = row
            tell(f"{name}, {heads} heads: all right {row['all']}, at rate {row['rate']}")
    return results, drawn


def kept(found: dict, losses, best: int) -> dict:
    """At the best rate: one number a seed, and the course of the training loss."""
    points = np.array_split(losses[best], min(50, losses.shape[-1]), axis=1)
    curves = np.stack([x.mean(1) for x in points], 1)  # [seeds, points]
    each = found["each"][best]
    return {
        "rate": RATES[best],
        "loss": found["loss"][best].tolist(),
        "all": found["all"][best].tolist(),
        "all, at any rate": float(found["all"].max()),
        "each": None if np.isnan(each).any() else each.tolist(),
        "curve": {n: getattr(curves, n)(0).tolist() for n in ("mean", "min", "max")},
    }


def back(matrix) -> dict[str, float]:
    """The mean weight that asked positions give to the tokens one and three before them."""
    return {str(r): float(np.diagonal(matrix, -r)[FIRST - r :].mean()) for r in (1, 3)}
