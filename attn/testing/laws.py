"""The laws, numbered: each takes a mechanism and raises BrokenLaw where it fails."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from attn.biases import Alibi, Bias
from attn.masks import FULL, Causal, Padding, Segments
from attn.mechanism import Mechanism
from attn.positions import alibi_slopes
from attn.testing.cases import SHAPE, base_mask, inputs, masks_for, term_examples, widen
from attn.testing.contract import BrokenLaw, assert_close, assert_same_bits, assert_zero
from attn.testing.trying import buffer_shapes, compare, error_of, expect, precise, with_gradients


def equals_reference(mechanism: Mechanism) -> None:
    """1. Output and every gradient equal the definition in float64: for every honoured mask at
    logit scale 8; for two of them at scale 1 and in bfloat16, for one in float16 too."""
    run = jax.jit(with_gradients(mechanism))
    shape = {"T": 19, "S": 23}
    with precise():
        named = masks_for(mechanism, **shape)
        few = {"FULL", "all joined"} & set(named)
        if "Causal, later" in named:  # that and all joined: the same again would tell no more
            named.pop("Causal")
        for name, mask in named.items():
            for scale in (1.0, 8.0) if name in few else (8.0,):
                arrays = inputs(mechanism, scale=scale, **shape)
                what = f"mask {name}, logit scale {scale:g}"
                compare(mechanism, run, arrays, mask, None, dtype=jnp.float32, what=what)
        for dtype, names in ((jnp.bfloat16, sorted(few)), (jnp.float16, sorted(few)[-1:])):
            for name in names:
                for scale in (1.0, 8.0):
                    arrays = inputs(mechanism, dtype=dtype, scale=scale, **shape)
                    what = f"mask {name}, logit scale {scale:g}, {jnp.dtype(dtype).name}"
                    compare(mechanism, run, arrays, named[name], None, dtype=dtype, what=what)
        if Bias in mechanism.honours:
            bias = Alibi(jnp.asarray(alibi_slopes(SHAPE["N"])))
            arrays = inputs(mechanism, **shape)
            mask = named.get("Padding", base_mask(mechanism))
            compare(mechanism, run, arrays, mask, bias, dtype=jnp.float32, what="ALiBi bias")


def refuses_the_rest(mechanism: Mechanism) -> None:
    """2. What is declared is taken, also where jax refuses to broadcast without a word; a mask term
    or bias that is not raises NotImplementedError by its name; wrong shapes, dtypes and bare arrays
    raise ValueError or TypeError."""
    q, k, v, learned = inputs(mechanism)
    T, S = q.shape[-3], k.shape[-3]
    call, define = (functools.partial(f, **learned) for f in (mechanism, mechanism.reference))
    for name, mask in term_examples(T=T, S=S).items():
        honoured = name in {kind.__name__ for kind in mechanism.honours}
        mask = mask if isinstance(mask, Causal) else base_mask(mechanism) & mask
        with jax.numpy_rank_promotion("raise"):
            error = error_of(lambda: jax.eval_shape(lambda q: call(q, k, v, mask=mask), q))
        if honoured and error is not None:
            raise BrokenLaw(f"{name} is declared and yet raises {error!r}")
        if not honoured:
            expect(NotImplementedError, error, name, f"mask {name}, not declared")
            error = error_of(lambda: jax.eval_shape(lambda q: define(q, k, v, mask=mask), q))
            expect(NotImplementedError, error, name, f"mask {name}, of the reference")
    for kind in mechanism.requires:
        error = error_of(lambda: call(q, k, v))
        expect(NotImplementedError, error, kind.__name__, f"no {kind.__name__}, though required")
    call = functools.partial(call, mask=base_mask(mechanism))
    if Bias not in mechanism.honours:
        bias = jnp.zeros((1, 1, T, S))
        error = error_of(lambda: call(q, k, v, bias=bias))
        expect(NotImplementedError, error, "bias", "a bias, not declared")
        error = error_of(lambda: define(q, k, v, mask=base_mask(mechanism), bias=bias))
        expect(NotImplementedError, error, "bias", "a bias, of the reference")
    wrong = {
        "rank-2 mask": (TypeError, "mask", lambda: call(q, k, v, mask=jnp.ones((T, S), bool))),
        "integer q": (TypeError, "q", lambda: call(q.astype(int), k, v)),
        "mixed dtypes": (TypeError, "k", lambda: call(q, k.astype(jnp.bfloat16), v)),
        "heads that do not divide": (ValueError, "head", lambda: call(q[..., :3, :], k, v)),
        "another width": (ValueError, "k", lambda: call(q, k[..., :-1], v)),
        "another length": (ValueError, "v", lambda: call(q, k, v[..., :-1, :, :])),
        "another batch": (ValueError, "k", lambda: call(q, k[:1], v)),
        "two axes": (ValueError, "q", lambda: call(q[0, :, 0], k, v)),
        "an integer bias": (TypeError, "bias", lambda: call(q, k, v, bias=jnp.ones((1, 1), int))),
    }
    for what, (kind, name, attempt) in wrong.items():
        expect(kind, error_of(attempt), name, what)


def is_strictly_causal(mechanism: Mechanism) -> None:
    """3. Whatever comes after a token, whichever (new values, x10, x1e8, NaN), leaves outputs up to
    it bit-identical, and no gradient flows back in time."""
    if Causal not in mechanism.honours:
        return
    q, k, v, learned = inputs(mechanism, scale=3.0)
    T = q.shape[-3]
    call = jax.jit(lambda q, k, v, g: mechanism(q, k, v, mask=Causal(), **g))
    out = call(q, k, v, learned)
    other = inputs(mechanism, scale=3.0, seed=7)
    gates = set(mechanism.gates(num_heads=4, num_kv_heads=2, head_dim=8))
    changes = {
        "new values": lambda x, y: y,
        "x10": lambda x, y: x * 10,
        "x1e8": lambda x, y: x * 1e8,
        "nan": lambda x, y: x * jnp.nan,
    }
    out = np.asarray(out)
    for t, (what, change) in itertools.product(range(T - 1), changes.items()):
        after = lambda x: (np.arange(x.shape[1]) > t).reshape(-1, *[1] * (x.ndim - 2))
        future = lambda x, y: jnp.where(after(x), change(x, y), x)
        moved = [future(x, y) for x, y in zip((q, k, v), other[:3])]
        extra = {n: future(x, other[3][n]) if n in gates else x for n, x in learned.items()}
        again = np.asarray(call(*moved, extra))
        what = f"future after {t} replaced ({what})"
        assert_same_bits(again[:, : t + 1], out[:, : t + 1], what=what)

    def past(q, k, v):
        return (mechanism(q, k, v, mask=Causal(), **learned)[:, :8] ** 2).sum()

    grad = jax.jit(jax.grad(past, argnums=(0, 1, 2)))
    dirty = grad(*(x.at[:, 8:].set(jnp.nan) for x in (q, k, v)))
    for name, clean, after in zip("qkv", grad(q, k, v), dirty):
        assert_zero(clean[:, 8:], what=f"gradient of outputs up to 7 with respect to later {name}")
        what = f"gradient of outputs up to 7 with respect to {name} when the future is NaN"
        assert_same_bits(after[:, :8], clean[:, :8], what=what)


def does_not_leak(mechanism: Mechanism) -> None:
    """4. Nothing passes between batch rows, between documents, or from padding, NaN included."""
    q, k, v, learned = inputs(mechanism)
    call = jax.jit(lambda q, k, v, mask: mechanism(q, k, v, mask=mask, **learned))
    spoil = lambda x: x.at[1].set(jnp.nan)
    what = "row 0 when row 1 is NaN"
    base = base_mask(mechanism)
    again = call(spoil(q), spoil(k), spoil(v), base)
    assert_same_bits(again[0], call(q, k, v, base)[0], what=what)
    run = jax.jit(with_gradients(mechanism))
    bases = {} if mechanism.requires else {"": FULL}
    bases |= {" with Causal": Causal()} if Causal in mechanism.honours else {}
    for also, base in bases.items():
        if Padding in mechanism.honours:
            real = np.arange(k.shape[1]) < np.array([[11], [19]])
            fill = lambda x, value: jnp.where(real[..., None, None], x, value)
            mask = base & Padding(jnp.array([11, 19], jnp.int32))
            clean = run((q, fill(k, 0), fill(v, 0), learned), mask, None)
            dirty = run((q, fill(k, jnp.nan), fill(v, jnp.inf), learned), mask, None)
            jax.tree.map(
                functools.partial(assert_same_bits, what=f"NaN and Inf in padding{also}"),
                dirty,
                clean,
            )
            for grad in clean[1][0][1:3]:
                assert_zero(grad[~real], what=f"gradient of padding{also}")
            keys = base & Padding(keys=jnp.asarray(real))
            what = "Padding(keys=...) against Padding(lengths)"
            out = call(q, fill(k, jnp.nan), fill(v, jnp.inf), keys)
            assert_close(out, clean[0], dtype=q.dtype, what=what)
        if Segments in mechanism.honours:
            ids = jnp.broadcast_to(jnp.array([0] * 7 + [1] * 9 + [0] * 3, jnp.int32), q.shape[:2])
            other = (ids == 1)[..., None, None]
            mask = base & Segments(ids, ids)
            moved = [jnp.where(other, jnp.nan, x) for x in (q, k, v)]
            keep = np.asarray(ids == 0)
            what = f"document 0 when document 1 is NaN{also}"

            def own(q, k, v, mask=mask, keep=keep):
                out = mechanism(q, k, v, mask=mask, **learned)[keep]
                return (out**2).sum(), out

            grad = jax.jit(jax.grad(own, argnums=(0, 1, 2), has_aux=True))
            (dirty, out), (clean, want) = grad(*moved), grad(q, k, v)
            assert_same_bits(out, want, what=what)
            for name, x, y in zip("qkv", dirty, clean):
                assert_same_bits(x[keep], y[keep], what=f"gradient of {name} in {what}")


def sees_nothing_gives_zero(mechanism: Mechanism) -> None:
    """5. A query that sees nothing gets exactly 0 with zero gradients; S, T or B may be 0."""
    run = jax.jit(with_gradients(mechanism))
    q, k, v, learned = inputs(mechanism)
    if Padding in mechanism.honours:
        base = base_mask(mechanism)
        nothing = base & Padding(jnp.array([0, 19], jnp.int32))
        out, ((dq, dk, dv, _), _) = run((q, k * jnp.nan, v, learned), nothing, None)
        run((q, k, v, learned), nothing, None)
        for what, x in (("output", out), ("q", dq), ("k", dk), ("v", dv)):
            assert_zero(x[0], what=f"{what} of a batch row of length 0")
        some = np.arange(19) % 3 > 0
        blind = base & Padding(queries=jnp.broadcast_to(jnp.asarray(some), (2, 19)))
        dirty = jnp.where(some[:, None, None], q, jnp.nan)
        out, ((dq, dk, dv, _), _) = run((dirty, k, v, learned), blind, None)
        assert_zero(out[:, ~some], what="output of padded queries")
        assert_zero(dq[:, ~some], what="gradient of padded queries")
        for name, x in (("k", dk), ("v", dv), ("q", dq)):
            if not np.isfinite(np.asarray(x)).all():
                raise BrokenLaw(f"gradient of {name} is not finite when a padded query is NaN")
    for shape in ({"S": 0}, {"T": 0}, {"batch": (0,)}, {"T": 0, "S": 0}):
        arrays = inputs(mechanism, **shape)
        out, (gradients, _) = run(arrays, base_mask(mechanism), None)
        want = (*arrays[0].shape[:-1], arrays[2].shape[-1])
        if out.shape != want:
            raise BrokenLaw(f"{shape}: expected shape {want}, got {out.shape}")
        assert_zero(out, what=f"output for {shape}")
        jax.tree.map(functools.partial(assert_zero, what=f"gradients for {shape}"), gradients)


def any_length_works(mechanism: Mechanism) -> None:
    """6. Lengths 1, one less and more than a block, two blocks and one more, a prime."""
    names = ("block", "chunk", "block_size")
    block = next((getattr(mechanism, name) for name in names if hasattr(mechanism, name)), 8)
    block = min(block[0] if isinstance(block, tuple) else block or 8, 16)
    run = jax.jit(with_gradients(mechanism))
    with precise():
        for T in sorted({1, block - 1, block, block + 1, 2 * block + 1, 31} - {0}):
            mask = masks_for(mechanism, T=T, S=T).get("Causal", base_mask(mechanism))
            arrays = inputs(mechanism, T=T, S=T)
            what = {"what": f"T = S = {T}", "dtype": jnp.float32, "jit_reference": True}
            compare(mechanism, run, arrays, mask, None, **what)


def transforms_agree(mechanism: Mechanism) -> None:
    """7. Grouped heads equal repeated ones; leading axes equal vmap; jit equals eager; remat,
    scan over layers and shard_map over batch and heads work."""
    q, k, v, learned = inputs(mechanism, T=11, S=11)
    named = masks_for(mechanism, T=11, S=11)
    mask = named.get("all joined", named.get("Padding", base_mask(mechanism)))
    close = functools.partial(assert_close, dtype=jnp.float32, room=mechanism.room)
    call = jax.jit(lambda q, k, v, g, mask: mechanism(q, k, v, mask=mask, **g))
    with precise():
        out = call(q, k, v, learned, mask)
        close(mechanism(q, k, v, mask=mask, **learned), out, what="eager against jit")

        grouped_equals_repeated(mechanism, call, (q, k, v, learned), mask)
        shapes = mechanism.gates(num_heads=4, num_kv_heads=2, head_dim=8)
        gates = {name: learned[name] for name in shapes}
        learned = {name: x for name, x in learned.items() if name not in shapes}

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
    """Two key heads under four query heads equal four key heads, each of the two twice, for
    `call(q, k, v, learned, mask)`; where each learned array belongs to a head, or to all."""
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
    # heads that choose together do so apart once their keys are repeated
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
    """8. No T x S buffer in the traced forward and backward pass, and compiled bytes (temporary
    + argument + output - alias) grow at most 2.3x per doubling of T."""
    if not mechanism.linear_memory:
        return
    mask = Causal() if Causal in mechanism.honours else FULL
    small = {"batch": (1,), "N": 2, "K": 1, "H": 8, "D": 8}

    def traced(T):
        arrays = inputs(mechanism, T=T, S=T, **small)
        return jax.jit(lambda a: with_gradients(mechanism)(a, mask, None)), arrays

    run, arrays = traced(4096)
    most = 4096 * 4096 // 2
    for shape in buffer_shapes(jax.make_jaxpr(run)(arrays).jaxpr):
        if np.prod(shape, dtype=float) >= most:
            raise BrokenLaw(f"at T = S = 4096 the program holds an array of shape {list(shape)}")
    sizes = []
    for T in (2048, 4096):
        run, arrays = traced(T)
        m = run.lower(arrays).compile().memory_analysis()
        sizes.append(
            m.temp_size_in_bytes
            + m.argument_size_in_bytes
            + m.output_size_in_bytes
            - m.alias_size_in_bytes
        )
    if sizes[1] > 2.3 * sizes[0]:
        raise BrokenLaw(f"bytes grow {sizes[1] / sizes[0]:.2f}x from T = 2048 to 4096: {sizes}")


def steps_equal_parallel(mechanism: Mechanism) -> None:
    """9. Decoding token by token equals the causal parallel form, where the variant decodes; with
    ALiBi too, where it honours a bias. A prompt past `max_length` raises ValueError."""
    _decode(mechanism)
    if Bias in mechanism.honours:
        _decode(mechanism, bias=Alibi(jnp.asarray(alibi_slopes(SHAPE["N"]))))


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
    step, prefill = (
        jax.jit(mechanism.step),
        jax.jit(mechanism.prefill, static_argnames="max_length"),
    )

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
    """10. The effective matrix times the values is the output, where the variant has a matrix."""
    arrays = inputs(mechanism)
    named = masks_for(mechanism, T=19, S=19)
    for name in sorted({"FULL", "Causal", "Padding", "all joined"} & set(named)):
        try:
            weights_times_values(mechanism, arrays, named[name], what=f"mask {name}")
        except NotImplementedError:
            return


def weights_times_values(mechanism: Mechanism, arrays, mask, *, what: str) -> None:
    """`weights` @ v equals the output under one mask."""
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
    """11. One trace a shape; the dtype is kept under strict promotion and with x64 on; no form
    broadcasts arrays of fewer axes, or promotes dtypes, without a word."""
    _promotes_aloud(mechanism)
    q, k, v, learned = inputs(mechanism, T=7, S=7)
    call = functools.partial(mechanism, mask=base_mask(mechanism))
    count = 0

    def counted(q, k, v):
        nonlocal count
        count += 1
        return call(q, k, v, **learned)

    run = jax.jit(counted)
    run(q, k, v), run(v.repeat(2, -2)[..., :1].repeat(8, -1) * q, k, v)
    if count != 1:
        raise BrokenLaw(f"expected one trace for one shape, got {count}")
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
    """Every form is traced where jax refuses to broadcast, and to promote dtypes, without a word;
    in bfloat16 a step goes on from a state of either dtype."""
    for dtype in (jnp.float32, jnp.bfloat16):
        for what, form in _forms(mechanism, dtype).items():
            with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
                error = error_of(lambda: jax.eval_shape(form))
            if error is not None and not isinstance(error, NotImplementedError):
                raise BrokenLaw(f"{what}, {jnp.dtype(dtype).name}: {error!r}") from error


def _forms(mechanism, dtype):
    """Each way to call a mechanism, by name, on arrays of one dtype."""
    q, k, v, learned = inputs(mechanism, dtype=dtype)
    named = masks_for(mechanism, T=q.shape[1], S=k.shape[1])
    mask = named.get("all joined", named.get("Padding", base_mask(mechanism)))
    bias = Alibi(jnp.asarray(alibi_slopes(SHAPE["N"]))) if Bias in mechanism.honours else None
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
