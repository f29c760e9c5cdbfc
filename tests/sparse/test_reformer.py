"""Reformer against explicit sets of pairs, its causality, and what the paper claims of hashing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn.masks import FULL, Causal, Padding, Segments
from attn.sparse import _buckets, reformer
from attn.sparse.reformer import Reformer, reformer_attention
from attn.testing import inputs
from attn.testing.trying import with_gradients


@pytest.fixture(autouse=True)
def chunks(monkeypatch):
    """What is short would make all scores."""
    monkeypatch.setattr(reformer, "WHOLE", 0)


def draw(T, S, *, N=2, K=1, H=4, D=3, seed=0, like=None):
    like = like or Reformer(buckets=4, rounds=2, chunk=3)
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(2, *x)) for x in ((T, N, H), (S, K, H), (S, K, D)))
    sizes = {"num_heads": N, "num_kv_heads": K, "head_dim": H, "value_dim": D, "max_length": S}
    learned = like.init(jax.random.key(seed), **sizes)
    return *(jnp.asarray(x, jnp.float32) for x in (q, k, v)), learned["rotations"]


def attend(q, k, v, rotations, *, mask=FULL, **options):
    """In one compiled piece: op by op takes longer."""
    call = lambda q, k, v, r, mask: reformer_attention(q, k, v, rotations=r, mask=mask, **options)
    return jax.jit(call)(q, k, v, rotations, mask)


def hashes(x, rotations):
    """The paper's h(x) = argmax([xR; -xR]) in NumPy: [rounds, length] for one head."""
    y = np.einsum("th,rhn->rtn", np.asarray(x, np.float64), np.asarray(rotations, np.float64))
    return np.concatenate([y, -y], -1).argmax(-1)


def chunk_numbers(bucket, chunk):
    """By a walk over the keys: how many of the same bucket came before, by `chunk`."""
    met = {}
    numbers = []
    for b in bucket:
        met[b] = met.get(b, -1) + 1
        numbers.append(met[b] // chunk)
    return numbers


def pairs(q, k, rotations, *, chunk, causal, length, offset=0):
    """The set of seen keys of each query of one head, by walking over the tokens."""
    found = [set() for _ in q]
    for key_bucket, query_bucket in zip(hashes(k[:length], rotations), hashes(q, rotations)):
        number = chunk_numbers(key_bucket, chunk)
        for i, b in enumerate(query_bucket):
            own = [j for j in range(len(key_bucket)) if key_bucket[j] == b]
            past = [j for j in own if j <= i + offset]
            if not own or (causal and not past):
                continue
            here = number[past[-1]] if past else 0
            found[i] |= {j for j in own if here - number[j] in (0, 1)}
    return [{j for j in s if not causal or j <= i + offset} for i, s in enumerate(found)]


def definition(q, k, v, rotations, *, chunk, shared_qk, causal, lengths, offset=0):
    """Softmax over those sets, token by token, in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    B, T, N, H = q.shape
    K = k.shape[2]
    out = np.zeros((B, T, N, v.shape[-1]))
    for b in range(B):
        for n in range(N):
            g = n // (N // K)
            x, y = q[b, :, n], k[b, :, g]
            options = {"chunk": chunk, "causal": causal, "length": lengths[b], "offset": offset}
            seen = pairs(x, y, rotations[g], **options)
            y = y / np.sqrt((y**2).mean(-1, keepdims=True)) if shared_qk else y
            for i, some in enumerate(seen):
                some = some - {i} if shared_qk else some
                if shared_qk and not some and i < lengths[b]:
                    some = {i}
                some = sorted(some)
                if some:
                    w = np.exp(y[some] @ x[i] / np.sqrt(H))
                    out[b, i, n] = w / w.sum() @ v[b, some, g]
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared_qk", [False, True])
def test_equals_explicit_sets(shared_qk, causal):
    T = 17
    q, k, v, rotations = draw(T, T)
    options = {"chunk": 3, "shared_qk": shared_qk}
    lengths = (T - 2, T)
    mask = Padding(jnp.array(lengths, jnp.int32)) & (Causal() if causal else FULL)
    out = attend(q, k, v, rotations, mask=mask, **options)
    want = definition(q, k, v, rotations, causal=causal, lengths=lengths, **options)
    np.testing.assert_allclose(out, want, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("T", "S", "offset"), [(4, 11, 7), (9, 5, -4), (11, 11, -2)])
def test_other_lengths_and_offsets_equal_explicit_sets(T, S, offset):
    q, k, v, rotations = draw(T, S)
    out = attend(q, k, v, rotations, mask=Causal(offset), chunk=2)
    options = {"chunk": 2, "shared_qk": False, "causal": True, "lengths": (S, S)}
    want = definition(q, k, v, rotations, offset=offset, **options)
    np.testing.assert_allclose(out, want, atol=1e-5)


@pytest.mark.slow
def test_shared_qk_of_one_array_is_the_papers_self_attention():
    """q is k: every token lies in a chunk with itself, and sees itself only if alone."""
    _, k, v, rotations = draw(13, 13)
    options = {"chunk": 2, "shared_qk": True}
    out = attend(k, k, v, rotations, mask=Causal(), **options)
    np.testing.assert_allclose(out[:, 0], v[:, 0], atol=1e-6)
    want = definition(k, k, v, rotations, causal=True, lengths=(13, 13), **options)
    np.testing.assert_allclose(out, want, atol=1e-5)


@pytest.mark.slow
def test_redrawing_the_future_moves_no_chunk_of_the_past():
    """Sort-and-cut chunks move 23% of past rows; the gradient does not show it."""
    q, k, v, rotations = draw(40, 40, seed=3)
    other = draw(40, 40, seed=4)
    options = {"rotations": rotations, "mask": Causal(), "chunk": 3}
    call = jax.jit(lambda q, k, v: reformer_attention(q, k, v, **options))
    out = call(q, k, v)
    for t in (0, 11, 38):
        cut = lambda x, y, t=t: jnp.concatenate([x[:, : t + 1], y[:, t + 1 :] * 1e8], 1)
        again = call(*(cut(x, y) for x, y in zip((q, k, v), other)))
        np.testing.assert_array_equal(again[:, : t + 1], out[:, : t + 1])


@pytest.mark.slow
def test_recall_of_the_largest_weights_grows_with_rounds():
    """The paper's figure: more rounds find more of the keys that full attention looks at."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 128, 1, 16)).astype(np.float32)
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    near = x[0, :, 0] @ x[0, :, 0].T - 2 * np.eye(128)
    best = near.argsort(-1)[:, -4:]
    recalls, shares = [], []
    for rounds in (1, 4, 16):
        m = Reformer(buckets=8, rounds=rounds, chunk=128)
        *_, rotations = draw(1, 1, N=1, H=16, like=m)
        weights = jax.jit(lambda x, r, m=m: m.weights(x, x, rotations=r))
        seen = np.asarray(weights(jnp.asarray(x), rotations)[0, 0] > 0)
        recalls.append(np.take_along_axis(seen, best, 1).mean())
        shares.append(seen.mean())
    assert recalls[0] < recalls[1] < recalls[2]
    assert all(a > 1.5 * b for a, b in zip(recalls[:2], shares))  # more than chance would
    assert recalls[2] > 0.9


def test_identical_vectors_share_a_bucket():
    _, k, _, rotations = draw(9, 9)
    m = Reformer(buckets=4, rounds=1, chunk=9)
    k = k.at[:, 6].set(3 * k[:, 2])  # an angle: the length does not matter
    q = k.repeat(2, axis=2)
    w = jax.jit(lambda q, k, r: m.weights(q, k, rotations=r))(q, k, rotations[:, :1])
    assert (np.asarray(w)[..., [2, 6], [6, 2]] > 0).all()
    assert (np.asarray(w)[..., range(9), range(9)] > 0).all()


@pytest.mark.slow
def test_one_bucket_and_long_chunks_are_full_attention():
    """Rounds that show the same pairs again must not count them again."""
    q, k, v, _ = draw(7, 7)
    rotations = jnp.ones((1, 3, 4, 1)) * jnp.array([1.0, 0, 0, 0])[:, None]
    q, k = (x.at[..., 0].set(jnp.abs(x[..., 0])) for x in (q, k))  # all on one side
    out = attend(q, k, v, rotations, chunk=100)
    s = jnp.einsum("btnh,bsh->bnts", q, k[:, :, 0]) / 2
    np.testing.assert_allclose(
        out, jnp.einsum("bnts,bsd->btnd", jax.nn.softmax(s), v[:, :, 0]), atol=1e-6
    )


@pytest.mark.slow
def test_blocks_of_chunks_change_nothing(replaced):
    """Many chunks at a time or one: the same numbers."""
    q, k, v, rotations = draw(17, 17)
    options = {"mask": Causal(), "chunk": 2}
    out, whole = attend(q, k, v, rotations, **options), _buckets.map_in_blocks
    by_two = lambda f, arrays, most: whole(f, arrays, 2)
    replaced(reformer._attend, _buckets, "map_in_blocks", by_two)
    np.testing.assert_allclose(attend(q, k, v, rotations, **options), out, atol=1e-6)


@pytest.mark.parametrize("name", ["buckets", "rounds", "chunk"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_bad_settings_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        Reformer(**{name: value})


def test_odd_buckets_are_refused():
    with pytest.raises(ValueError, match="buckets: expected an even"):
        Reformer(buckets=3)


def test_bad_rotations_and_masks_are_refused():
    q, k, v, rotations = draw(5, 5)
    for wrong in (rotations[0], rotations[..., :0], rotations[:, :, :3]):
        with pytest.raises(ValueError, match="rotations: expected"):
            reformer_attention(q, k, v, rotations=wrong)
    with pytest.raises(ValueError, match="chunk"):
        reformer_attention(q, k, v, rotations=rotations, chunk=0)
    # 2 normalised the keys, but hid a token that saw nothing else from itself: `mask & 2` is 0
    with pytest.raises(TypeError, match="shared_qk: expected True or False"):
        reformer_attention(q, k, v, rotations=rotations, shared_qk=2)
    ids = jnp.zeros((2, 5), jnp.int32)
    with pytest.raises(NotImplementedError, match="Segments"):
        reformer_attention(q, k, v, rotations=rotations, mask=Segments(ids, ids))


@pytest.mark.parametrize(("T", "S"), [(0, 0), (0, 3), (3, 0), (1, 1), (3, 2)])
def test_tiny_lengths_and_settings_larger_than_them(T, S):
    m = Reformer(buckets=64, rounds=1, chunk=50)
    q, k, v, rotations = draw(T, S, like=m)
    out = attend(q, k, v, rotations, chunk=50)
    assert out.shape == (2, T, 2, 3)
    options = {"chunk": 50, "shared_qk": False, "causal": False, "lengths": (S, S)}
    np.testing.assert_allclose(out, definition(q, k, v, rotations, **options), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1e-25, 1e20])
def test_shared_keys_do_not_depend_on_the_unit(unit):
    q, k, v, rotations = draw(12, 12)
    options = dict(chunk=3, shared_qk=True)
    want = attend(q, k, v, rotations, **options)
    np.testing.assert_allclose(attend(q, k * unit, v, rotations, **options), want, atol=1e-5)


@pytest.mark.parametrize("shared_qk", [False, True])
def test_all_scores_of_a_short_text_give_what_chunks_give(monkeypatch, shared_qk):
    """With 64 buckets of 64 a text of 64 tokens took 500 times as long as in exact attention."""
    m = Reformer(buckets=8, rounds=2, chunk=16, shared_qk=shared_qk)
    q, k, v, learned = inputs(m, T=19, S=19)
    k = q[..., ::2, :] if shared_qk else k
    arrays, mask = (q, k, v, learned), Causal() & Padding(jnp.array([19, 11]))
    in_chunks, cost = jax.jit(with_gradients(m))(arrays, mask, None), m.flops(19, 19, 4, 2, 8, 6)
    monkeypatch.setattr(reformer, "WHOLE", 19)
    assert m.flops(19, 19, 4, 2, 8, 6) < cost / 4
    whole = jax.jit(with_gradients(m))(arrays, mask, None)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), whole, in_chunks)


def test_a_value_that_is_not_finite_shows_to_the_same_queries_in_steps():
    """Its key hashed as if it were 0: others got NaN, and who sees it a value of 0."""
    m = Reformer(buckets=4, rounds=1, chunk=3)
    q, k, v, rotations = draw(8, 8, like=m)
    v = v.at[:, 2, 0, 0].set(jnp.inf)
    state = m.init_state((2,), num_heads=2, num_kv_heads=1, head_dim=4, value_dim=3, max_length=8)
    take = lambda x: jnp.moveaxis(x[:, :, None], 1, 0)  # one token each
    step = lambda state, x: m.step(state, *x, rotations=rotations)
    outs = jnp.moveaxis(jax.lax.scan(step, state, tuple(map(take, (q, k, v))))[1][:, :, 0], 0, 1)
    want = attend(q, k, v, rotations, chunk=3, mask=Causal())
    assert np.isnan(want[0]).any()
    np.testing.assert_allclose(outs, want, atol=1e-5)
