"""Where the curve of one contender crosses another's, and how each grows with the length."""

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from experiments.report.measurements import COPY, OURS, Row, label, told_apart
from experiments.report.plots import Curve
from experiments.report.powers import power


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
    """contender -> (lengths, values) of what was measured, the shortest first."""
    series: dict[str, Curve] = {}
    for row in sorted(rows, key=lambda row: row["T"]):  # a line is drawn from one to the next
        if row["mode"] == mode and row.get(key) and row["contender"] != COPY:
            steps, values = series.setdefault(row["contender"], ([], []))
            steps.append(row["T"])
            values.append(row[key] / MEASURED[key].per)
    return series


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
            amounts = [work[name, T] for T in steps]
            least = f" by work {power(steps, amounts)}" if all(amounts) else ""
            lengths = f"{min(steps):,}..{max(steps):,}"
            found.append(f"{label(name)} {power(steps, values)}{least} ({lengths})")
        if found:
            yield f"Time of {mode} grows as, ± 95% of the fit: {', '.join(found)}."


def gaps(ours: Curve, peer: Curve) -> list[tuple[float, float]]:
    """(T, log of ours / peer) at the lengths that both have."""
    values = dict(zip(*peer))
    both = [(t, x) for t, x in sorted(zip(*ours)) if t in values]
    return [(t, float(np.log(x / values[t]))) for t, x in both]


def within_noise(rows: Sequence[Row], mode: str, key: str) -> dict[str, set[int]]:
    """contender -> lengths at which attn and it are not told apart; bytes are exact."""
    if key != "minimum":
        return {}
    at = {(r["contender"], r["T"]): r for r in rows if r["mode"] == mode and r.get(key)}
    found: dict[str, set[int]] = {}
    for (name, T), peer in at.items():
        ours = at.get((OURS, T))
        if ours and name not in (OURS, COPY) and not told_apart(ours, peer):
            found.setdefault(name, set()).add(T)
    return found


def crossings(ours: Curve, peer: Curve, noisy: Collection[float] = ()) -> list[tuple[float, float]]:
    """(T, value) where the curves meet, straight between measured lengths in logarithms; not beside
    a length at which they are within noise, where they may meet or not."""
    found, values, every = [], dict(zip(*ours)), gaps(ours, peer)
    for (s, a), (t, b) in itertools.pairwise(x for x in every if x[1]):
        if (a < 0) != (b < 0) and not {s, t} & {*noisy}:
            equal = [(x, values[x]) for x, _ in every if s < x < t]
            found += equal or [(_meet(a, b, s, t), _meet(a, b, values[s], values[t]))]
    return found


def _meet(a: float, b: float, x: float, y: float) -> float:
    """Of what goes from x to y, in logarithms, where a gap that goes from a to b is 0."""
    part = a / (a - b)
    return float(np.exp((1 - part) * np.log(x) + part * np.log(y)))


def verdict(ours: Curve, peer: Curve, key: str, noisy: Collection[float] = ()) -> str:
    """`faster from T ≈ 730`, or `faster at every T, 512..16,384 (but within noise at 1,024)`;
    between two lengths, `from T ≈ 512..2,048`, where what is between them is within noise, or
    equal as bytes may be."""
    if not (every := gaps(ours, peer)):
        return "no length in common"
    known = [(t, gap) for t, gap in every if gap and t not in noisy]
    lengths = f"every T, {every[0][0]:,}..{every[-1][0]:,}"
    if not known:
        return f"{'within noise' if noisy else 'equal'} at {lengths}"
    listed = lambda some: ", ".join(f"{t:,}" for t in some)
    unknown = listed(t for t, _ in every if t in noisy)
    equal = listed(t for t, gap in every if not gap and t not in noisy)
    buts = [f"within noise at {unknown}"] * bool(unknown) + [f"equal at {equal}"] * bool(equal)
    but = f" (but {', '.join(buts)})" if buts else ""
    ends = MEASURED[key].less if known[-1][1] < 0 else MEASURED[key].more
    at = []
    for (s, a), (t, b) in itertools.pairwise(known):
        if (a < 0) != (b < 0):
            apart = any(s < x < t for x, _ in every)
            at.append(f"{s:,}..{t:,}" if apart else f"{_meet(a, b, s, t):,.0f}")
    if len(at) == 1:
        return f"{ends} from T ≈ {at[0]}{but}"
    if at:
        return f"curves cross at T ≈ {', '.join(at)}, {ends} beyond{but}"
    return f"{ends} at {lengths}{but}"


def crossovers(rows: Sequence[Row]) -> list[tuple[str, str, dict[str, str]]]:
    """(mode, "time" or "memory", peer -> verdict) for what was measured at several lengths."""
    out = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        for key, quantity in MEASURED.items():
            series = scaling(rows, mode, key)
            ours = series.pop(OURS, ([], []))
            noisy = within_noise(rows, mode, key)
            found = {
                label(name): verdict(ours, peer, key, noisy.get(name, ()))
                for name, peer in series.items()
            }
            if found and len(set(ours[0])) > 1:
                out.append((mode, quantity.name, found))
    return out
