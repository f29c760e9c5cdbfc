"""Runs made alike: sizes solved to match one quantity, and as many steps as a budget pays for.

Solved once for each variant and kept in DIR/alike.json: a time measured again would differ.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments import disk, records
from experiments.config import Experiment
from experiments.errors import ConfigError, RunDirectoryError
from experiments.fairness import Fairness
from experiments.lock import held_soon
from experiments.rundir import read_json
from experiments.say import say
from experiments.sweep import Planned, firsts
from experiments.validation import fingerprint, flat

NEAR = 0.02  # of the reference
FAR = " (as near as it gets)"
OVER = " (more than the budget)"
LARGEST = 2**20


def alike(sweep: Sequence[Planned], rules: Fairness, workdir: Path) -> list[Planned]:
    """The runs as `match` and `budget` make them; the first variant is the reference. Raises
    ConfigError for a variant that has no such quantity, RunDirectoryError for a damaged file."""
    if rules.match == "none" and not rules.budget:
        return list(sweep)
    first = sweep[0].experiment
    with held_soon(workdir, "alike", seconds=3600):
        kept = _kept(workdir / "alike.json")
        found: dict[str, dict[str, Any]] = {}
        for variant, planned in firsts(sweep).items():
            key = _key(planned, first, rules)
            if key not in kept:
                if _timed(rules):  # which may take minutes
                    say(f"timing steps of {variant}")
                made = _fields(planned, first, rules, found.get(sweep[0].variant))
                kept[key] = records.sealed(made, {"of": key})
                disk.write_json(workdir / "alike.json", kept)
            found[variant] = kept[key]
        solved = [found[planned.variant] for planned in sweep]
    return [p.having(x["fields"], **x["notes"]) for p, x in zip(sweep, solved)]


def untimed(sweep: Sequence[Planned], rules: Fairness, workdir: Path) -> bool:
    """Whether `alike` would time steps, which must be done where they are trained."""
    if not _timed(rules):
        return False
    kept = _kept(workdir / "alike.json")
    return any(_key(p, sweep[0].experiment, rules) not in kept for p in firsts(sweep).values())


def _timed(rules: Fairness) -> bool:
    return rules.match == "step_time" or "seconds" in rules.budget


def _key(planned: Planned, first: Experiment, rules: Fairness) -> str:
    two = f"{fingerprint(first)} {fingerprint(planned.experiment)}"
    return f"{two} {planned.match} {rules}"


def missed(planned: Sequence[Planned], rules: Fairness) -> list[str]:
    """A line for each variant that misses its match by more than NEAR, shown before training."""
    notes = {p.variant: p.notes.get("matched", "") for p in planned}
    return [f"{v}: {rules.match} not matched: {x}" for v, x in notes.items() if x.endswith(FAR)]


def _kept(path: Path) -> dict[str, dict[str, Any]]:
    """What was solved before. Raises RunDirectoryError if it is not as it was written: runs would
    have sizes that the notes beside them deny."""
    why = "damaged, edited, or of another version"
    try:
        kept = read_json(path) or {}
        if all(records.is_sealed(x, {"of": key}) for key, x in kept.items()):
            return kept
    except RunDirectoryError as error:
        why = str(error).removeprefix(f"{path} ")
    except (KeyError, AttributeError):
        pass
    raise RunDirectoryError(
        f"{path} is not as it was written: {why}\n"
        "  put it back, or remove it: sizes and steps are solved again; those that you choose "
        "belong in sweep(), without match and budget"
    )


def _fields(
    planned: Planned, first: Experiment, rules: Fairness, of_first: dict[str, Any] | None
) -> dict[str, Any]:
    """What is changed in a variant, and what a table says of it; `of_first` is that of the first
    variant, None for itself."""
    fields, notes = {}, {}
    if rules.budget.keys() - {"steps"}:  # it sets steps of whole calls, and such are timed
        planned = dataclasses.replace(planned, experiment=_in_whole_calls(planned.experiment))
        first = _in_whole_calls(first)
    if rules.match != "none" and first.posed.head in ("classification", "dual"):
        # what is solved may be the width of its hidden layer too, and a head of three units learns
        # nothing whatever is before it
        from attn.nn.head import hidden_width  # Flax, only where it is needed

        fields["model.head_width"] = hidden_width(first.model)
    if rules.match != "none" and planned.experiment != first:
        name = planned.match or rules.solved
        value, off = matched(planned.having(fields), first, rules.match, name)
        fields[name] = value
        far = "" if abs(off) <= NEAR else FAR
        notes["matched"] = f"{name.rpartition('.')[2]}={value}, {off:+.1%}{far}"
    for kind, amount in rules.budget.items():
        made = planned.having(fields).experiment
        if kind == "seconds" and of_first:  # as many as take as long in turns
            steps = of_first["fields"]["train.steps"] / _ratios(first, "step_time")(made)
            beyond = of_first["notes"]["steps"].endswith(OVER)
        else:
            steps, beyond = amount / _of_a_step(made, kind), False
        over = OVER if beyond or steps < 1 else ""
        steps = max(1, int(steps))
        if kind != "steps" and steps > (call := made.train.together):
            steps -= steps % call  # else variants would make more or fewer of them in one
        fields["train.steps"], notes["steps"] = steps, f"{steps:,}{over}"
    return {"fields": fields, "notes": notes}


def matched(planned: Planned, first: Experiment, quantity: str, name: str) -> tuple[int, float]:
    """The value of a field that brings a quantity nearest to that of `first`, and how near."""
    from attn.nn.config_rules import TURNED  # Flax, only where it is needed

    model = planned.experiment.model
    by_width = name == "model.width" and model.head_dim is None
    unit = model.heads if by_width else 1
    if by_width or name == "model.head_dim":
        unit *= max(m.parts for m in model.attentions)
        unit *= 2 if model.positions in TURNED else 1  # they turn pairs
    try:
        ratio = _ratios(first, quantity)
        at = lambda n: ratio(planned.having({name: n * unit}).experiment)
        # a model without an MLP may stay one
        value, near = solve(at, least=0 if flat(planned.config).get(name) == 0 else 1)
        if quantity == "step_time":
            near = at(value)  # of several noisy ones the nearest is nearer than it is
    except TypeError as error:
        what = f"{planned.variant} has no {quantity} to match by {name}: {error}"
        raise ConfigError([what], "match") from None
    except ConfigError as error:  # of a field that nobody wrote
        solved = f"match solves {name} unless its dict in sweep() names another as 'match'"
        raise ConfigError(error.problems, f"{error.where} ({solved})") from None
    return value * unit, near - 1


def solve(ratio: Callable[[int], float], least: int = 1) -> tuple[int, float]:
    """The integer from `least` at which an increasing ratio is nearest to 1, and the ratio there.
    Raises TypeError for one that never changes."""
    low, high = least, 64
    seen = {n: ratio(n) for n in (low, high)}
    while seen[high] < 1 and high < LARGEST:
        low, high = high, 2 * high
        seen[high] = ratio(high)
    halve = False
    while high - low > 1 and min(abs(x - 1) for x in seen.values()) > NEAR / 10:
        share = 0.5 if halve else (1 - seen[low]) / ((seen[high] - seen[low]) or 1)
        middle = min(max(low + round(share * (high - low)), low + 1), high - 1)
        seen[middle] = ratio(middle)
        low, high = (middle, high) if seen[middle] < 1 else (low, middle)
        halve = not halve
    if len({*seen.values()}) == 1:  # the least value would be taken: a learning rate of 1
        raise TypeError("it is the same with any; name another as 'match' in its dict in sweep()")
    best = min(seen, key=lambda n: abs(seen[n] - 1))
    return best, seen[best]


def _ratios(first: Experiment, quantity: str) -> Callable[[Experiment], float]:
    from experiments import quantities  # Flax, only where it is needed

    if quantity == "step_time":
        reference = quantities.Step(first)

        def slower(experiment: Experiment) -> float:
            mine, its = quantities.milliseconds(quantities.Step(experiment), reference)
            return mine / its

        return slower

    def measure(experiment: Experiment) -> float:
        if (found := getattr(quantities, quantity)(experiment)) is None:
            raise TypeError(quantities.no_state(experiment))
        return found

    reference = measure(first)
    return lambda experiment: measure(experiment) / reference


def _in_whole_calls(experiment: Experiment) -> Experiment:
    """With as many steps as lie between evaluations, of which a call makes the most it can."""
    train = dataclasses.replace(experiment.train, steps=experiment.train.eval_every)
    return dataclasses.replace(experiment, train=train)


def _of_a_step(experiment: Experiment, kind: str) -> float:
    """What one step takes of a budget."""
    from experiments import quantities

    match kind:
        case "steps":
            return 1
        case "tokens":
            return quantities.tokens(experiment)
        case "flops":
            try:
                return quantities.flops(experiment)
            except TypeError as error:
                raise ConfigError([f"a budget of flops has no number of steps: {error}"]) from None
    return quantities.milliseconds(quantities.Step(experiment))[0] / 1e3
