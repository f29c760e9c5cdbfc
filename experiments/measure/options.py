"""What the benchmark's flags ask for, all mistakes in them at once."""

import dataclasses
import difflib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from absl import flags

from experiments.errors import ConfigError, nearest

DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Options:
    """Empty means the suite's own; `heads` are (query heads, key heads)."""

    lengths: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    heads: tuple[tuple[int, int], ...] = ()
    widths: tuple[int, ...] = ()
    against: tuple[str, ...] = ()
    rounds: int = 12
    seconds: float = 30.0

    def peers(self, own: Iterable[str]) -> list[str]:
        return [name for name in own if not self.against or name in self.against]


def define(values: flags.FlagValues, suites: Sequence[str]) -> None:
    """All as text: absl would stop at its first mistake."""
    known = ",".join(suites)
    text = lambda name, default, what: flags.DEFINE_string(name, default, what, flag_values=values)
    many = lambda name, default, what: flags.DEFINE_list(name, default, what, flag_values=values)
    text("workdir", None, "where the results are written")
    many("suite", known, f"any of {known}")
    many("lengths", [], "lengths T in place of the suite's own; cache lengths for decode")
    many("dtypes", [], f"any of {','.join(DTYPES)}, by default the suite's own")
    many("heads", [], "query/key heads such as 4/4,8/2, by default the suite's own")
    many("widths", [], "head widths, by default the suite's own")
    many("against", [], "peers, by default the suite's own")
    text("rounds", "12", "rounds in turns, at least 3")
    text("seconds", "30", "no round is started after this many seconds, except the first three")


def parse(values: flags.FlagValues, suites: Sequence[str], peers: Collection[str]) -> Options:
    """Raises ConfigError with everything that is wrong."""
    problems: list[str] = []

    def each(flag: str, read: Callable[[str], Any]) -> tuple:
        given = getattr(values, flag)
        found = []
        for text in given if isinstance(given, list) else [given]:
            try:
                found.append(read(text))
            except ValueError as error:
                problems.append(f"--{flag}={text}: {error}")
        return tuple(dict.fromkeys(found))

    if not each("suite", _one_of(suites)) and not problems:
        problems.append(f"--suite: expected one or more of {','.join(suites)}, got none")
    options = Options(
        each("lengths", _whole(1, 2**20)),
        each("dtypes", _one_of(DTYPES)),
        each("heads", _heads),
        each("widths", _whole(1, 1024)),
        each("against", _peer(peers)),
        *(each("rounds", _whole(3, 10_000)) or (0,)),
        *(each("seconds", _whole(0, 3600)) or (0,)),
    )
    if problems:
        raise ConfigError(problems)
    return options


def _one_of(names: Collection[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"unknown{nearest(text, names)}")
        return text

    return read


def _peer(names: Collection[str]) -> Callable[[str], str]:
    """What git has for a commit was taken out before."""

    def read(text: str) -> str:
        if text not in names:
            # only what is near: torch is no likely meaning of another word
            meant = nearest(text, difflib.get_close_matches(text, names))
            raise ValueError(f"expected a peer ({', '.join(names)}) or a name of a commit{meant}")
        return text

    return read


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        # not int(text) alone: it takes '1_0' and ' 1'
        if not (text.isascii() and text.isdecimal()) or not low <= int(text) <= high:
            raise ValueError(f"expected a whole number in {low}..{high:,}")
        return int(text)

    return read


def _heads(text: str) -> tuple[int, int]:
    queries, _, keys = text.partition("/")
    if not all(x.isascii() and x.isdecimal() and 1 <= int(x) <= 1024 for x in (queries, keys)):
        raise ValueError("expected query heads / key heads, such as 8/2")
    if int(queries) % int(keys):
        raise ValueError(f"{queries} query heads are no multiple of {keys} key heads")
    return int(queries), int(keys)
