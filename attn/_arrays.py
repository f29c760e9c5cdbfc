"""Checks of learned arrays and gates passed to a record: those it asked for, in their shapes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

GROWS = "max_length"  # in place of a size, in the shape of an array that grows with it
# where `init` is traced to see what grows: two close together, one far, for growth in steps
LENGTHS = (1, 2, 2**14)

Shape = tuple[int | str, ...]


@functools.lru_cache(maxsize=256)
def learned_shapes(mechanism, **sizes: int) -> dict[str, Shape]:
    """The shapes of `mechanism.init` for heads and widths, whatever its `max_length` was."""
    made = lambda n: jax.eval_shape(
        lambda key: mechanism.init(key, max_length=n, **sizes), jax.random.key(0)
    )
    drawn = [made(n) for n in LENGTHS]
    either = lambda sizes: sizes[0] if len(set(sizes)) == 1 else GROWS
    shape = lambda name: tuple(map(either, zip(*(arrays[name].shape for arrays in drawn))))
    return {name: shape(name) for name in drawn[0]}


def check_arrays(
    name: str,
    arrays: dict[str, Array],
    wanted: dict[str, Shape],
    optional: dict[str, Shape] | None = None,
) -> None:
    """Raise unless `arrays` are those `wanted`, and none but `optional` besides, in their shapes.

    TypeError for a name that the mechanism `name` does not take and for anything but arrays of
    floats; ValueError for one that is missing and for another shape.
    """
    known = wanted | (optional or {})
    for array in sorted(arrays.keys() - known.keys()):
        takes = ", ".join(known) or "no learned arrays or gates"
        raise TypeError(f"{array}: {name} takes {takes} with these settings")
    for array in sorted(wanted.keys() - arrays.keys()):
        raise ValueError(f"{array}: expected {list(wanted[array])}, got nothing")
    check_shapes(arrays, known)


def check_shapes(arrays: dict[str, Array], shapes: dict[str, Shape]) -> None:
    """Raise, by name, TypeError for anything but arrays of floats, ValueError for other shapes."""
    check_floats(**arrays)
    for name, x in arrays.items():
        shape = shapes[name]
        fits = len(x.shape) == len(shape) and all(
            want in (size, GROWS) for want, size in zip(shape, x.shape)
        )
        if not fits:
            raise ValueError(f"{name}: expected {list(shape)}, got {list(x.shape)}")


def is_array(x) -> bool:
    """Whether x is an array, or has a shape and a NumPy dtype, as torch's tensors do not."""
    known = isinstance(x, jax.Array) or isinstance(getattr(x, "dtype", None), np.dtype)
    return known and hasattr(x, "shape")


def is_floats(x) -> bool:
    """Whether x is an array of floats."""
    return is_array(x) and jnp.issubdtype(x.dtype, jnp.floating)


def check_width(width: int, **arrays) -> None:
    """Raise ValueError, by name, for arrays (not None) whose last axis is not `width`."""
    for name, x in arrays.items():
        if x is not None and x.shape[-1:] != (width,):
            raise ValueError(f"{name}: expected a last axis of {width}, got {list(x.shape)}")


def check_floats(**arrays) -> None:
    """Raise TypeError, by name, for anything but arrays of floats."""
    for name, x in arrays.items():
        if not is_floats(x):
            came = getattr(x, "dtype", type(x).__name__)
            raise TypeError(f"{name}: expected an array of floats, got {came}")
