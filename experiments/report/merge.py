"""Several comparisons as one: what is alike is averaged, what is not gets a name of its own."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from experiments.gathered import is_of, machine
from experiments.records import timeless
from experiments.report.comparison import Comparison
from experiments.report.data import Cell, by_task, compared_with, together
from experiments.sweep import HASH, seedless, unlike
from experiments.validation import flat

Named = Mapping[str, Comparison]  # by a label that tells them apart


def apart(comparison: Comparison) -> Comparison:
    """The comparison with the runs of different machines as different variants."""
    return merged({"": comparison})


def merged(comparisons: Named) -> Comparison:
    """One comparison of all. Where runs of one variant are of several machines it is several,
    `softmax [machine]`; where its settings differ too, `softmax (label)` with the label of the
    first comparison that has them. A run that two of them hold of one machine counts once, finished
    if any has it finished; where the finished do not agree, the later one is a cell with an error.
    """
    comparisons = {label: _costs_told(x) for label, x in comparisons.items()}
    machines = {c.machine for x in comparisons.values() for c in x.cells if c.result}
    on, before = lambda cell: cell.variant, comparisons
    if several_machines := len(machines) > 1:
        brief = _brief({c.machine for x in comparisons.values() for c in x.cells})
        on = lambda cell: f"{cell.variant} [{brief[cell.machine] or 'unknown machine'}]"
        comparisons = {label: _renamed(x, on) for label, x in comparisons.items()}
    if len(comparisons) == 1:
        (one,) = comparisons.values()
        firsts = _firsts(one.cells, comparisons) if several_machines else {}
        return dataclasses.replace(one, compared=_tested(one.cells, firsts), firsts=firsts)
    intact = lambda x: [c for c in x.cells if is_of(c.name, c.config)]  # not edited, nor gone
    # by the names that do not tell machines apart: on another machine it would seem the same
    unlikes = unlike((c.variant, c.config) for x in before.values() for c in intact(x))
    several = {on(c) for x in before.values() for c in x.cells if c.variant in unlikes}
    parts, labels = {}, {}
    for label, one in comparisons.items():
        of = {c.variant: seedless(c.config) for c in intact(one)}
        known = lambda name: labels.setdefault((name, of.get(name, label)), label)
        own = lambda c: f"{c.variant} ({known(c.variant)})" if c.variant in several else c.variant
        parts[label] = _renamed(one, own)
    cells = tuple(_once(parts, several_machines))
    firsts = _firsts(cells, parts)
    said = lambda text: "\n".join(f"{label}: {text(x)}" for label, x in parts.items() if text(x))
    return Comparison(
        title=f"Comparisons: {', '.join(parts)}",
        about=said(lambda x: x.about),
        compared="\n".join(filter(None, (_tested(cells, firsts), _timed(parts)))),
        cells=cells,
        costs=_ordered(cells, [x.costs for x in parts.values()]),
        baselines=together({label: x.baselines for label, x in parts.items()}),
        environment=together({label: flat(x.environment) for label, x in parts.items()}),
        command="\n".join(x.command for x in parts.values()),
        dates=said(lambda x: x.dates).replace("\n", "; "),
        sights=_ordered(cells, [x.sights for x in parts.values()]),
        firsts=firsts,
    )


def _brief(machines: Collection[str]) -> dict[str, str]:
    """What tells each from the others: its cores alone where all have the same processor."""
    same = len({one.rpartition(", ")[0] for one in machines}) == 1
    return {one: one.rpartition(", ")[2] if same else one for one in machines}


def _costs_told(comparison: Comparison) -> Comparison:
    """It says where its costs were measured, if no run was trained there, as with --processes."""
    here, on = machine(comparison.environment), {c.machine for c in comparison.cells if c.result}
    known = sorted(on - {""})  # of a damaged record it is not
    told = f"Costs were measured on {here}; its runs trained on {' and '.join(known)}."
    if not (here and known and comparison.costs) or here in on or told in comparison.about:
        return comparison
    return dataclasses.replace(comparison, about=f"{comparison.about} {told}".strip())


def _ordered(cells: Sequence[Cell], found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What there is of each variant, in their order; of the first that has it."""
    kept = {name: value for one in reversed(found) for name, value in one.items()}
    return {cell.variant: kept[cell.variant] for cell in cells if cell.variant in kept}


def _firsts(cells: Sequence[Cell], comparisons: Named) -> dict[str, str]:
    """What each variant is compared with: the first of its task that its comparison has, or that
    of all where its comparison has it. One that is alone in its comparison is not there."""
    shown = by_task(cells)
    found: dict[str, str] = {}
    for comparison in comparisons.values():
        for task, own in by_task(comparison.cells).items():
            every = shown.get(task, [])
            names = [name for name in own if name in every]  # a copy counts under another's name
            if len(names) > 1:
                first = every[0] if every[0] in names else names[0]
                found |= {name: first for name in names if name not in found}
    return _on_own_machines(found, cells)


def _on_own_machines(firsts: Mapping[str, str], cells: Sequence[Cell]) -> dict[str, str]:
    """Each first as it ran on the machine of the variant that it is for, where it did."""
    ran = {c.variant: (seedless(c.config), c.machine) for c in cells if c.result}
    names = {one: name for name, one in reversed(ran.items())}  # of several the one that is first
    asked = {c.variant: seedless(c.config) for c in cells} | {x: one for x, (one, _) in ran.items()}

    def nearest(name: str, first: str) -> str:
        if name not in ran or (first in ran and ran[first][1] == ran[name][1]):
            return first
        return names.get((asked[first], ran[name][1]), first)

    return {name: nearest(name, first) for name, first in firsts.items()}


def _tested(cells: Sequence[Cell], firsts: Mapping[str, str]) -> str:
    """Which is compared with which, where that is not all with one; and what too few runs finished
    of for anything to be compared with it."""
    own = compared_with(cells, firsts)
    by = {first: [x for x in own if own[x] == first != x] for first in own.values()}
    by = {first: names for first, names in by.items() if names}
    done = {x: [c.result is not None for c in cells if c.variant == x] for x in by}
    few = [x for x in by if sum(done[x]) < 2 <= len(done[x])]
    told = [f"{', '.join(names)} against {x}" for x, names in by.items() if x not in few]
    within = "Compared within each comparison, on one machine where it can be"
    lines = [f"{within}: {'; '.join(told)}."] if told and len({*firsts.values()}) > 1 else []
    for x in few:
        what = f"of its {len(done[x])} runs {sum(done[x])} finished, and a test needs two"
        lines.append(f"Nothing is compared with {x}, the first: {what}.")
    return "\n".join(lines)


def _timed(comparisons: Named) -> str:
    """Whose variants took turns with whose, where that is not all with all."""
    timed: dict[str, str] = {}  # the first comparison that has a variant is the one that is shown
    for label, comparison in comparisons.items():
        timed |= {name: label for name in comparison.costs if name not in timed}
    by = {label: [name for name in timed if timed[name] == label] for label in timed.values()}
    told = "; ".join(f"{', '.join(names)} in {label}" for label, names in by.items())
    return f"Timed in turns within each comparison only: {told}." if len(by) > 1 else ""


def _renamed(comparison: Comparison, name: Callable[[Cell], str]) -> Comparison:
    """Costs go with the runs of the machine that they were measured on, if there are any."""
    here = machine(comparison.environment)
    elsewhere = here not in {cell.machine for cell in comparison.cells if cell.result}
    cells, costs, sights = [], {}, {}
    for cell in comparison.cells:
        own = cell.own or cell.variant
        cells.append(dataclasses.replace(cell, variant=name(cell), own=own))
        if cell.variant in comparison.costs and (elsewhere or cell.machine == here):
            costs[cells[-1].variant] = comparison.costs[cell.variant]
        if cell.variant in comparison.sights:
            sights[cells[-1].variant] = comparison.sights[cell.variant]
    return dataclasses.replace(comparison, cells=tuple(cells), costs=costs, sights=sights)


def _once(comparisons: Named, several_machines: bool) -> Iterator[Cell]:
    """A name ends with a hash of the settings, so a run of another machine has it too; one whose
    variant was called otherwise when it was begun has another name."""
    found: dict[tuple[str, str], list[tuple[str, Cell]]] = {}
    names: dict[tuple[str, str], str] = {}
    for label, comparison in comparisons.items():
        for cell in comparison.cells:
            where = cell.machine if several_machines else ""
            name = names.setdefault((cell.variant, cell.name[-HASH:]), cell.name)
            found.setdefault((name, where), []).append((label, cell))
    for copies in found.values():
        (first, kept), *others = [x for x in copies if x[1].result] or copies[:1]
        yield kept
        for label, cell in others:
            if timeless(cell.result) != timeless(kept.result):
                error = f"the same run as in {first}, with another outcome, so left out"
                name = f"{cell.name} ({label})"
                yield dataclasses.replace(cell, name=name, result=None, error=error)
