"""BigBird (Zaheer et al. 2020, arXiv:2007.14062): window, global and random blocks, O(T) time."""

import dataclasses

from attn._settings import check_count
from attn.masks import Coarse, Global, Mask, Random, Window
from attn.sparse._patterned import Patterned


def bigbird_pattern(
    *, block_size: int, window: int, global_blocks: int, random: int, seed: int
) -> Mask:
    """The union, in whole blocks, of `window` neighbours on each side, the first `global_blocks` in
    both directions, and `random` blocks per row, drawn over the whole sequence by `seed`. Raises
    ValueError for settings that are not counts."""
    check_count("block_size", block_size)
    counts = {"window": window, "global_blocks": global_blocks, "random": random, "seed": seed}
    for name, count in counts.items():
        check_count(name, count, least=0)
    near = Window(window, window) | Global(tuple(range(global_blocks)))
    return Coarse(near | Random(1, random, seed) if random else near, block_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BigBird(Patterned):
    """Softmax over window, global and random blocks (Zaheer et al. 2020), as many as in its base
    model.

    Random blocks are drawn over `length` tokens, by default over the keys given; with a `length`,
    decoding equals the whole at once. The first blocks are global, and random ones may coincide
    with others. In the authors' code the first and the last block are global; random ones lie
    outside of the window and, of a sequence longer than 1,024 tokens, among these first tokens
    alone; each head and layer has its own.
    """

    block_size: int = 64
    window: int = 1
    global_blocks: int = 2
    random: int = 3
    seed: int = 0
    length: int | None = None

    def __post_init__(self):
        super().__post_init__()
        self._pattern()  # which checks the other settings
        if self.length is not None:
            check_count("length", self.length)

    @property
    def settled(self):
        return self.length is not None or self.random == 0

    def of_length(self, max_length):
        self.patterns(max_length, max_length)  # refuses more tokens than it is drawn for
        of = self.length or max_length or None  # None: there are no tokens
        return dataclasses.replace(self, length=of)

    def _pattern(self) -> Mask:
        return bigbird_pattern(
            block_size=self.block_size,
            window=self.window,
            global_blocks=self.global_blocks,
            random=self.random,
            seed=self.seed,
        )

    def patterns(self, T, S):
        pattern = self._pattern()
        if self.length is None:
            return (pattern.sized(T, S),)
        if max(T, S) > self.length:
            raise ValueError(f"length: expected at least {max(T, S)} tokens, got {self.length}")
        return (pattern.sized(self.length, self.length),)

    @classmethod
    def examples(cls):
        return (
            cls(block_size=4, window=1, global_blocks=1, random=1, block=8),
            cls(block_size=5, window=0, global_blocks=0, random=2, seed=3),
            cls(block_size=4, window=0, random=2, length=4096),
        )
