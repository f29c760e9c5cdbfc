"""What the study is told by its config file: the mixers, with their settings at each length."""

import dataclasses
import json
from collections.abc import Sequence

import pydantic

from experiments import config_file, mistakes
from experiments.config import Count, OneMechanism, name_of, record
from experiments.errors import ConfigError


@record
class At:
    """The mixers, settings and all, that are measured at one length."""

    length: Count
    mixers: tuple[OneMechanism, ...]

    def named(self) -> dict:
        return {name_of(mixer): mixer for mixer in self.mixers}


@record
class Settings:
    """`work` is counted and not run, at long lengths; `reach` is computed, at short ones, by the
    Jacobians of `draws` random inputs. With `causal`, what can be causal is."""

    work: tuple[At, ...]
    reach: tuple[At, ...]
    heads: Count = 4
    head_dim: Count = 16
    causal: bool = False
    draws: Count = 2

    def __post_init__(self) -> None:
        wrong = []
        for field in ("work", "reach"):
            places = getattr(self, field)
            lengths = [at.length for at in places]
            if len(lengths) < 2 or sorted(set(lengths)) != lengths:
                wrong.append(f"{field}: expected two or more rising lengths, got {lengths}")
            if any(len(at.named()) < len(at.mixers) for at in places):
                wrong.append(f"{field}: expected each mixer once at each length")
        if len({tuple(at.named()) for at in (*self.work, *self.reach)}) > 1:
            wrong.append("work, reach: expected the same mixers at each length, in one order")
        if wrong:
            raise ValueError("\n".join(wrong))

    @property
    def names(self) -> list[str]:
        return list(self.work[0].named())


def read(config: str, overrides: Sequence[str] = ()) -> Settings:
    """The Settings of a config file and `--config.a=value` arguments. Raises ConfigError."""
    values = config_file.override(config_file.load(config)[1], overrides)
    try:
        return pydantic.TypeAdapter(Settings).validate_json(json.dumps(values, default=repr))
    except pydantic.ValidationError as error:
        found = error.errors(include_url=False)
        lines = [line for details in found for line in mistakes.describe(details, values)]
        raise ConfigError([*dict.fromkeys(lines)], config) from None


def plain(settings: Settings) -> dict:
    """For results.json: of each mixer what is not as registered."""

    def changed(mixer) -> dict:
        usual = type(mixer)()
        names = [field.name for field in dataclasses.fields(mixer)]
        return {n: getattr(mixer, n) for n in names if getattr(mixer, n) != getattr(usual, n)}

    def at(place: At) -> dict:
        of = {name: changed(mixer) for name, mixer in place.named().items()}
        return {"length": place.length, "mixers": {n: fields for n, fields in of.items() if fields}}

    every = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    return every | {name: [at(place) for place in every[name]] for name in ("work", "reach")}
