"""Law 11: one shape is traced once, and every form keeps the dtype that came."""

import copy
import functools

import jax
import jax.numpy as jnp

from attn.masks import FULL, Causal
from attn.mechanism import Mechanism
from attn.testing.cases import base_mask, bias_for, inputs, joined_mask, widen
from attn.testing.contract import BrokenLaw, assert_close
from attn.testing.trying import error_of, with_gradients


def traces_once_and_keeps_dtype(mechanism: Mechanism) -> None:
    """11. Equal records trace a shape once; the dtype is kept under strict promotion and with x64
    on; no form implicitly broadcasts arrays of fewer axes or promotes dtypes."""
    _promotes_aloud(mechanism)
    q, k, v, learned = inputs(mechanism, T=7, S=7)
    call = functools.partial(mechanism, mask=base_mask(mechanism))
    count = 0

    def counted(mechanism, q, k, v):
        nonlocal count
        count += 1
        return mechanism(q, k, v, mask=base_mask(mechanism), **learned)

    run = jax.jit(counted, static_argnums=0)
    for record, values in ((mechanism, q), (copy.copy(mechanism), q + 1)):
        run(record, values, k, v)
    if count != 1:
        raise BrokenLaw(f"expected one trace for one shape and two equal records, got {count}")
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        with jax.numpy_dtype_promotion("strict"):
            arrays = [x.astype(dtype) for x in (q, k, v)]
            out = jax.eval_shape(lambda q, k, v: call(q, k, v, **learned), *arrays)
            if out.dtype != dtype:
                raise BrokenLaw(f"{jnp.dtype(dtype).name} in, {out.dtype} out")
    with jax.enable_x64(True):
        out = jax.jit(call)(q, k, v, **learned)
        if out.dtype != jnp.float32:
            raise BrokenLaw(f"with x64 on: float32 in, {out.dtype} out")
        wide = widen((q, k, v, learned))
        out = jax.jit(call)(*wide[:3], **wide[3])
        reference = jax.jit(mechanism.reference)
        want = reference(*wide[:3], mask=base_mask(mechanism), **wide[3])
        if out.dtype != jnp.float64:
            raise BrokenLaw(f"float64 in, {out.dtype} out")
        assert_close(out, want, dtype=jnp.float64, what="float64", room=mechanism.room)
        mask = Causal() if Causal in mechanism.honours else FULL
        for arrays in ((q, k, v), wide[:3]):
            more = learned if arrays[0].dtype == jnp.float32 else wide[3]
            jax.eval_shape(
                jax.grad(lambda q, k, v, more: mechanism(q, k, v, mask=mask, **more).sum()),
                *arrays,
                more,
            )


def _promotes_aloud(mechanism):
    """Trace every form where jax forbids implicit rank and dtype promotion; in bfloat16 a step
    continues from a state of either dtype."""
    for dtype in (jnp.float32, jnp.bfloat16):
        for what, form in _forms(mechanism, dtype).items():
            with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
                error = error_of(lambda: jax.eval_shape(form))
            if error is not None and not isinstance(error, NotImplementedError):
                raise BrokenLaw(f"{what}, {jnp.dtype(dtype).name}: {error!r}") from error


def _forms(mechanism, dtype):
    """Each way to call a mechanism on arrays of one dtype, by name."""
    q, k, v, learned = inputs(mechanism, dtype=dtype)
    mask, bias = joined_mask(mechanism, T=q.shape[1], S=k.shape[1]), bias_for(mechanism)
    sizes = {"num_heads": q.shape[-2], "num_kv_heads": k.shape[-2], "head_dim": q.shape[-1]}
    gates = set(mechanism.gates(**sizes))
    sizes |= {"value_dim": v.shape[-1], "max_length": k.shape[1] + 1}

    def step(kept):
        once = {name: x[:, :1] if name in gates else x for name, x in learned.items()}
        state = mechanism.init_state(q.shape[:1], **sizes, dtype=kept)
        return mechanism.step(state, q[:, :1], k[:, :1], v[:, :1], **once)[1]

    return {
        "call and gradients": lambda: with_gradients(mechanism)((q, k, v, learned), mask, bias),
        "reference": lambda: mechanism.reference(q, k, v, mask=mask, **learned),
        "weights": lambda: mechanism.weights(q, k, mask=mask, **learned),
        "prefill": lambda: mechanism.prefill(q, k, v, max_length=sizes["max_length"], **learned)[1],
        "step": lambda: step(dtype),
    } | ({} if dtype == jnp.float32 else {"step from a float32 state": lambda: step(jnp.float32)})
