"""What a comparison's config file says beside its runs, to make them fair.

match = "params"                                    # sizes alike, within 2% of the first variant
budget = {"tokens": 1e6}                            # how long each trains
search = {"optimizer.learning_rate": [1e-3, 3e-3]}  # chosen for each variant, on validation
"""

import dataclasses
import json
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from experiments.config import Positive, record
from experiments.errors import ConfigError
from experiments.mistakes import describe, one_each

Values = Annotated[list[bool | int | float | str], Field(min_length=2)]


@record
class Fairness:
    """`match`: the quantity that sizes are solved for. `budget`: an amount of one kind. `search`:
    the values that are tried for each field, in every combination."""

    match: Literal["none", "params", "flops", "state_bytes", "step_time"] = "none"
    budget: Annotated[
        dict[Literal["steps", "tokens", "flops", "seconds"], Positive], Field(max_length=1)
    ] = dataclasses.field(default_factory=dict)
    search: dict[str, Values] = dataclasses.field(default_factory=dict)


def fairness(names: dict[str, Any], where: str) -> Fairness:
    """From the names that a config file defines. Raises ConfigError with all that is wrong."""
    given = {f.name: names[f.name] for f in dataclasses.fields(Fairness) if f.name in names}
    try:
        # as JSON, for there pydantic's strict mode takes a dict for a dataclass
        return pydantic.TypeAdapter(Fairness).validate_json(json.dumps(given, default=repr))
    except pydantic.ValidationError as error:
        found = one_each(error.errors(include_url=False))
        raise ConfigError([line for x in found for line in describe(x, given)], where) from None
