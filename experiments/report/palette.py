"""How a variant is drawn and what it is called, the same in every picture of a report."""

import dataclasses
import itertools
from collections.abc import Collection, Sequence

# Okabe and Ito's colours, blue lightened for dark pages, without black and yellow, which vanish
COLOURS = ("#1f83c4", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#8a8a8a")
# the further ones, by points on and off, for more than 28 variants
DASHES = (
    "-",
    "--",
    ":",
    "-.",
    (0, (9, 2)),
    (0, (4, 1, 1, 1, 1, 1)),
    (0, (1, 3)),
    (0, (9, 2, 3, 2)),
)


@dataclasses.dataclass(frozen=True)
class Look:
    """How one variant is drawn in every picture."""

    colour: str
    dash: str | tuple  # and bubbles are hollow where it is not solid


def looks(names: Sequence[str]) -> dict[str, Look]:
    """By place in the list: seven colours, then the same with another dash: 56 in all."""
    count = len(COLOURS)
    dash = lambda i: DASHES[i // count % len(DASHES)]
    return {name: Look(COLOURS[i % count], dash(i)) for i, name in enumerate(names)}


MANY = 14  # variants, beyond which a picture needs a page's width: for their names, and to be told


def size_for(names: Collection[str]) -> tuple[float, float]:
    """Width and height, in inches, of a picture in which so many have a line or a bubble."""
    return (10.6, 5.4) if len(names) > MANY else (5.2, 3.6)


def called(names: Sequence[str]) -> dict[str, str]:
    """What each is called in a picture: without the words before that all of them begin with."""
    split = [name.split(" ") for name in names]
    columns = zip(*(words[:-1] for words in split)) if len(names) > 1 else ()
    shared = len([*itertools.takewhile(lambda words: len({*words}) == 1, columns)])
    return {name: " ".join(words[shared:]) for name, words in zip(names, split)}
