"""Operations of the products of the linearized engine, batch 1, as the engine makes them."""

from attn.linearized import _sums
from attn.linearized._recurrence import Sizes


def chunk_of(chunk: int, length: int) -> int:
    """The chunk that runs: a power of two, so that it can be halved; all of a short sequence."""
    return 1 << (min(chunk, length) - 1).bit_length()


def in_chunks(length: int) -> int:
    """The tokens that `_sums` works on: those of whole chunks."""
    chunk = min(_sums.CHUNK, max(length, 1))
    return -(-length // chunk) * chunk


def unordered(size: Sizes, queries: int, keys: int, D: int, normalised: bool) -> int:
    """Of `_sums`: each key of each head is written once, each query read once."""
    return 2 * size.features * (keys * D + queries * (D + normalised))


def in_order(size: Sizes, length: int, N: int, D: int, chunk: int, normalised: bool) -> int:
    """Of `_recurrence.advance`, chunk after chunk."""
    C, M = chunk_of(chunk, max(length, 1)), size.features
    asked = N // size.states  # rows that are asked for, and one that is erased
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
    """Of `_decays`: the scores of a chunk, and the sums of its decays."""
    M = size.features
    if size.decay == 0:
        return rows * C * C * M
    if size.decay == 1:
        return rows * C * C * M + C * C * (C + 2)
    return rows * C * M + rows * C * (C - 1) * M // 2


def _inverse(C: int) -> int:
    """Of (I + E)^-1 by halves of halves: two products of half the size at each, above 4."""
    return max(0, C * (C * C - 64) // 3)
