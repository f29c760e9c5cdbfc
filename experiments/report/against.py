"""Each variant against the reference, which is the first: paired by seed and row, corrected for
many."""

import dataclasses
import statistics

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
    reference, *others = scores
    ps, differences = {}, {}
    for name in others:
        common = sorted(scores[name].keys() & scores[reference].keys())
        a, b = ([scores[of][seed] for seed in common] for of in (reference, name))
        if (p := paired(a, b)) is not None:
            ps[name], differences[name] = p, [y.accuracy - x.accuracy for x, y in zip(a, b)]
    most = lambda name: max(len(scores[name]), len(scores[reference]))
    return {
        name: Against(statistics.fmean(differences[name]), p, len(differences[name]), most(name))
        for name, p in holm(ps).items()
    }
