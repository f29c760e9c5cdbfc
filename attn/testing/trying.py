"""How laws try a mechanism: with its gradients, against the definition, or to see it refuse."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from attn._wide import wide
from attn.testing.cases import widen
from attn.testing.contract import BrokenLaw, assert_close


def with_gradients(call):
    """A function to (output, gradients of a fixed random projection of it by every array)."""

    def run(arrays, mask, bias):
        def loss(arrays, bias):
            q, k, v, learned = arrays
            out = call(q, k, v, mask=mask, bias=bias, **learned)
            # odd weights that no symmetry of the output can cancel
            direction = np.sin(np.arange(out.size) * 0.7 + 0.3).astype(np.float32)
            y = wide(out)
            return (y * jnp.asarray(direction, y.dtype).reshape(out.shape)).sum(), out

        grad = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
        (_, out), gradients = grad(arrays, bias)
        return out, gradients

    return run


@functools.lru_cache(maxsize=4)
def _jitted(reference):
    """Compiled once for the dtypes a variant is tried in: the definition is in float64."""
    return jax.jit(with_gradients(reference))


def compare(mechanism, run, arrays, mask, bias, *, dtype, what, jit_reference=False):
    """Check output and gradients of a jitted `run` against the float64 reference, compiled if
    `jit_reference`: for changing shapes, since eager operations of one shape are cached."""
    out, gradients = run(arrays, mask, bias)
    reference = (_jitted if jit_reference else with_gradients)(mechanism.reference)
    with jax.enable_x64(True):
        oracle, exact = reference(widen(arrays), mask, widen(bias))
        oracle, exact = jax.tree.map(np.asarray, (oracle, exact))
    if out.dtype != dtype:
        raise BrokenLaw(f"{what}: expected dtype {jnp.dtype(dtype).name}, got {out.dtype}")
    room = mechanism.room
    assert_close(out, oracle, dtype=dtype, what=what, room=room)
    names = jax.tree_util.tree_leaves_with_path(gradients)
    for (path, got), want in zip(names, jax.tree.leaves(exact), strict=True):
        name = "q k v learned".split()[path[1].idx] if path[0].idx == 0 else "bias"
        # learned arrays stay float32 beside narrow inputs: their gradients are as rough as those
        assert_close(
            got, want, dtype=dtype, kind="gradient", room=room, what=f"{what}, gradient of {name}"
        )


def precise():
    return jax.default_matmul_precision("highest")


def error_of(attempt):
    try:
        attempt()
    except Exception as error:
        return error
    return None


def expect(kind, error, name, what):
    if error is None:
        raise BrokenLaw(f"{what}: accepted without a word")
    if not isinstance(error, kind):
        raise BrokenLaw(f"{what}: expected {kind.__name__}, got {error!r}")
    if name not in str(error):
        raise BrokenLaw(f"{what}: the message does not name {name!r}: {error}")


def holds_no_square(run, arguments, T: int, *, what: str):
    """Raise BrokenLaw if the program traced for T queries and keys holds an array of T x S, or half
    of it."""
    for shape in buffer_shapes(jax.make_jaxpr(run)(*arguments).jaxpr):
        if np.prod(shape, dtype=float) >= T * T // 2:
            raise BrokenLaw(f"{what} at T = S = {T} holds an array of shape {list(shape)}")


def buffer_shapes(jaxpr):
    """The shapes of all values in a jaxpr and in those inside it."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield getattr(variable.aval, "shape", ())
        for value in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from buffer_shapes(inner)
