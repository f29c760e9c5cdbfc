"""Laws 7 to 11: a mechanism gives the same however it is run, in the memory that it promises."""

import copy
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from attn.biases import Bias
from attn.masks import FULL, Causal
from attn.mechanism import Mechanism
from attn.testing.cases import base_mask, bias_for, inputs, joined_mask, masks_for, widen
from attn.testing.contract import BrokenLaw, assert_close
from attn.testing.trying import error_of, expect, holds_no_square, precise, with_gradients

LENGTHS = (2048, 8192)  # tokens: memory is compared between them


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


def memory_is_linear(mechanism: Mechanism) -> None:
    """8. The traced forward and backward pass holds no T x S buffer, and compiled bytes (temporary
    + argument + output - alias) grow at most 2.3x per doubling of T, over two of them: blocks
    rounded up make one uneven. A variant that refuses so many tokens holds it trivially."""
    if not mechanism.linear_memory:
        return
    mask = Causal() if Causal in mechanism.honours else FULL
    small = {"batch": (1,), "N": 2, "K": 1, "H": 8, "D": 8}

    def traced(T):
        arrays = inputs(mechanism, T=T, S=T, **small)
        return jax.jit(lambda a: with_gradients(mechanism)(a, mask, None)), arrays

    run, arrays = traced(LENGTHS[-1])
    if _refused_for_a_field(mechanism, error_of(lambda: jax.eval_shape(run, arrays))):
        return
    holds_no_square(run, (arrays,), LENGTHS[-1], what="the program")
    sizes = []
    for T in LENGTHS:
        run, arrays = traced(T)
        m = run.lower(arrays).compile().memory_analysis()
        sizes.append(
            m.temp_size_in_bytes
            + m.argument_size_in_bytes
            + m.output_size_in_bytes
            - m.alias_size_in_bytes
        )
    growth = math.sqrt(sizes[1] / sizes[0])
    if growth > 2.3:
        first, last = LENGTHS
        what = f"bytes grow {growth:.2f}x per doubling of T from {first} to {last}"
        raise BrokenLaw(f"{what}, allowed 2.3: {sizes}")


def _refused_for_a_field(mechanism: Mechanism, error: Exception | None) -> bool:
    """Whether it is a ValueError that begins with the name of a field, as of `length`."""
    fields = tuple(f"{field.name}:" for field in dataclasses.fields(mechanism))
    return isinstance(error, ValueError) and str(error).startswith(fields)


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
