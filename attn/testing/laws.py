"""Laws 1 to 6: what a mechanism computes, and what it sees.

Each takes a mechanism and raises BrokenLaw if it fails; 8 is in `memory.py`, 11 in `traces.py`, the
last in `dropping.py`, the others in `runs.py`.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from attn.biases import Bias
from attn.masks import FULL, Causal, Padding, Segments
from attn.mechanism import Mechanism
from attn.testing.cases import base_mask, bias_for, inputs, masks_for, term_examples, trained
from attn.testing.contract import BrokenLaw, assert_close, assert_same_bits, assert_zero
from attn.testing.trying import compare, error_of, expect, precise, with_gradients


def equals_reference(mechanism: Mechanism) -> None:
    """1. The output and every gradient equal those of the definition in float64: for every honoured
    mask at logit scale 8; for two of them at scale 1 and in bfloat16, for one in float16 too."""
    run = jax.jit(with_gradients(mechanism))
    shape = {"T": 19, "S": 23}
    with precise():
        named = masks_for(mechanism, **shape)
        few = {"FULL", "all joined"} & set(named)
        if "Causal, later" in named:  # with it and all joined, Causal shows nothing more
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
        if (bias := bias_for(mechanism)) is not None:
            arrays = inputs(mechanism, **shape)
            mask = named.get("Padding", base_mask(mechanism))
            compare(mechanism, run, arrays, mask, bias, dtype=jnp.float32, what="ALiBi bias")


def refuses_the_rest(mechanism: Mechanism) -> None:
    """2. Declared mask terms are accepted, also when jax forbids implicit rank promotion; a mask
    term or bias that is not declared raises NotImplementedError naming it; wrong shapes, dtypes and
    bare arrays raise ValueError or TypeError."""
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
    """3. Whatever replaces the tokens after a token (new values, x10, x1e8, x1e30, 3e38, NaN), the
    outputs up to it stay bit-identical, and no gradient of them reaches later tokens."""
    if Causal not in mechanism.honours:
        return
    q, k, v, learned = trained(mechanism, inputs(mechanism, scale=3.0))
    T = q.shape[-3]
    call = jax.jit(lambda q, k, v, g: mechanism(q, k, v, mask=Causal(), **g))
    out = call(q, k, v, learned)
    other = inputs(mechanism, scale=3.0, seed=7)
    gates = set(mechanism.gates(num_heads=4, num_kv_heads=2, head_dim=8))
    changes = {
        "new values": lambda x, y: y,
        "x10": lambda x, y: x * 10,
        "x1e8": lambda x, y: x * 1e8,
        "x1e30": lambda x, y: x * 1e30,  # of which products overflow
        "3e38": lambda x, y: jnp.copysign(3e38, x),  # of which sums overflow
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

    def past(q, k, v, g):
        return (mechanism(q, k, v, mask=Causal(), **g)[:, :7] ** 2).sum()

    grad = jax.jit(jax.grad(past, argnums=(0, 1, 2, 3)))
    # by which products of 3e38 are inf - inf whatever the order in which a machine sums
    large = {name: x if name in gates else 10 * x for name, x in learned.items()}
    cases = ("nan", learned), ("x1e30", learned), ("3e38", learned), ("3e38", large)
    for what, given in cases:
        *clean, of_learned = grad(q, k, v, given)
        for name, x in zip("qkv", clean):
            assert_zero(x[:, 7:], what=f"gradient of outputs up to 6 with respect to later {name}")
        later = lambda x: x.at[:, 7:].set(changes[what](x[:, 7:], None))
        moved = () if what == "3e38" else gates  # which are never as large
        extra = {name: later(x) if name in moved else x for name, x in given.items()}
        *dirty, taught = grad(*map(later, (q, k, v)), extra)
        of = f"gradient of outputs up to 6 when the future is {what}, with respect to"
        for name, x, y in zip("qkv", dirty, clean):
            assert_zero(x[:, 7:], what=f"{of} later {name}")
            assert_same_bits(x[:, :7], y[:, :7], what=f"{of} {name}")
        for name, x in taught.items():
            x, y = (x[:, :7] if name in gates else x for x in (x, of_learned[name]))
            assert_same_bits(x + 0, y + 0, what=f"{of} {name}")  # whatever the sign of a zero


def does_not_leak(mechanism: Mechanism) -> None:
    """4. Nothing, NaN included, passes between batch rows, between documents, or from padding."""
    q, k, v, learned = trained(mechanism, inputs(mechanism))
    call = jax.jit(lambda q, k, v, mask: mechanism(q, k, v, mask=mask, **learned))
    spoil = lambda x: x.at[1].set(jnp.nan)
    what = "row 0 when row 1 is NaN"
    base = base_mask(mechanism)
    again = call(spoil(q), spoil(k), spoil(v), base)
    assert_same_bits(again[0], call(q, k, v, base)[0], what=what)
    if learned:
        _other_rows_teach_the_same(mechanism, (q, k, v, learned), spoil, base)
    run = jax.jit(with_gradients(mechanism))
    bases = {} if mechanism.requires else {"": FULL}
    bases |= {" with Causal": Causal()} if Causal in mechanism.honours else {}
    for also, base in bases.items():
        if Padding in mechanism.honours:
            real = np.arange(k.shape[1]) < np.array([[11], [19]])
            fill = lambda x, value: jnp.where(real[..., None, None], x, value)
            mask = base & Padding(jnp.array([11, 19], jnp.int32))
            clean = run((q, fill(k, 0), fill(v, 0), learned), mask, None)
            for what, *values in (("NaN and Inf", jnp.nan, jnp.inf), ("3e38", 3e38, -3e38)):
                dirty = run((q, *map(fill, (k, v), values), learned), mask, None)
                same = functools.partial(assert_same_bits, what=f"{what} in padding{also}")
                jax.tree.map(same, dirty, clean)
            for grad in clean[1][0][1:3]:
                assert_zero(grad[~real], what=f"gradient of padding{also}")
            keys = base & Padding(keys=jnp.asarray(real))
            what = "Padding(keys=...) against Padding(lengths)"
            out = call(q, fill(k, jnp.nan), fill(v, jnp.inf), keys)
            assert_close(out, clean[0], dtype=q.dtype, what=what)
            # token i is query i and key i: what is padding asks nothing that a real one is told
            asked = call(fill(q, jnp.nan), fill(k, jnp.nan), fill(v, jnp.inf), keys)
            what = f"real rows when queries in padding are NaN{also}"
            assert_same_bits(asked[real], out[real], what=what)
        if Segments in mechanism.honours:
            ids = jnp.broadcast_to(jnp.array([0] * 7 + [1] * 9 + [0] * 3, jnp.int32), q.shape[:2])
            other = (ids == 1)[..., None, None]
            mask = base & Segments(ids, ids)
            keep = np.asarray(ids == 0)

            def own(q, k, v, mask=mask, keep=keep):
                out = mechanism(q, k, v, mask=mask, **learned)[keep]
                return (out**2).sum(), out

            grad = jax.jit(jax.grad(own, argnums=(0, 1, 2), has_aux=True))
            clean, want = grad(q, k, v)
            for value in (jnp.nan, 3e38):
                dirty, out = grad(*(jnp.where(other, value, x) for x in (q, k, v)))
                what = f"document 0 when document 1 is {value:g}{also}"
                assert_same_bits(out, want, what=what)
                for name, x, y in zip("qkv", dirty, clean):
                    assert_same_bits(x[keep], y[keep], what=f"gradient of {name} in {what}")


def _other_rows_teach_the_same(mechanism, arrays, spoil, base):
    """The gradient of learned arrays from row 0 alone does not depend on row 1."""
    *qkv, learned = arrays
    loss = lambda learned, *qkv: (mechanism(*qkv, mask=base, **learned)[0] ** 2).sum()
    grad = jax.jit(jax.grad(loss))
    dirty, clean = grad(learned, *map(spoil, qkv)), grad(learned, *qkv)
    for name, x in clean.items():
        what = f"gradient of {name} by row 0 when row 1 is NaN"
        assert_same_bits(dirty[name] + 0, x + 0, what=what)  # whatever the sign of a zero


def sees_nothing_gives_zero(mechanism: Mechanism) -> None:
    """5. A query that sees nothing gets exactly 0 with zero gradients; S, T or B may be 0."""
    run = jax.jit(with_gradients(mechanism))
    q, k, v, learned = inputs(mechanism)
    if Padding in mechanism.honours:
        base = base_mask(mechanism)
        nothing = base & Padding(jnp.array([0, 19], jnp.int32))
        out, ((dq, dk, dv, _), _) = run((q, k * jnp.nan, v, learned), nothing, None)
        for what, x in (("output", out), ("q", dq), ("k", dk), ("v", dv)):
            assert_zero(x[0], what=f"{what} of a batch row of length 0")
        real = np.arange(19) % 3 > 0
        blind = base & Padding(queries=jnp.broadcast_to(jnp.asarray(real), (2, 19)))
        dirty = jnp.where(real[:, None, None], q, jnp.nan)
        out, ((dq, dk, dv, _), _) = run((dirty, k, v, learned), blind, None)
        assert_zero(out[:, ~real], what="output of padded queries")
        assert_zero(dq[:, ~real], what="gradient of padded queries")
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
    """6. These lengths work: 1, a block, one less and more, two blocks and one more, a prime."""
    names = ("block", "chunk", "block_size")
    block = next(filter(None, (getattr(mechanism, name, None) for name in names)), 8)
    block = min(block[0] if isinstance(block, tuple) else block, 16)
    run = jax.jit(with_gradients(mechanism))
    with precise():
        for T in sorted({1, block - 1, block, block + 1, 2 * block + 1, 31} - {0}):
            mask = masks_for(mechanism, T=T, S=T).get("Causal", base_mask(mechanism))
            arrays = inputs(mechanism, T=T, S=T)
            what = {"what": f"T = S = {T}", "dtype": jnp.float32, "jit_reference": True}
            compare(mechanism, run, arrays, mask, None, **what)
