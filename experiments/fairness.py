"""What a comparison's config file says beside its runs, to make them fair.

match = "params"                                    # sizes as near the first's as they get
budget = {"tokens": 1e6}                            # how long each trains
search = {"optimizer.learning_rate": [1e-3, 3e-3]}  # chosen for each variant, on validation

Every combination of the lists is tried, or as many `trials` as optuna draws, also from ranges:

search = {"optimizer.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
trials = 20
"""

import dataclasses
import difflib
import inspect
import json
import math
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Discriminator, Field, Tag

from experiments.config import Count, Positive, record
from experiments.errors import ConfigError
from experiments.mistakes import describe, one_each
from experiments.validation import plain


def _apart(values: list) -> list:
    if twice := [x for n, x in enumerate(values) if x in values[:n]]:
        raise ValueError(f"expected values that differ, got {twice[0]!r} twice")
    return values


def _plain(value: Any) -> Any:
    finite = not isinstance(value, float) or math.isfinite(value)
    if not isinstance(value, bool | int | float | str | None) or not finite:
        raise ValueError(f"expected a number, a text, True, False or None, got {value!r}")
    return value


Value = Annotated[bool | int | float | str | None, pydantic.BeforeValidator(_plain)]
Values = Annotated[list[Value], Field(min_length=2), pydantic.AfterValidator(_apart)]


@record
class Range:
    """From `low` to `high`, both included; of whole numbers where both are whole. `log`: as likely
    between 1 and 10 as between 10 and 100."""

    low: float | int  # in this order, or a text would be told to be no integer
    high: float | int
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"high: expected more than low={self.low}, got {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low: expected more than 0 with log=True, got {self.low}")


def _kind(value: Any) -> str:
    return "range" if isinstance(value, dict | Range) else "list of values"


Searched = Annotated[
    Annotated[Values, Tag("list of values")] | Annotated[Range, Tag("range")], Discriminator(_kind)
]


@record
class Fairness:
    """`match`: the quantity that sizes are solved for; the head keeps the first's width. `budget`:
    an amount of one kind. Times are those of steps on as many cores as a run has, with nothing else
    running. `search`: what is tried for each field, in every combination or in as many `trials` as
    optuna draws, but none that says what is asked; with a match, or a budget not in steps, only
    fields that change neither sizes nor a step's work."""

    match: Literal["none", "params", "flops", "state_bytes", "step_time"] = "none"
    budget: Annotated[
        dict[Literal["steps", "tokens", "flops", "seconds"], Positive], Field(max_length=1)
    ] = dataclasses.field(default_factory=dict)
    search: dict[str, Searched] = dataclasses.field(default_factory=dict)
    # not shown, for sizes are solved alike whatever it is
    trials: Count | None = dataclasses.field(default=None, repr=False)

    @property
    def solved(self) -> str:
        """The field that `match` solves, unless the sweep names another."""
        return "model.head_dim" if self.match == "state_bytes" else "model.mlp_width"

    @property
    def told(self) -> str:
        """A sentence for the report; empty if nothing is made alike."""
        lines = [] if self.match == "none" else [f"{self.match} matched to the first variant's"]
        lines += [f"a budget of {amount:,.10g} {kind}" for kind, amount in self.budget.items()]
        lines += [f"{name} searched {_among(x)}" for name, x in self.search.items()]
        lines += [f"{self.trials} trials drawn for each variant"] if self.trials else []
        return f"Made alike: {'; '.join(lines)}." if lines else ""

    def __post_init__(self) -> None:
        if self.trials and not self.search:
            raise ValueError("trials: expected a search to draw them from, got none")
        settled = self.match != "none" or self.budget.keys() - {"steps"}
        free = lambda name: not settled or name.startswith("optimizer.") or name == "model.dropout"
        for name in self.search:
            if name == "seed":
                raise ValueError("search: expected no seed, for trials have one of their own")
            if name.partition(".")[0] in ("task", "objective", "mask_rate"):
                raise ValueError(
                    "search: expected no field of task, no objective and no mask_rate, for each "
                    f"variant would answer the questions that are easiest for it, got {name}"
                )
            if not free(name) or (self.budget and name == "train.steps"):
                raise ValueError(
                    "search: expected fields of the optimizer or model.dropout beside match or "
                    f"budget, which settle sizes and steps before anything is tried, got {name}"
                )
        ranges = [name for name, x in self.search.items() if isinstance(x, Range)]
        if ranges and self.trials is None:
            what = f"how many to draw from the range of {ranges[0]}"
            raise ValueError(f"trials: expected {what}, got none")


def _among(tried: list | Range) -> str:
    if isinstance(tried, Range):
        return f"from {tried.low} to {tried.high}" + (" by its logarithm" if tried.log else "")
    return f"among {', '.join(map(str, tried))}"


def fairness(names: dict[str, Any], where: str) -> Fairness:
    """The rules among the names that a file defines. Raises ConfigError with all that is wrong."""
    problems = _misspelt(names)
    given = {f.name: names[f.name] for f in dataclasses.fields(Fairness) if f.name in names}
    given = plain(given, where)
    try:
        # as JSON, for there pydantic's strict mode takes a dict for a dataclass
        rules = pydantic.TypeAdapter(Fairness).validate_json(json.dumps(given, default=repr))
    except pydantic.ValidationError as error:
        found = one_each(error.errors(include_url=False))
        problems += [line for x in found for line in describe(x, given)]
    if problems:
        raise ConfigError(problems, where)
    return rules


def kept(rules: dict[str, Any]) -> Fairness:
    """The rules that a comparison was begun with; none if they were edited since."""
    try:
        return fairness(rules, "sweep.json")
    except ConfigError:
        return Fairness()


def _misspelt(names: dict[str, Any]) -> list[str]:
    """A line for each value whose name is nearly that of a rule: left out, it would be unfair."""
    rules, found = [f.name for f in dataclasses.fields(Fairness)], []
    for name, value in names.items():
        if name in rules or name.startswith("_") or callable(value) or inspect.ismodule(value):
            continue
        for rule in difflib.get_close_matches(name, rules, n=1, cutoff=0.8):
            found.append(f"{name}: no rule; did you mean {rule!r}? (else name it _{name})")
    return found
