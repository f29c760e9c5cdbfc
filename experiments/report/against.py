"""Each variant against the reference, which is the first: paired by seed, corrected for many."""

import dataclasses
import statistics

from experiments.report.stats import LEVEL, holm, paired


@dataclasses.dataclass(frozen=True)
class Against:
    """The mean difference over the seeds that both have, and p by a paired t test and Holm."""

    difference: float
    p: float
    seeds: int

    @property
    def tie(self) -> bool:
        return self.p >= LEVEL

    def text(self) -> str:
        """In points of accuracy."""
        p = "p < 0.001" if self.p < 0.001 else f"p {self.p:.2g}"
        what = f"{100 * self.difference:+.1f}, {p}"
        return f"tie ({what})" if self.tie else what


def against(scores: dict[str, dict[int, float]], step: float | None = None) -> dict[str, Against]:
    """`scores` are by variant and seed, the reference first, and multiples of `step`: 1 / n if they
    are out of n rows. A variant that shares fewer than two seeds with it is not there."""
    reference, *others = scores
    common = {name: sorted(scores[name].keys() & scores[reference].keys()) for name in others}
    differences = {
        name: [scores[name][seed] - scores[reference][seed] for seed in seeds]
        for name, seeds in common.items()
    }
    ps = {name: p for name, xs in differences.items() if (p := paired(xs, step)) is not None}
    return {
        name: Against(statistics.fmean(differences[name]), p, len(differences[name]))
        for name, p in holm(ps).items()
    }
