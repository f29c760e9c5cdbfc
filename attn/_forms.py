"""The four ways in which blockwise softmax runs, and the choice of one, with its blocks, by mask
and lengths: short sequences take one without loops, masks like a sliding window one that loops over
blocks of queries, all others one that loops over blocks of keys too. On a GPU, where a turn of a
loop costs more than its work, the last two give way to one that visits all blocks at once.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from attn import _gathered, _loops, _short, _strips
from attn._turns import loops_are_slow
from attn.masks import Mask


@dataclasses.dataclass(frozen=True)
class Form:
    """The forward and backward pass of one tile of batch rows, and scores(mask, T, S, block_q,
    block_k), how many scores they compute. A form that does all `at_once` makes one tile of all
    batch rows, takes queries in their own dtype, and has no gradient of a bias."""

    forward: Callable
    backward: Callable
    scores: Callable[[Mask, int, int, int, int], int]
    at_once: bool = False


FORMS = {
    "short": Form(_short.forward, _short.backward, _short.scores),
    "strips": Form(_strips.forward, _strips.backward, _strips.scores),
    "loops": Form(_loops.forward, _loops.backward, _loops.scores),
    "gathered": Form(_gathered.forward, _gathered.backward, _gathered.scores, at_once=True),
}

# (query block, key block, relative time a visited score takes): `scripts/blocks` on two AMD EPYC
# cores, float32, batch 2, 4 heads, width 64
BLOCKS = (
    (64, 64, 1.6),
    (128, 128, 1.5),
    (128, 256, 1.4),
    (256, 256, 1.35),
    (256, 512, 1.0),
    (512, 512, 1.02),
)
# (query block, relative time) of strips
STRIPS = ((64, 1.2), (128, 1.0), (256, 1.0))
# a strip of fewer scores, over all batch rows and heads, runs on one of two threads
ALONE, ALONE_RATE = 2**18, 1.4
# (query block, key block, relative time) of blocks that are visited at once, on a GPU
GATHERED = ((64, 64, 1.3), (128, 128, 1.0), (128, 256, 1.0))
# beyond these scores per token loops have enough to do, and memory would not be linear in T
GATHERED_MOST = 2048
SHORT = 512  # up to this length, rows of SHORT_ROWS queries against all keys that they see
SHORT_ROWS = 128


def form_of(
    mask: Mask, T: int, S: int, N: int, B: int = 1, *, block: int | tuple[int, int] | None
) -> tuple[Form, tuple[int, int]]:
    """The form that runs, with its block sizes: as `choose` says, or loops over a given `block`."""
    if block is not None:
        return FORMS["loops"], block if isinstance(block, tuple) else (block, block)
    name, sizes = choose(mask, T, S, N, B)
    return FORMS[name], sizes


def choose(mask: Mask, T: int, S: int, N: int, B: int = 1) -> tuple[str, tuple[int, int]]:
    """The form and the block sizes that visit the least, weighted by how fast those run; for short
    sequences, blocks of queries and all keys."""
    if max(T, S) <= SHORT:
        return "short", (_even_block(T, SHORT_ROWS), S)
    return (_cached_choice if mask.static else _choice)(mask, T, S, N, B, loops_are_slow())


def _choice(mask, T, S, N, B, at_once):
    if at_once:
        sizes = [((_even_block(T, b), _even_block(S, c)), rate) for b, c, rate in GATHERED]
        found = [(_gathered.scores(mask, T, S, *block), rate, block) for block, rate in sizes]
        scores, _, block = min(found, key=lambda x: x[0] * x[1])
        if scores <= GATHERED_MOST * max(T, S):
            return "gathered", block

    def cost(count, block_q, block_k, rate):
        too_large = max(1.0, N * block_q * block_k / 2**20)  # tiles of 4 MB leave the cache
        return count * (block_q * block_k + 4096) * rate * too_large

    candidates = []
    for block_q, block_k, rate in BLOCKS:
        block_q, block_k = _even_block(T, block_q), _even_block(S, block_k)
        rows, stands_for = _some_rows(-(-T // block_q))
        visited = (mask.blocks(T, S, block_q, block_k, rows)[0].sum(1) * stands_for).sum()
        candidates.append((cost(visited, block_q, block_k, rate), "loops", (block_q, block_k)))
    best = min(candidates)
    for block_q, rate in STRIPS:
        block_q = _even_block(T, block_q)
        count = -(-T // block_q)
        # a strip is as wide as the widest row needs: some rows tell whether to look at all
        for rows in (_some_rows(count)[0], slice(None)):
            _, width = _strips.strips(mask, T, S, block_q, rows)
            alone = ALONE_RATE if B * N * block_q * width < ALONE else 1.0
            candidate = cost(count, block_q, width, rate * alone), "strips", (block_q, width)
            if candidate >= best:
                break
        else:
            best = candidate
    return best[1:]


_cached_choice = functools.lru_cache(maxsize=256)(_choice)


def _some_rows(count: int) -> tuple[Int[np.ndarray, "rows"], Float[np.ndarray, "rows"]]:
    """Which blocks of queries are looked at to estimate what all of them visit, and how many each
    stands for: those at the ends, where global tokens are, for themselves."""
    if count <= 80:
        return np.arange(count), np.ones(count)
    between = np.linspace(8, count - 9, 64).round().astype(int)
    each = np.full(64, (count - 16) / 64)
    return np.r_[:8, between, count - 8 : count], np.r_[np.ones(8), each, np.ones(8)]


def visited_scores(mask: Mask, T: int, S: int, N: int, block=None) -> int:
    """How many scores are computed for a mask: those of all visited blocks."""
    if 0 in (T, S):
        return 0
    form, sizes = form_of(mask, T, S, N, block=block)
    return form.scores(mask, T, S, *sizes)


def _even_block(length: int, most: int) -> int:
    """The block that cuts `length` into equal parts of at most `most`, a multiple of 8."""
    parts = -(-length // most)
    return (-(-length // parts) + 7) // 8 * 8
