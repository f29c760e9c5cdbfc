"""Laws 7, 9 and 10: a mechanism gives the same however it is run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from attn.biases import Bias
from attn.masks import Causal
from attn.mechanism import Mechanism
from attn.testing.cases import base_mask, bias_for, inputs, joined_mask, masks_for
from attn.testing.contract import BrokenLaw, assert_close
from attn.testing.trying import error_of, expect, precise


def transforms_agree(mechanism: Mechanism) -> None:
    """7. Grouped key heads equal repeated ones; leading axes equal vmap; jit equals eager; remat,
    scan over layers and shard_map over batch and heads work."""
    q, k, v, learned = inputs(mechanism, T=11, S=11)
    mask = joined_mask(mechanism, T=11, S=11)
    close = functools.partial(assert_close, dtype=jnp.float32, room=mechanism.room)
    call = jax.jit(lambda q, k, v, g, mask: mechanism(q, k, v, mask=mask, **g))
    with precise():
        out = call(q, k, v, learned, mask)
        close(mechanism(q, k, v, mask=mask, **learned), out, what="eager against jit")

        grouped_equals_repeated(mechanism, call, (q, k, v, learned), mask)
        names = mechanism.gates(num_heads=4, num_kv_heads=2, head_dim=8)
        gates = {name: learned[name] for name in names}
        learned = {name: x for name, x in learned.items() if name not in names}

        base = base_mask(mechanism)
        plain = jax.jit(lambda q, k, v, g: mechanism(q, k, v, mask=base, **g, **learned))
        alone = q, k, v, gates
        more = jax.tree.map(lambda x: jnp.stack([x, x[::-1]]), alone)  # [2, B, ...]
        close(jax.jit(jax.vmap(plain))(*more), plain(*more), what="vmap against a leading axis")
        first = jax.tree.map(lambda x: x[0], alone)
        close(plain(*first), plain(*alone)[0], what="no batch axis")
        learned |= gates

        loss = lambda q: (mechanism(q, k, v, mask=mask, **learned) ** 2).sum()
        grad = jax.jit(jax.grad(loss))(q)
        again = jax.jit(jax.grad(jax.checkpoint(loss)))(q)
        close(again, grad, kind="gradient", what="gradient under remat")

        def deep(q):
            layer = lambda x, _: (
                jnp.pad(mechanism(x, k, v, mask=mask, **learned), [(0, 0)] * 3 + [(0, 2)]),
                None,
            )
            return (jax.lax.scan(layer, q, None, length=2)[0] ** 2).sum()

        value, grad = jax.jit(jax.value_and_grad(deep))(q)
        if not (np.isfinite(value) and np.isfinite(np.asarray(grad)).all()):
            raise BrokenLaw("scan over layers: the value or the gradient is not finite")
        if not learned:
            _shard_map_works(mechanism, q, k, v, out=plain(q, k, v, {}), close=close)


def grouped_equals_repeated(mechanism: Mechanism, call, arrays, mask) -> None:
    """Check that two key heads under four query heads equal four, each of the two repeated, for
    `call(q, k, v, learned, mask)`; a learned array may belong to each head or to all."""
    q, k, v, learned = arrays
    heads = lambda x: jnp.repeat(x, 2, axis=-2)
    gates_of = lambda K: mechanism.gate_shapes(num_heads=4, num_kv_heads=K, head_dim=q.shape[-1])
    shapes, apart = gates_of(2), gates_of(4)
    gates = {name: learned[name] for name in shapes}
    learned = {name: x for name, x in learned.items() if name not in shapes}
    sizes = {"num_heads": 4, "head_dim": q.shape[-1], "value_dim": v.shape[-1], "max_length": 32}
    init = lambda K: mechanism.init(jax.random.key(0), num_kv_heads=K, **sizes)
    few, many = jax.eval_shape(lambda: (init(2), init(4)))
    of_key_heads = {name for name in few if few[name].shape != many[name].shape}
    again = {n: jnp.repeat(x, 2, 0) if n in of_key_heads else x for n, x in learned.items()}
    again |= {n: x if shapes[n] == apart[n] else heads(x) for n, x in gates.items()}
    # heads that select together select separately once their keys are repeated
    one = jnp.repeat(q[..., ::2, :], 2, axis=-2) if mechanism.shares_selection else q
    assert_close(
        call(one, heads(k), heads(v), again, mask),
        call(one, k, v, {**learned, **gates}, mask),
        dtype=q.dtype,
        what="repeated key heads against grouped",
        room=mechanism.room,
    )


def _shard_map_works(mechanism, q, k, v, *, out, close):
    from jax.sharding import AxisType, PartitionSpec

    axes = {"axis_types": (AxisType.Auto,) * 2, "devices": jax.devices()[:1]}
    mesh = jax.make_mesh((1, 1), ("batch", "heads"), **axes)
    spec = PartitionSpec("batch", None, "heads", None)
    base = base_mask(mechanism)
    for mask in {base, Causal()} if Causal in mechanism.honours else (base,):
        call = functools.partial(mechanism, mask=mask)
        sharded = jax.shard_map(call, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
        want = out if mask == base else jax.jit(call)(q, k, v)
        close(jax.jit(sharded)(q, k, v), want, what="shard_map over batch and heads")
        jax.jit(jax.grad(lambda q, sharded=sharded: (sharded(q, k, v) ** 2).sum()))(q)


def steps_equal_parallel(mechanism: Mechanism) -> None:
    """9. Decoding token by token equals the causal parallel form, if the variant decodes; with
    ALiBi too, if it honours a bias. A prompt longer than `max_length` raises ValueError."""
    _decode(mechanism)
    if (bias := bias_for(mechanism)) is not None:
        _decode(mechanism, bias=bias)


def _decode(mechanism: Mechanism, **bias: Bias) -> None:
    T = 11
    q, k, v, learned = inputs(mechanism, T=T, S=T)
    learned = {**learned, **bias}
    gates = set(mechanism.gates(num_heads=4, num_kv_heads=2, head_dim=8))
    try:
        state = mechanism.init_state(
            (2,), num_heads=4, num_kv_heads=2, head_dim=8, value_dim=6, max_length=T
        )
    except NotImplementedError:
        return
    step = jax.jit(mechanism.step)
    prefill = jax.jit(mechanism.prefill, static_argnames="max_length")

    def tokens(start, stop):
        cut = lambda x: x[:, start:stop]
        return map(cut, (q, k, v)), {n: cut(x) if n in gates else x for n, x in learned.items()}

    with precise():
        whole = jax.jit(mechanism.reference)(q, k, v, mask=Causal(), **learned)
        close = functools.partial(assert_close, dtype=q.dtype, room=mechanism.room)
        for t in range(T):
            qkv, extra = tokens(t, t + 1)
            state, out = step(state, *qkv, **extra)
            close(out, whole[:, t : t + 1], what=f"step {t}")
        qkv, extra = tokens(0, 6)
        try:
            state, out = prefill(*qkv, max_length=T, **extra)
        except NotImplementedError:
            return
        close(out, whole[:, :6], what="prefill of 6 tokens")
        over = lambda: mechanism.prefill(*tokens(0, 6)[0], max_length=5, **extra)
        error = error_of(lambda: jax.eval_shape(over))
        expect(ValueError, error, "max_length", "prefill of 6 tokens with max_length=5")
        for t in (6, 7):
            qkv, extra = tokens(t, t + 1)
            state, out = step(state, *qkv, **extra)
            close(out, whole[:, t : t + 1], what=f"step {t} after a prefill of 6")


def weights_give_output(mechanism: Mechanism) -> None:
    """10. The effective matrix times the values is the output, if the variant has a matrix."""
    arrays = inputs(mechanism)
    named = masks_for(mechanism, T=19, S=19)
    for name in sorted({"FULL", "Causal", "Padding", "all joined"} & set(named)):
        try:
            weights_times_values(mechanism, arrays, named[name], what=f"mask {name}")
        except NotImplementedError:
            return


def weights_times_values(mechanism: Mechanism, arrays, mask, *, what: str) -> None:
    """Check that `weights` @ v equals the output under one mask."""
    q, k, v, learned = arrays
    with precise():
        w = jax.jit(mechanism.weights)(q, k, mask=mask, **learned)
        shape = (*q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3])
        if w.shape != shape:
            raise BrokenLaw(f"weights: expected shape {list(shape)}, got {list(w.shape)}")
        values = jnp.repeat(v, q.shape[-2] // v.shape[-2], axis=-2)
        out = jnp.einsum("bnts,bsnd->btnd", w, values)
        want = jax.jit(mechanism)(q, k, v, mask=mask, **learned)
        what = f"weights @ v, {what}"
        assert_close(out, want, dtype=q.dtype, what=what, room=2 * mechanism.room)
