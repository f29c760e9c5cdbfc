"""Quest: pages by their bounds, causally; a decoding step reads no page that is not chosen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import Causal, Padding
from attn.sparse._select import Blocks
from attn.sparse.moba import MoBA
from attn.sparse.quest import Quest, quest_attention
from attn.testing import inputs


def by_loops(m, q, k, v, real):
    """The definition in loops over the channels of each page."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (B, T, N, H), (S, G) = q.shape, (k.shape[1], q.shape[2] // k.shape[2])
    out = np.zeros((B, T, N, v.shape[-1]))
    pages = [range(a, min(a + m.page, S)) for a in range(0, S, m.page)]
    for b, t, n in np.ndindex(B, T, N):
        bound = {}
        for c, page in enumerate(pages[: t // m.page]):
            keys = k[b, [j for j in page if real[b, j]], n // G]
            if len(keys):
                ends = zip(q[b, t, n], keys.min(0), keys.max(0))
                bound[c] = sum(max(x * low, x * high) for x, low, high in ends)
                assert bound[c] >= (keys @ q[b, t, n]).max() - 1e-9
        ranked = sorted(bound, key=lambda c: -bound[c])
        own = [t // m.page] if t // m.page < len(pages) else []
        chosen = (own + ranked)[: m.top]
        sees = [j for j in range(min(t + 1, S)) if j // m.page in chosen and real[b, j]]
        if sees:
            s = k[b, sees, n // G] @ q[b, t, n] / H**0.5
            e = np.exp(s - s.max())
            out[b, t, n] = e / e.sum() @ v[b, sees, n // G]
    return out


@pytest.mark.parametrize(("T", "S", "page", "top"), [(19, 23, 4, 2), (23, 19, 5, 3), (7, 3, 8, 1)])
def test_equals_loops_with_padding(T, S, page, top):
    m = Quest(page=page, top=top)
    q, k, v, _ = inputs(m, T=T, S=S, scale=2.0)
    real = np.ones((2, S), bool)
    real[0, S - 2 :] = False
    real[1, : S // 2 : 2] = False  # holes, and a whole page
    real[1, : min(page, S - 1)] = False
    fill = lambda x: jnp.where(real[..., None, None], x, jnp.nan)
    out = jax.jit(m)(q, fill(k), fill(v), mask=Causal() & Padding(keys=jnp.asarray(real)))
    np.testing.assert_allclose(out, by_loops(m, q, k, v, real), rtol=0, atol=3e-6)


def test_as_many_pages_as_there_are_is_softmax():
    q, k, v, _ = inputs(Quest())
    whole = jax.jit(attn.dot_product_attention)(q, k, v, mask=Causal())
    call = functools.partial(quest_attention, page=4, top=5)
    out = jax.jit(call)(q, k, v, mask=Causal())
    np.testing.assert_allclose(out, whole, rtol=0, atol=2e-6)


def made(jaxpr):
    """(primitive, shape) of every value in a jaxpr and in those inside it."""
    for equation in jaxpr.eqns:
        for x in equation.outvars:
            yield equation.primitive.name, x.aval.shape
        for value in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from made(inner)


@pytest.mark.parametrize("m", [Quest(page=16, top=4), MoBA(block_size=16, top=4)], ids=repr)
def test_a_step_works_on_the_chosen_pages_alone(m):
    """4096 keys, 256 pages, 4 of 16 chosen: but for the token put in its place, nothing is as large
    as two vectors of a page, or as a score a key."""
    heads, L, H = 2, 4096, 8
    sizes = {"num_heads": 4, "num_kv_heads": heads, "head_dim": H, "value_dim": H}
    state = m.init_state((1,), max_length=L, **sizes)
    q, k, v, _ = inputs(m, T=1, S=1, batch=(1,), D=H)
    jaxpr = jax.make_jaxpr(m.step)(state, q, k, v).jaxpr
    moved = {"reshape", "dynamic_update_slice", "jit", "pjit", "broadcast_in_dim"}
    work = [(name, shape) for name, shape in made(jaxpr) if name not in moved]
    assert len(work) > 50
    assert max(np.prod(shape, dtype=int) for _, shape in work) <= heads * L // 16 * H
    assert not [shape for _, shape in work if L in shape]
    state, out = jax.jit(m.step)(state, q, k, v)
    assert out.shape == (1, 1, 4, H)


@pytest.mark.slow
def test_state_holds_the_bounds_of_each_page():
    m = Quest(page=4, top=2)
    q, k, v, _ = inputs(m, T=11, S=11)
    step = jax.jit(m.step)
    prefill = jax.jit(m.prefill, static_argnames="max_length")
    state, _ = prefill(q[:, :6], k[:, :6], v[:, :6], max_length=11)
    for t in range(6, 11):
        state, _ = step(state, *(x[:, t : t + 1] for x in (q, k, v)))
    low, high = jax.jit(lambda k, v: m.summary(Blocks.of(k, v, None, 4)))(k, v)
    for got, want in zip(state.summary, (low, high), strict=True):
        np.testing.assert_array_equal(got, want.reshape(2, 2, 3, 8))


def test_a_full_state_says_so():
    m = Quest(page=4, top=2)
    q, k, v, _ = inputs(m, T=5, S=5)
    prefill = jax.jit(m.prefill, static_argnames="max_length")
    state, out = prefill(q[:, :4], k[:, :4], v[:, :4], max_length=4)
    assert np.isfinite(out).all()
    assert np.isnan(jax.jit(m.step)(state, q[:, 4:], k[:, 4:], v[:, 4:])[1]).all()


@pytest.mark.parametrize("name", ["page", "top"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True])
def test_bad_settings_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        Quest(**{name: value})


def test_without_causal_it_is_refused():
    q, k, v, _ = inputs(Quest())
    with pytest.raises(NotImplementedError, match="Causal"):
        Quest()(q, k, v)
