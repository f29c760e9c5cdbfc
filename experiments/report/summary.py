"""The ratios of a benchmark in one table over shapes and modes."""

import dataclasses
from collections.abc import Sequence

from experiments.report.measurements import COPY, OURS, PLAIN, Row, groups, label, ratio, told_apart
from experiments.report.table import number

# what tells groups apart: heading -> text; those that never change are left out
SHAPE = {
    "dtype": lambda row: row["dtype"],
    "heads": lambda row: f"{row['heads']}/{row['kv_heads']}",
    "width": lambda row: f"{row['width']}",
    "T": lambda row: f"{row['T']:,}",
    "mode": lambda row: row["mode"],
}
SHARES = {"% of peak": "peak_share", "% of copy": "copy_share"}
NOISE = " ~"  # after a ratio of times that are not told apart
TARGET = 1.3  # of plain causal attention, for a mask or an option


@dataclasses.dataclass(frozen=True)
class Summary:
    headings: list[str]
    cells: list[list[str]]
    slow: list[set[int]]  # of each row, the cells that are past what is aimed at


def summary(rows: Sequence[Row]) -> Summary | None:
    """ours / peer for every peer, or variant / plain; None where nothing is compared."""
    names = list(dict.fromkeys(r["contender"] for r in rows if r["contender"] != COPY))
    base = PLAIN if PLAIN in names else OURS
    others = [name for name in names if name != base]
    if base not in names or not others:
        return None
    every = list(groups(rows))
    told = {k: f for k, f in SHAPE.items() if len({f(g[0]) for g in every}) > 1} or {
        "T": SHAPE["T"]
    }
    timed = [{r["contender"]: r for r in group if not r["why"]} for group in every]
    shares = {k: key for k, key in SHARES.items() if any(t.get(base, {}).get(key) for t in timed)}
    holding = [x for x in others if any(t.get(x, {}).get("temporary_bytes") for t in timed)]
    held = [base, *holding[:1]] if base == OURS else []
    cells, slow = [], []
    for group, found in zip(every, timed):
        ours = found.get(base, {})
        row = [text(group[0]) for text in told.values()] + [number(ours.get("minimum"))]
        row += [_scaled(ours, key, 0.01) for key in shares.values()]
        past = set()
        for name in others:
            value = _ratio(found, group, name, base)
            noise = "" if value is None or told_apart(found[name], ours) else NOISE
            if value and not noise and value > (TARGET if base == PLAIN else 1):
                past.add(len(row))
            why = next((r["why"] for r in group if r["contender"] == name), "")
            short = why.partition(":")[0].partition(",")[0] or "—"
            row.append(f"{number(value)}{noise}" if value else short)
        cells.append(row + [_scaled(found.get(name, {}), "temporary_bytes", 1e6) for name in held])
        slow.append(past)
    compared = [name if base == PLAIN else f"/ {label(name)}" for name in others]
    memory = [f"MB, {label(name)}" for name in held]
    return Summary([*told, f"{base} ms", *shares, *compared, *memory], cells, slow)


def _ratio(found: dict[str, Row], group: Sequence[Row], name: str, base: str) -> float | None:
    value = ratio(found[name], group, base) if name in found else None
    return 1 / value if value and base == PLAIN else value


def _scaled(row: Row, key: str, per: float) -> str:
    return number(row[key] / per) if row.get(key) else "—"


def sharing(rows: Sequence[Row]) -> list[str]:
    """How much faster fewer key heads decode, as sentences."""
    out = []
    decoded = [r for r in rows if r["mode"] == "decode" and not r["why"]]
    shape = lambda r: (r["contender"], r["dtype"], r["width"], r["T"], r["heads"])
    for key in dict.fromkeys(map(shape, decoded)):
        took = {r["kv_heads"]: r["minimum"] for r in decoded if shape(r) == key}
        most = max(took)
        fewer = sorted(took.keys() - {most}, reverse=True)
        times = [f"{took[most] / took[K]:.2g}x with {K}" for K in fewer]
        if times and key[0] != COPY:
            name, dtype, width, T, N = key
            where = f"{dtype}, width {width}, T = {T:,}"
            told = f"{name}, {N} heads, {where}: faster than with {most} key heads by "
            out.append(f"{told}{', '.join(times)}.")
    return out
