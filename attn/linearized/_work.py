"""The chunks of the linearized engine, and the operations of its products, batch 1."""

import math

from attn._turns import loops_are_slow
from attn.linearized import _sums
from attn.linearized._terms import Sizes


def chunk_of(chunk: int | None, length: int, size: Sizes, D: int) -> int:
    """The chunk size: a power of two, so that it can be halved; the whole of a short sequence."""
    chunk = fastest(size, D) if chunk is None else chunk
    # int: settings may be NumPy's
    return 1 << int(min(chunk, length) - 1).bit_length()


def fastest(size: Sizes, D: int) -> int:
    """The chunk that is fastest on two CPU cores, or within a quarter of it, where it was measured:
    8 variants, values of width D = 16 to 128, 64 to 4096 tokens, forward and backward.

    A token meets about C D numbers of its chunk and M D of the state; solving for what is erased
    costs as much again inside the chunk. Where chunks run side by side it is 64, as in fla's
    kernels.
    """
    if loops_are_slow():
        return 64
    wide = round(math.log2(max(D, 1)))
    return 1 << min(max(wide - size.erases, 4), 7 - size.erases)


LONG = 16  # of loops of this many chunks or more, a turn takes several


def unroll(size: Sizes, count: int) -> tuple[int, int]:
    """How many of `count` chunks a turn of the loop takes, forward and backward.

    XLA's CPU backend multiplies small matrices on one thread, and runs operations in parallel only
    if more than eight are ready, which one chunk does not offer: on two cores and 4096 tokens this
    takes 0.75 of the time forward, and without gates 0.84 with backward. With gates backward gains
    nothing, nor does either way where tokens erase: there each chunk waits for the one before.
    """
    if count < LONG or size.erases:
        return 1, 1
    return (4, 1) if size.decay else (8, 4)


STRETCH, MOST = 16384, 256  # tokens of a sequence, and chunks, that are held at once


def at_once(chunk: int, count: int) -> int:
    """How many of `count` chunks a turn of the loop takes side by side: on a GPU, where a turn
    costs its launches and a chunk fills a small part, as many as a stretch holds; else one."""
    if not loops_are_slow():
        return 1
    turns = -(-count // max(1, min(MOST, STRETCH // chunk)))
    return -(-count // turns)


def unordered(size: Sizes, T: int, S: int, N: int, K: int, D: int, normalised: bool, mapped: int):
    """Operations of `_sums` on whole chunks: each key of each head is `mapped` and written once,
    each query mapped and read once."""
    M = size.features

    def whole(length, heads):
        chunk = _sums.chunk_of(max(length, 1), heads * M, D)
        return -(-length // chunk) * chunk * heads

    queries, keys = whole(T, N), whole(S, K)
    return mapped * (queries + keys) + 2 * M * (keys * D + queries * (D + normalised))


def in_order(size: Sizes, length: int, N: int, D: int, chunk: int | None, normalised: bool) -> int:
    """Operations of `_recurrence.advance`, chunk after chunk; side by side they are more, for the
    states between chunks."""
    C, M = chunk_of(chunk, max(length, 1), size, D), size.features
    asked = N // size.states  # query rows, and one that erases
    rows = asked + size.erases
    keys = 1 + size.removes
    products = keys * _scores(size, rows, C)
    products += rows * C * M * D + asked * keys * C * C * D  # of the state, and of the chunk
    products += keys * C * M * D  # what is written
    if size.erases:
        products += _inverse(C) + C * C * D * keys
    if size.removes:
        products += keys * asked * C * M  # each token by itself, without its decay
    if normalised:
        products += rows * C * M
    return 2 * size.states * products * -(-length // C)


def _scores(size: Sizes, rows: int, C: int) -> int:
    """Operations of `_decays`: the scores of a chunk, and the sums of its decays."""
    M = size.features
    if size.decay == 0:
        return rows * C * C * M
    if size.decay == 1:
        return rows * C * C * M + C * C * (C + 2)
    return rows * C * M + rows * C * (C - 1) * M // 2


def _inverse(C: int) -> int:
    """Operations of (I + E)^-1 by recursive halving: two products of half the size at each level,
    above 4."""
    return max(0, C * (C * C - 64) // 3)
