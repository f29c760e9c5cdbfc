"""Each variant against the reference, which is the first: paired by seed and row, corrected for
many."""

import dataclasses
import statistics
from collections.abc import Mapping

from experiments.report.stats import LEVEL, Score, holm, paired


@dataclasses.dataclass(frozen=True)
class Against:
    """The mean difference over the `seeds` that both have, of the `most` that one of them has, and
    p by `paired` and Holm."""

    difference: float
    p: float
    seeds: int
    most: int

    @property
    def tie(self) -> bool:
        return self.p >= LEVEL

    def text(self) -> str:
        """In points of accuracy."""
        p = "p < 0.001" if self.p < 0.001 else f"p {self.p:.2g}"
        if not self.tie and p == f"p {LEVEL}":  # rounded, it would be one of a tie
            p = f"p < {LEVEL}"
        what = f"{100 * self.difference:+z.1f}, {p}"
        if self.seeds < self.most:  # so it is not the difference of their means
            what += f", over {self.seeds} seeds"
        return f"tie ({what})" if self.tie else what


def against(scores: dict[str, dict[int, Score]]) -> dict[str, Against]:
    """`scores` are by variant and seed, the reference first. A variant that shares fewer than two
    seeds with it is not there."""
    return corrected(tested(scores))


def tested(scores: dict[str, dict[int, Score]]) -> dict[str, Against]:
    """`against`, not corrected yet."""
    reference, *others = scores
    found = {}
    for name in others:
        common = sorted(scores[name].keys() & scores[reference].keys())
        a, b = ([scores[of][seed] for seed in common] for of in (reference, name))
        if (p := paired(a, b)) is not None:
            difference = statistics.fmean(y.accuracy - x.accuracy for x, y in zip(a, b))
            most = max(len(scores[name]), len(scores[reference]))
            found[name] = Against(difference, p, len(common), most)
    return found


def corrected(found: Mapping[str, Against]) -> dict[str, Against]:
    """For there being so many, whichever reference each is tested against."""
    ps = holm({name: one.p for name, one in found.items()})
    return {name: dataclasses.replace(found[name], p=p) for name, p in ps.items()}
