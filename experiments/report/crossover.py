"""Where the curve of one contender crosses another's, and how each grows with the length."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from experiments.report.measurements import COPY, OURS, Row
from experiments.report.plots import Curve


@dataclasses.dataclass(frozen=True)
class Quantity:
    """What is compared along lengths, and what its lesser and its greater are called."""

    name: str
    unit: str
    per: float
    less: str
    more: str


MEASURED = {
    "minimum": Quantity("time", "ms", 1.0, "faster", "slower"),
    "temporary_bytes": Quantity("memory", "temporary MB", 1e6, "smaller", "larger"),
}


def scaling(rows: Sequence[Row], mode: str, key: str) -> dict[str, Curve]:
    """contender -> (lengths, values) of what was measured."""
    series: dict[str, Curve] = {}
    for row in rows:
        if row["mode"] == mode and row.get(key) and row["contender"] != COPY:
            steps, values = series.setdefault(row["contender"], ([], []))
            steps.append(row["T"])
            values.append(row[key] / MEASURED[key].per)
    return series


def exponent(lengths: Sequence[float], values: Sequence[float]) -> float | None:
    """p of the power law T^p through the points, by least squares in logarithms."""
    if len(lengths) < 2:
        return None
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


# below it a call's fixed cost counts, if there are lengths enough beyond
ASYMPTOTIC = 2048


def exponents(rows: Sequence[Row]) -> Iterator[str]:
    """A sentence on how the time of each contender grows, and the work that its formula counts."""
    for mode in dict.fromkeys(row["mode"] for row in rows):
        here = [row for row in rows if row["mode"] == mode]
        work, found = {(row["contender"], row["T"]): row.get("work") for row in here}, []
        for name, curve in scaling(here, mode, "minimum").items():
            far = [point for point in zip(*curve) if point[0] >= ASYMPTOTIC]
            steps, values = zip(*far) if len(far) > 2 else curve
            if len(set(steps)) < 3:
                continue
            p, amounts = exponent(steps, values), [work[name, T] for T in steps]
            least = f" by work T^{exponent(steps, amounts):.2f}" if all(amounts) else ""
            found.append(f"{name} T^{p:.2f}{least} ({min(steps):,}..{max(steps):,})")
        if found:
            yield f"Time of {mode} grows as: {', '.join(found)}."


def gaps(ours: Curve, peer: Curve) -> list[tuple[float, float]]:
    """(T, log of ours / peer) at the lengths that both have."""
    values = dict(zip(*peer))
    both = [(t, x) for t, x in sorted(zip(*ours)) if t in values]
    return [(t, float(np.log(x / values[t]))) for t, x in both]


def crossings(ours: Curve, peer: Curve) -> list[tuple[float, float]]:
    """(T, value) where the curves meet, straight between measured lengths in logarithms."""
    found = []
    for (s, a), (t, b) in itertools.pairwise(gaps(ours, peer)):
        if (a < 0) != (b < 0):
            part = a / (a - b)
            values = dict(zip(*ours))
            between = lambda x, y: float(np.exp((1 - part) * np.log(x) + part * np.log(y)))
            found.append((between(s, t), between(values[s], values[t])))
    return found


def verdict(ours: Curve, peer: Curve, key: str) -> str:
    """`faster from T ≈ 730`, or `faster at every T, 512..16,384`."""
    found, at = gaps(ours, peer), crossings(ours, peer)
    if not found:
        return "no length in common"
    ends = MEASURED[key].less if found[-1][1] < 0 else MEASURED[key].more
    where = ", ".join(f"{t:,.0f}" for t, _ in at)
    if len(at) == 1:
        return f"{ends} from T ≈ {where}"
    if at:
        return f"curves cross at T ≈ {where}, {ends} beyond"
    return f"{ends} at every T, {found[0][0]:,}..{found[-1][0]:,}"


def crossovers(rows: Sequence[Row]) -> list[tuple[str, str, dict[str, str]]]:
    """(mode, "time" or "memory", peer -> verdict) for what was measured at several lengths."""
    out = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        for key, quantity in MEASURED.items():
            series = scaling(rows, mode, key)
            ours = series.pop(OURS, ([], []))
            found = {name: verdict(ours, peer, key) for name, peer in series.items()}
            if found and len(set(ours[0])) > 1:
                out.append((mode, quantity.name, found))
    return out
