"""Maps of vectors, computed on one matrix of all of them."""

from collections.abc import Callable

from jaxtyping import Array, Float


def of_rows(
    linear: Callable[[Float[Array, "M W"]], Float[Array, "M ..."]], x: Float[Array, "*B W"]
) -> Float[Array, "..."]:
    """`linear` of each vector of x, [*B, ...], with x as one matrix: in a kernel's gradient, a sum
    over all axes but the last, XLA's CPU backend transposes both factors unless they are matrices.
    """
    y = linear(x.reshape(-1, x.shape[-1]))
    return y.reshape(*x.shape[:-1], *y.shape[1:])
