"""A frozen dataclass that is a pytree: its fields are plain values, or arrays with batch axes."""

import dataclasses
from typing import TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from attn._axes import merged_batch
from attn._integers import check_fits

R = TypeVar("R", bound="Record")


class Record:
    """Equal by its fields, arrays by their numbers; hashable without arrays. Put `frozen` on each
    subclass."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if "rank" in field.metadata and isinstance(value, np.ndarray | np.generic):
                name = f"{type(self).__name__}.{field.name}"
                object.__setattr__(self, field.name, whole(name, value))

    @property
    def static(self) -> bool:
        """Whether it holds no arrays (hashable, known at trace time)."""
        return not jax.tree.leaves(self)

    def merge_batch(self: R, batch: tuple[int, ...]) -> R:
        """The same with the batch axes of each array merged into one, of size 1 or prod(batch)."""
        values = []
        for field in dataclasses.fields(self):
            value, rank = getattr(self, field.name), field.metadata.get("rank")
            if isinstance(value, Record):
                value = value.merge_batch(batch)
            elif isinstance(value, tuple):
                value = tuple(v.merge_batch(batch) if isinstance(v, Record) else v for v in value)
            elif value is not None and rank is not None:
                value = merged_batch(value, batch, rank)
            values.append(value)
        return self._build(values)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(map(_same, self._fields(), other._fields()))

    def __hash__(self) -> int:
        if not self.static:
            raise TypeError(f"{type(self).__name__} holds arrays and is not hashable")
        return hash((type(self).__name__, self._fields()))

    def _fields(self) -> tuple:
        return tuple(getattr(self, f.name) for f in dataclasses.fields(self))

    @classmethod
    def _build(cls, values):
        """Rebuild without validation: JAX unflattens with tracers and placeholders."""
        self = object.__new__(cls)
        for field, value in zip(dataclasses.fields(cls), values, strict=True):
            object.__setattr__(self, field.name, value)
        return self


def check_frozen(name: str, x: Record, term: str) -> None:
    """Raise TypeError if the class of x lacks the decorator, whatever those before it have."""
    if "__dataclass_fields__" not in vars(type(x)):
        kind = type(x).__name__
        raise TypeError(f"{name}: expected a frozen class, got {kind}; put @attn.{term} on it")


def _same(a, b) -> bool:
    if hasattr(a, "dtype") or hasattr(b, "dtype"):
        # a traced array is equal to itself alone: its numbers are not known yet
        both = hasattr(a, "dtype") and hasattr(b, "dtype")
        return a is b or (both and np.array_equal(a, b))
    return a == b


def whole(name: str, x: np.ndarray | np.generic) -> jax.Array:
    """x as JAX's array. Raises ValueError for integers that would be cut to fewer bits."""
    check_fits(name, x, jax.dtypes.canonicalize_dtype(x.dtype))
    return jnp.asarray(x)


def array_field(rank: int, **kwargs):
    """A field of a mask or a bias that holds an array, whose last `rank` axes are indexed; in a
    mask those before them are batch axes."""
    return dataclasses.field(metadata={"child": True, "rank": rank}, **kwargs)


FIELDS = (dataclasses.field, array_field)  # for type checkers


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=FIELDS)
def frozen(cls: type[R]) -> type[R]:
    """Make a subclass of Record a frozen dataclass and pytree, whose children are the fields that
    say so in their metadata."""
    cls = dataclasses.dataclass(frozen=True, eq=False)(cls)
    child = [bool(f.metadata.get("child")) for f in dataclasses.fields(cls)]
    keys = [f.name for f in dataclasses.fields(cls)]

    def flatten(self):
        values = self._fields()
        kids = [(jax.tree_util.GetAttrKey(k), v) for k, v, c in zip(keys, values, child) if c]
        return kids, tuple(v for v, c in zip(values, child) if not c)

    def unflatten(aux, kids):
        aux, kids = iter(aux), iter(kids)
        return cls._build([next(kids) if c else next(aux) for c in child])

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls
