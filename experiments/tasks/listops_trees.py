"""ListOps expressions (Nangia and Bowman 2018): their words, drawing many at once, evaluating one.

A forest is drawn level by level, so each line below works on all nodes of one depth at once.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32, UInt8

# Long Range Arena's words once its reader has dropped the parentheses; ids are places here.
VOCABULARY = ("<pad>", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
IDS = {word: i for i, word in enumerate(VOCABULARY)}
ZERO, OPEN, CLOSE = IDS["0"], IDS["[MIN"], IDS["]"]
OPERATOR_PROBABILITY = 0.25


class Examples(NamedTuple):
    tokens: UInt8[np.ndarray, "N T"]  # a byte each: LRA's training split fits in 192 MB
    lengths: Int32[np.ndarray, "N"]
    labels: Int32[np.ndarray, "N"]


class Level(NamedTuple):
    """The nodes of one depth, from left to right; an operator's arguments lie side by side."""

    tree: Int[np.ndarray, "M"]  # which expression
    operator: Bool[np.ndarray, "M"]
    kind: UInt8[np.ndarray, "M"]  # MIN MAX MED SM, read where operator
    digit: UInt8[np.ndarray, "M"]  # read elsewhere
    arguments: Int32[np.ndarray, "P"]  # how many, one entry per operator


def draw(
    random: np.random.Generator,
    candidates: int,
    *,
    min_length: int,
    max_length: int,
    max_depth: int,
    max_args: int,
) -> Examples:
    """Draw candidates by the rule and keep those with min_length < length < max_length."""
    levels, nodes = _grow(random, candidates, max_length, max_depth, max_args)
    lengths = _lengths(levels)
    keep = (nodes < max_length) & (min_length < lengths[0]) & (lengths[0] < max_length)
    lengths = [length[keep[level.tree]] for level, length in zip(levels, lengths, strict=True)]
    levels = [_select(level, keep) for level in levels]
    tokens = _write(levels, lengths, max_length)
    return Examples(tokens, lengths[0], _values(levels))


def _grow(
    random: np.random.Generator, candidates: int, max_length: int, max_depth: int, max_args: int
) -> tuple[list[Level], Int[np.ndarray, "N"]]:
    """The levels from the root down, and how many nodes each expression came to."""
    tree, levels = np.arange(candidates), []
    nodes = np.zeros(candidates, np.int64)
    for depth in range(1, max_depth + 1):
        n = tree.size
        nodes += np.bincount(tree, minlength=candidates)
        operator = random.random(n, dtype=np.float32) < OPERATOR_PROBABILITY
        # An expression already too long for sure grows no further: it will be dropped.
        operator &= (nodes < max_length)[tree] & (depth < max_depth)
        kind = random.integers(4, size=n, dtype=np.uint8)
        digit = random.integers(10, size=n, dtype=np.uint8)
        size = np.count_nonzero(operator)
        arguments = random.integers(2, max_args, size=size, dtype=np.int32, endpoint=True)
        levels.append(Level(tree, operator, kind, digit, arguments))
        tree = np.repeat(tree[operator], arguments)
    return levels, nodes


def _lengths(levels: list[Level]) -> list[Int32[np.ndarray, "M"]]:
    """Tokens of each node: a digit is one; an operator its two brackets and its arguments."""
    lengths = []
    for level in reversed(levels):
        length = np.ones(level.tree.size, np.int32)
        if level.arguments.size:
            length[level.operator] = 2 + np.add.reduceat(lengths[-1], _first(level.arguments))
        lengths.append(length)
    return lengths[::-1]


def _select(level: Level, keep: Bool[np.ndarray, "N"]) -> Level:
    kept = keep[level.tree]
    tree = (np.cumsum(keep) - 1)[level.tree[kept]]  # numbered afresh
    arguments = level.arguments[kept[level.operator]]
    return Level(tree, level.operator[kept], level.kind[kept], level.digit[kept], arguments)


def _values(levels: list[Level]) -> Int32[np.ndarray, "N"]:
    """Every node's value, from the leaves up."""
    value = np.zeros(0, np.int32)
    for level in reversed(levels):
        below, value = value, level.digit.astype(np.int32)
        if not level.arguments.size:
            continue
        count, first = level.arguments, _first(level.arguments)
        parent = 10 * np.repeat(np.arange(count.size), count)
        ranked = np.sort(parent + below) - parent  # sorted among its siblings
        middle = (ranked[first + (count - 1) // 2] + ranked[first + count // 2]) // 2
        total = np.add.reduceat(below, first) % 10
        results = np.stack([ranked[first], ranked[first + count - 1], middle, total])
        value[level.operator] = results[level.kind[level.operator], np.arange(count.size)]
    return value


def _write(
    levels: list[Level], lengths: list[Int32[np.ndarray, "M"]], width: int
) -> UInt8[np.ndarray, "N T"]:
    """Each node's tokens at its place, from the root down."""
    tokens = np.zeros((lengths[0].size, width), np.uint8)
    flat, place = tokens.reshape(-1), width * np.arange(lengths[0].size)
    for level, length, below in zip(levels, lengths, [*lengths[1:], None], strict=True):
        flat[place] = np.where(level.operator, OPEN + level.kind, ZERO + level.digit)
        flat[(place + length - 1)[level.operator]] = CLOSE
        if not level.arguments.size:
            break
        before = np.cumsum(below) - below  # tokens of all nodes to the left
        start = place[level.operator] + 1 - before[_first(level.arguments)]
        place = np.repeat(start, level.arguments) + before
    return tokens


def _first(counts: Int32[np.ndarray, "P"]) -> Int[np.ndarray, "P"]:
    """Where each group starts when groups of these sizes lie side by side."""
    return np.cumsum(counts) - counts


def _median(values: list[int]) -> int:
    # in Python: of a few digits np.median takes 30 times as long
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2


APPLY = {
    IDS["[MIN"]: min,
    IDS["[MAX"]: max,
    IDS["[MED"]: _median,
    IDS["[SM"]: lambda values: sum(values) % 10,
}


def evaluate(ids: Iterable[int], depth: int | None = None) -> int | None:
    """The value of an expression, reading its words one by one.

    With a depth, only operators less than that many levels below the root are evaluated: deeper
    ones are left out of their operator's arguments, as is one left without any. None means that
    nothing is left of the root.
    """
    stack = [[]]
    for i in ids:
        if i < OPEN:
            stack[-1].append(i - ZERO)
        elif i < CLOSE:
            stack.append([i])
        else:
            operator, *values = stack.pop()
            if values and (depth is None or len(stack) <= depth):
                stack[-1].append(APPLY[operator](values))
    return next(iter(stack[0]), None)
