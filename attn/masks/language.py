"""Mask: the base class, its composition by `&`, `|`, `~`, and operations on a whole mask."""

import dataclasses
import functools
import json
import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from attn._axes import aligned, conjunction
from attn._integers import check_fits
from attn.masks.fields import fits, natural
from attn.masks.record import FIELDS, Record, check_frozen, frozen


class Mask(Record):
    """A predicate on (i, j): True where query i may see key j.

    To write your own, put `term` on a class with fields and `sees`:

        @attn.masks.term
        class EveryOther(attn.Mask):
            period: int = 2

            def sees(self, i, j):
                return (i - j) % self.period == 0
    """

    def at(self, i: Int[Any, "..."], j: Int[Any, "..."]) -> Bool[Any, "..."]:
        """The mask at integer indices `i`, `j` (any shapes that broadcast).

        Returns [*B, *broadcast(i, j)], with B the leading axes of the arrays inside; NumPy in,
        NumPy out for static masks. Raises TypeError if an index is not an integer, ValueError for
        one that JAX's integers do not hold, where it takes them.
        """
        concrete = self.static and not any(isinstance(x, jax.Array) for x in (i, j))
        xp = np if concrete else jnp
        held = np.dtype(np.int64) if concrete else jax.dtypes.canonicalize_dtype(np.int64)
        for name, index in (("i", i), ("j", j)):
            check_fits(name, index, held)  # cut to fewer bits it would be another index
        i, j = aligned(xp.asarray(i), xp.asarray(j))
        for name, index in (("i", i), ("j", j)):
            if not xp.issubdtype(index.dtype, np.integer):
                raise TypeError(f"{name}: expected integer indices, got {index.dtype}")
        # unsigned and short integers would wrap around in i - j
        i, j = (x if x.dtype in (np.int32, np.int64) else x.astype(held) for x in (i, j))
        seen = _seen(self, i, j)
        xp = jnp if isinstance(seen, jax.Array) else np
        return xp.broadcast_to(seen, xp.broadcast_shapes(seen.shape, i.shape, j.shape))

    def sees(self, i, j):
        """Whether query i sees key j, for integer indices of equal rank that broadcast: booleans
        [*B, *broadcast(i, j)]. Use operators and `abs` only: the indices are NumPy or JAX
        arrays."""
        raise NotImplementedError(f"{type(self).__name__} must define sees(i, j)")

    def tiles(self, i0, i1, j0, j1):
        """(some, every): whether any, and whether all, of rows i0..i1 x columns j0..j1 are seen.

        The bounds are inclusive NumPy arrays, with which both must broadcast. When in doubt,
        some=True and every=False: that only costs work.
        """
        return np.broadcast_arrays(np.bool_(True), np.bool_(False), i0 + j0)[:2]

    def _meet(self, other: "Mask") -> "Mask | None":
        """`self & other` as one term of the same kind, None where it is not one."""
        return None

    def terms(self) -> Iterator["Mask"]:
        """Every leaf term of the expression, left to right."""
        yield self

    def sized(self, T: int, S: int) -> "Mask":
        """The mask with every term that depends on the lengths bound to T queries, S keys."""
        return self

    def check(self, batch: tuple[int, ...], T: int, S: int) -> None:
        """Raise ValueError unless every array inside fits [*batch, T, S]."""
        for term in self.terms():
            term._check(tuple(batch), T, S)

    def _check(self, batch, T, S):
        """By default, as for user-defined masks, only the batch axes of arrays must fit."""
        for field in dataclasses.fields(self):
            if "rank" in field.metadata and (x := getattr(self, field.name)) is not None:
                name = f"{type(self).__name__}.{field.name}"
                fits(name, x, batch, x.shape[max(x.ndim - field.metadata["rank"], 0) :])

    def array(self, T: int, S: int) -> Bool[Any, "*B T S"]:
        """The whole mask as an array: O(T S) memory. NumPy if static, else a JAX array."""
        T, S = natural("T", T), natural("S", S)
        return self.sized(T, S).at(np.arange(T)[:, None], np.arange(S)[None, :])

    def blocks(self, T: int, S: int, block_q: int, block_k: int, rows=slice(None)):
        """(some, every), each bool[ceil(T/block_q), ceil(S/block_k)]: blocks to visit, and to visit
        unmasked, in the block rows that `rows` indexes. The values of arrays in the mask are
        unknown here, so they only clear `every`."""
        i0 = np.arange(0, T, block_q)[rows, None]
        j0 = np.arange(0, S, block_k)[None, :]
        i1 = np.minimum(i0 + block_q, T) - 1
        j1 = np.minimum(j0 + block_k, S) - 1
        # of a mask of rows or of columns alone they may have one column, or one row
        whole = lambda x: np.array(np.broadcast_to(x, (i0.size, j0.size)))
        some, every = self.sized(T, S).tiles(i0, i1, j0, j1)
        return whole(some), whole(every)

    def pairs(self, T: int, S: int) -> float:
        """How many of the T x S pairs are visible (mean over the batch), counted block by block."""
        T, S = natural("T", T), natural("S", S)
        mask, size, count = self.sized(T, S), 256, 0
        some, every = mask.blocks(T, S, size, size)
        for a, b in np.argwhere(some):
            rows = np.arange(a * size, min((a + 1) * size, T))
            cols = np.arange(b * size, min((b + 1) * size, S))
            if every[a, b]:
                count += rows.size * cols.size
                continue
            seen = np.asarray(mask.at(rows[:, None], cols[None, :]))
            count += int(seen.sum()) / max(1, math.prod(seen.shape[:-2]))
        return count

    def density(self, T: int, S: int) -> float:
        """The exact share of the T x S pairs that is visible (mean over the batch), in [0, 1]."""
        return self.pairs(T, S) / max(T * S, 1)

    def draw(self, T: int, S: int) -> str:
        """A picture in text, one line a query: `#` seen, `.` hidden; blank lines between batch
        rows."""
        full = np.asarray(self.array(T, S))
        full = full.reshape(math.prod(full.shape[:-2]), T, S)
        rows = lambda m: "\n".join(" ".join(".#"[int(x)] for x in row) for row in m)
        return "\n\n".join(map(rows, full))

    def take(self, *kinds: type["Mask"]) -> tuple[tuple["Mask | None", ...], "Mask"]:
        """Split a conjunction into the first term of each kind (None if absent) and the rest.

        `(causal, padding), rest = mask.take(Causal, Padding)`: a kernel that knows these two
        natively must refuse any `rest` but FULL, or evaluate it with `at`.
        """
        for kind in kinds:
            if not isinstance(kind, type):
                raise TypeError(f"kinds: expected classes of masks, as Causal, got {kind!r}")
        found: dict[type[Mask], Mask] = {}
        rest: Mask = FULL
        for term in joined(self):
            kind, both = type(term), None
            if kind in kinds:
                both = found[kind]._meet(term) if kind in found else term
            if both is None:
                rest = rest & term
            else:
                found[kind] = both
        return tuple(found.get(kind) for kind in kinds), rest

    def to_json(self) -> str:
        """A JSON text from which `from_json` makes an equal mask, in any process."""
        return json.dumps(_encode(self))

    def __and__(self, other: "Mask") -> "Mask":
        a, b = self, _mask("&", other)
        if isinstance(a, Full) or isinstance(b, Full):
            return b if isinstance(a, Full) else a
        if (both := a._meet(b)) is not None:
            return both
        return And(joined(a) + joined(b))

    def __or__(self, other: "Mask") -> "Mask":
        a, b = self, _mask("|", other)
        if isinstance(a, Full) or isinstance(b, Full):
            return FULL
        return Or(_flat(Or, a) + _flat(Or, b))

    def __invert__(self) -> "Mask":
        return self.mask if isinstance(self, Not) else Not(self)

    def __bool__(self) -> bool:
        raise TypeError(
            f"{type(self).__name__} has no truth value: join masks with &, | and ~, not with and, "
            "or and not; compare with `is None` or `== FULL`"
        )


KINDS: dict[str, type[Mask]] = {}  # by their names in JSON


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=FIELDS)
def term(cls: type[Mask]) -> type[Mask]:
    """Make a Mask class a frozen dataclass and pytree; JSON knows the last one of each name.

    Its fields are plain values, or arrays by `array_field`: without arrays it is static, hashable
    and known at trace time. Raises TypeError for anything but a subclass of Mask, ValueError for
    the name of a mask of the library.
    """
    if not (isinstance(cls, type) and issubclass(cls, Mask)):
        raise TypeError(f"term: expected a subclass of Mask, got {cls!r}")
    known = KINDS.get(cls.__name__, cls)
    if known.__module__ != cls.__module__ and known.__module__.startswith("attn."):
        raise ValueError(f"term: {cls.__name__} is a mask of the library; take another name")
    KINDS[cls.__name__] = cls = frozen(cls)
    return cls


def _mask(op: str, other: Any) -> Mask:
    if not isinstance(other, Mask):
        raise TypeError(
            f"{op}: expected a mask, got {type(other).__name__}; wrap arrays as "
            "Array(bool[..., T, S]) or Padding(keys=bool[..., S])"
        )
    check_frozen(op, other, "masks.term")
    return other


def _seen(mask: Mask, i, j):
    """What it sees. Raises TypeError for anything but booleans: & and ~ of numbers are bitwise."""
    seen = mask.sees(i, j)
    if not hasattr(seen, "dtype") or seen.dtype != np.bool_:
        got = getattr(seen, "dtype", type(seen).__name__)
        raise TypeError(f"{type(mask).__name__}.sees: expected booleans, got {got}")
    return seen


def spelled(mask: Mask) -> str:
    """The expression with each term as its class name, for messages: `Causal | ~Prefix`."""
    inner = lambda m: f"({spelled(m)})" if isinstance(m, Joined) else spelled(m)
    if isinstance(mask, Not):
        return f"~{inner(mask.mask)}"
    if isinstance(mask, Joined):
        return (" & " if isinstance(mask, And) else " | ").join(map(inner, mask.mask_terms))
    return type(mask).__name__


def joined(mask: Mask) -> tuple[Mask, ...]:
    """The masks that `&` joins in it: itself alone, unless it is an `And`."""
    return _flat(And, mask)


def _flat(kind, mask):
    return mask.mask_terms if isinstance(mask, kind) else (mask,)


@frozen
class Joined(Mask):
    """Several masks as one flat tuple, as & and | make it. Raises if there are none, or not all are
    masks."""

    mask_terms: tuple[Mask, ...] = dataclasses.field(metadata={"child": True})

    def __post_init__(self):
        kind, terms = type(self), self.mask_terms
        if not isinstance(terms, Iterable):
            raise TypeError(f"mask_terms: expected a tuple of masks, got {terms!r}")
        terms = tuple(t for term in terms for t in _flat(kind, _mask(kind.__name__, term)))
        if not terms:
            raise ValueError(f"mask_terms: expected at least one mask in {kind.__name__}, got none")
        object.__setattr__(self, "mask_terms", terms)

    def terms(self):
        for mask in self.mask_terms:
            yield from mask.terms()

    def sized(self, T, S):
        return type(self)(tuple(m.sized(T, S) for m in self.mask_terms))


@term
class And(Joined):
    """Seen under all of `mask_terms`."""

    def sees(self, i, j):
        return conjunction(*(_seen(m, i, j) for m in self.mask_terms))

    def tiles(self, *bounds):
        some, every = zip(*(m.tiles(*bounds) for m in self.mask_terms))
        return functools.reduce(np.logical_and, some), functools.reduce(np.logical_and, every)


@term
class Or(Joined):
    """Seen under any of `mask_terms`."""

    def sees(self, i, j):
        return functools.reduce(operator.or_, aligned(*(_seen(m, i, j) for m in self.mask_terms)))

    def tiles(self, *bounds):
        some, every = zip(*(m.tiles(*bounds) for m in self.mask_terms))
        return functools.reduce(np.logical_or, some), functools.reduce(np.logical_or, every)


@term
class Not(Mask):
    """Seen where `mask` hides."""

    mask: Mask = dataclasses.field(metadata={"child": True})

    def __post_init__(self):
        _mask("Not", self.mask)

    def sees(self, i, j):
        return ~_seen(self.mask, i, j)

    def tiles(self, *bounds):
        some, every = self.mask.tiles(*bounds)
        return np.logical_not(every), np.logical_not(some)  # also of Python's True, whose ~ is -2

    def terms(self):
        yield from self.mask.terms()

    def sized(self, T, S):
        return Not(self.mask.sized(T, S))


@term
class Full(Mask):
    """Every query sees every key."""

    def sees(self, i, j):
        return (i == i) & (j == j)

    def tiles(self, i0, i1, j0, j1):
        return np.broadcast_arrays(np.bool_(True), np.bool_(True), i0 + j0)[:2]


FULL: Mask = Full()  # as a default, of any mask's type


def _encode(value):
    if isinstance(value, Mask):
        fields = {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"term": type(value).__name__, **fields}
    if isinstance(value, np.generic):  # in a field that is no array
        return value.item()
    if hasattr(value, "dtype"):
        x = np.asarray(value)
        return {"dtype": str(x.dtype), "shape": x.shape, "values": x.ravel().tolist()}
    return [_encode(v) for v in value] if isinstance(value, tuple) else value
