"""The first attention models against loops of their papers' equations, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiers import at_once
from toy_mechanism import run

from attn.nn import LSTMN, Bahdanau, LSTMNSeq2Seq, LuongSeq2Seq

RNG = np.random.default_rng(0)
SOURCE = jnp.asarray(RNG.integers(1, 9, (3, 5)), jnp.int32)
TARGET = jnp.asarray(RNG.integers(0, 7, (3, 4)), jnp.int32)
LENGTHS = jnp.array([5, 3, 1])
SIZES = dict(vocab_size=9, classes=7, width=6, key=jax.random.key(0))
NEAR = dict(rtol=2e-5, atol=2e-5)
sigmoid = lambda x: 1 / (1 + np.exp(-x))


def bahdanau():
    return Bahdanau(**SIZES)


def luong(score="general"):
    return LuongSeq2Seq(score=score, **SIZES)


def lstmn():
    return LSTMNSeq2Seq(max_length=4, **SIZES)


def numbers(module):
    """Its arrays in float64, with biases that are not 0, by path."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(nnx.state(module))
    rng, named, filled = np.random.default_rng(1), {}, []
    for path, x in leaves:
        name = ".".join(str(getattr(p, "key", getattr(p, "name", p))) for p in path)
        name = name.removesuffix(".value")
        x = np.asarray(x, np.float64)
        x = rng.normal(size=x.shape) * 0.5 if name.endswith("bias") else x
        named[name] = x.astype(np.float32).astype(np.float64)
        filled.append(jnp.asarray(x, jnp.float32))
    nnx.update(module, jax.tree_util.tree_unflatten(tree, filled))
    return named


def softmax(s):
    e = np.exp(s - s.max())
    return e / e.sum()


def gru(p, name, h, x):
    """Flax's: r acts on U h, and z keeps."""
    i = x @ p[f"{name}.dense_i.kernel"] + p[f"{name}.dense_i.bias"]
    u = h @ p[f"{name}.dense_h.kernel"]
    (ir, iz, ic), (ur, uz, uc) = np.split(i, 3), np.split(u, 3)
    r, z = sigmoid(ir + ur), sigmoid(iz + uz)
    return (1 - z) * np.tanh(ic + r * uc) + z * h


def lstm(p, name, c, h, x):
    y = x @ p[f"{name}.dense_i.kernel"] + h @ p[f"{name}.dense_h.kernel"]
    i, f, g, o = np.split(y + p[f"{name}.dense_h.bias"], 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return c, sigmoid(o) * np.tanh(c)


def bahdanau_loop(p, source, target):
    """(scores, alignments) of one row without padding."""
    W, S = p["source_table"].shape[1], len(source)
    x = p["source_table"][source]
    ahead, back = np.zeros((S + 1, W // 2)), np.zeros((S + 1, W // 2))
    for j in range(S):
        ahead[j + 1] = gru(p, "forward", ahead[j], x[j])
    for j in reversed(range(S)):
        back[j] = gru(p, "backward", back[j + 1], x[j])
    h = np.concatenate([ahead[1:], back[:-1]], 1)
    s = np.tanh(back[0] @ p["start.kernel"] + p["start.bias"])
    w, u, v = (p[f"learned.{n}"][0] for n in ("query_projection", "key_projection", "score_vector"))
    scores, rows = [], []
    for token in target:
        y = p["target_table"][token]
        a = softmax(np.array([v @ np.tanh(s @ w + h[j] @ u) for j in range(S)]))
        c = sum(a[j] * h[j] for j in range(S))
        t = np.concatenate([s, y, c]) @ p["readout.kernel"] + p["readout.bias"]
        t = np.array([max(t[2 * i], t[2 * i + 1]) for i in range(W)])
        scores.append(t @ p["out.kernel"] + p["out.bias"])
        rows.append(a)
        s = gru(p, "cell", s, np.concatenate([y, c]))
    return np.stack(scores), np.stack(rows)


def luong_loop(p, source, target, score):
    W = p["source_table"].shape[1]
    c, h, hs = np.zeros(W), np.zeros(W), []
    for x in p["source_table"][source]:
        c, h = lstm(p, "reader", c, h, x)
        hs.append(h)
    r, scores, rows = np.zeros(W), [], []

    def compare(s, k):
        if score == "dot":
            return s @ k
        if score == "general":
            return s @ p["learned.score_projection"][0] @ k
        w, u = p["learned.query_projection"][0], p["learned.key_projection"][0]
        return p["learned.score_vector"][0] @ np.tanh(s @ w + k @ u)

    for token in target:
        c, h = lstm(p, "cell", c, h, np.concatenate([p["target_table"][token], r]))
        a = softmax(np.array([compare(h, k) for k in hs]))
        context = sum(w * k for w, k in zip(a, hs))
        r = np.tanh(np.concatenate([context, h]) @ p["attentional.kernel"])
        scores.append(r @ p["out.kernel"] + p["out.bias"])
        rows.append(a)
    return np.stack(scores), np.stack(rows)


def agrees(model, loop):
    p = numbers(model)
    graph, params = nnx.split(model)
    call = lambda params: (
        nnx.merge(graph, params)(SOURCE, TARGET, lengths=LENGTHS),
        nnx.merge(graph, params).alignments(SOURCE, TARGET, lengths=LENGTHS),
    )
    scores, alignments = jax.jit(call)(params)
    for row, length in enumerate(LENGTHS.tolist()):
        want, a = loop(p, SOURCE[row, :length], TARGET[row])
        np.testing.assert_allclose(scores[row], want, **NEAR)
        np.testing.assert_allclose(alignments[row, :, :length], a, **NEAR)
        assert (alignments[row, :, length:] == 0).all()


def test_bahdanau_is_its_paper():
    agrees(bahdanau(), bahdanau_loop)


@pytest.mark.parametrize(
    "score", ["general", *(pytest.param(s, marks=pytest.mark.slow) for s in ("dot", "concat"))]
)
def test_luong_is_its_paper(score):
    agrees(luong(score), lambda *row: luong_loop(*row, score))


@pytest.mark.parametrize("make", at_once([bahdanau, luong, lstmn], [luong]))
def test_padding_never_leaks_and_greedy_takes_the_likeliest(make):
    model = make()
    graph, params = nnx.split(model)

    @jax.jit
    def go(params, source, target):
        f = lambda params: nnx.merge(graph, params)(source, target, lengths=LENGTHS)
        scores, pull = jax.vjp(f, params)
        return scores, pull(jnp.cos(scores))

    scores, gradient = go(params, SOURCE, TARGET)
    spoilt = jnp.where(jnp.arange(5) < LENGTHS[:, None], SOURCE, 99)
    jax.tree.map(np.testing.assert_array_equal, (scores, gradient), go(params, spoilt, TARGET))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((scores, gradient)))
    tokens = model.greedy(spoilt, 4, lengths=LENGTHS)
    given = jnp.concatenate([jnp.zeros((3, 1), jnp.int32), tokens[:, :-1]], 1)
    np.testing.assert_array_equal(tokens, go(params, spoilt, given)[0].argmax(-1))


@pytest.mark.slow
@pytest.mark.parametrize("make", [bahdanau, luong, lstmn])
def test_a_beam_that_holds_every_prefix_finds_the_likeliest_sequences(make):
    model, steps, end = make(), 3, 1
    row, length = SOURCE[1], LENGTHS[1]
    found, scores = model.beam(row, steps, width=50, end=end, lengths=length)  # 36 go on
    every = np.array(list(np.ndindex(7, 7, 7)), np.int32)
    many = dict(lengths=jnp.full(len(every), length))
    after = jnp.asarray(np.pad(every, ((0, 0), (1, 0))))[:, :-1]  # bos is 0
    logp = jax.nn.log_softmax(model(jnp.tile(row, (len(every), 1)), after, **many))
    logp = np.take_along_axis(np.asarray(logp), every[..., None], -1)[..., 0]
    best = {}
    for tokens, each in zip(every, logp):
        size = list(tokens).index(end) + 1 if end in tokens else steps
        cut = (*tokens[:size].tolist(), *[end] * (steps - size))
        best[cut] = each[:size].sum() / ((5 + size) / 6) ** 0.6
    want = sorted(best.items(), key=lambda x: -x[1])[:10]
    assert [tuple(x) for x in found[:10].tolist()] == [tokens for tokens, _ in want]
    np.testing.assert_allclose(scores[:10], [x for _, x in want], **NEAR)
    batch, _ = model.beam(SOURCE, steps, width=50, end=end, lengths=LENGTHS)
    assert (batch[1] == found).all()


def lstmn_token(p, h, c, r, x):
    """(r, alignment) of one more token x, which is put behind the lists h and c."""
    m, a = np.zeros_like(r), np.zeros(0)
    if h:
        s = [
            np.tanh(y @ p["of_h.kernel"] + x @ p["of_x.kernel"] + r @ p["of_r.kernel"])
            @ p["score.kernel"][:, 0]
            for y in h
        ]
        a = softmax(np.array(s))
        r = sum(w * y for w, y in zip(a, h))
        m = sum(w * y for w, y in zip(a, c))
    y = np.concatenate([r, x]) @ p["gates.kernel"] + p["gates.bias"]
    i, f, o, g = np.split(y, 4)
    c.append(sigmoid(f) * m + sigmoid(i) * np.tanh(g))
    h.append(sigmoid(o) * np.tanh(c[-1]))
    return r, a


def lstmn_loop(p, x):
    """One row [T, W]: (h, alignments)."""
    T, W = x.shape
    h, c, r, rows = [], [], np.zeros(W), np.zeros((T, T))
    for t in range(T):
        r, rows[t, :t] = lstmn_token(p, h, c, r, x[t])
    return np.stack(h), rows


def lstmn_seq2seq_loop(p, source, target):
    of = lambda name: {k.removeprefix(name): x for k, x in p.items() if k.startswith(name)}
    read, _ = lstmn_loop(of("reader."), p["source_table"][source])
    w, u, v = (p[f"learned.{n}"][0] for n in ("query_projection", "key_projection", "score_vector"))
    h, c, s = [], [], np.zeros(read.shape[1])
    r, scores, rows = s, [], []
    for token in target:
        a = softmax(np.array([v @ np.tanh(s @ w + y @ u) for y in read]))
        x = np.concatenate([p["target_table"][token], a @ read])
        r, _ = lstmn_token(of("writer."), h, c, r, x)
        s = h[-1]
        scores.append(s @ p["out.kernel"] + p["out.bias"])
        rows.append(a)
    return np.stack(scores), np.stack(rows)


def test_lstmn_is_its_paper():
    model = LSTMN(4, key=jax.random.key(0))
    p = numbers(model)
    x = RNG.normal(size=(2, 6, 4))
    h, a = run(model, jnp.asarray(x, jnp.float32), method="_run")
    for row in range(2):
        want, alignments = lstmn_loop(p, x[row])
        np.testing.assert_allclose(h[row], want, **NEAR)
        np.testing.assert_allclose(a[row], alignments, **NEAR)


def test_lstmn_takes_any_float_dtype_no_tokens_and_a_donated_tape():
    model = LSTMN(4, key=jax.random.key(0))
    x = jnp.asarray(RNG.normal(size=(2, 5, 4)), jnp.bfloat16)
    with jax.numpy_dtype_promotion("strict"):
        out = run(model, x)
    assert out.dtype == jnp.bfloat16
    want = run(model, x.astype(jnp.float32))
    np.testing.assert_allclose(out.astype(jnp.float32), want, atol=0.01)
    assert model(x[:, :0]).shape == (2, 0, 4)
    assert model.alignments(x[:, :0]).shape == (2, 0, 0)
    step = jax.jit(lambda tape, x: model.step(tape, x), donate_argnums=0)
    tape, h, _ = step(model.empty((2,), 5, x.dtype), x[:, 0])
    assert tape.h.dtype == jnp.float32
    np.testing.assert_array_equal(h, out[:, 0])


def test_lstmns_read_and_write_as_their_paper_says():
    agrees(lstmn(), lstmn_seq2seq_loop)


@pytest.mark.slow
def test_a_tape_that_is_full_says_so():
    """The best of a beam ended before that, and did not show it."""
    model, full = lstmn(), r"expected at most max_length=4 target tokens, got"
    for call, name, tokens in (
        (lambda: model(SOURCE, jnp.tile(TARGET, (1, 2))), "target_in", 8),
        (lambda: model.alignments(SOURCE, jnp.tile(TARGET, (1, 2))), "target_in", 8),
        (lambda: model.greedy(SOURCE, 5), "steps", 5),
        (lambda: model.beam(SOURCE, 5, width=2, end=1), "steps", 5),
    ):
        with pytest.raises(ValueError, match=f"{name}: {full} {tokens}"):
            call()
    assert (model.greedy(SOURCE, 4) >= 0).all()
    network = LSTMN(4, key=SIZES["key"])
    tape = network.empty((2,), 1)
    tape, h, _ = network.step(tape, jnp.ones((2, 4)))
    assert np.isfinite(h).all()
    assert np.isnan(network.step(tape, jnp.ones((2, 4)))[1]).all()
    with pytest.raises(ValueError, match=r"max_length: expected an integer from 1 to .* got 0"):
        LSTMNSeq2Seq(max_length=0, **SIZES)


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="width: expected an even number"):
        Bahdanau(**{**SIZES, "width": 5})
    with pytest.raises(ValueError, match=r"width: expected an integer from 1 to .*, got '8'"):
        Bahdanau(**{**SIZES, "width": "8"})
    with pytest.raises(ValueError, match=r"inputs: expected an integer from 1 to .*, got 0"):
        LSTMN(6, inputs=0, key=SIZES["key"])
    network = LSTMN(4, inputs=3, key=SIZES["key"])
    for x in (jnp.ones((2, 5, 4)), jnp.ones(3)):
        with pytest.raises(ValueError, match=r"x: expected \['...', 'T', 3\], got"):
            network(x)
    with pytest.raises(ValueError, match=r"x: expected \['...', 3\], got \[2, 4\]"):
        network.step(network.empty((2,), 5), jnp.ones((2, 4)))
    # h was rounded to integers, all of them 0
    with pytest.raises(TypeError, match="x: expected an array of floats, got int32"):
        network(jnp.ones((2, 5, 3), int))
    with pytest.raises(ValueError, match=r"x: expected \[2, 3\] to go with tape, got \[3\]"):
        network.step(network.empty((2,), 5), jnp.ones(3))
    with pytest.raises(TypeError, match="tape: expected that of `empty`, got NoneType"):
        network.step(None, jnp.ones((2, 3)))
    with pytest.raises(ValueError, match=r"size: expected an integer from 1 to .*, got 0"):
        network.empty((2,), 0)
    for batch in (2, (-1,)):
        with pytest.raises(TypeError, match=r"batch: expected a tuple of sizes, as \(2,\), got"):
            network.empty(batch, 5)
    model = bahdanau()
    with pytest.raises(TypeError, match="source: expected an array of integers"):
        model(SOURCE * 1.0, TARGET)
    with pytest.raises(ValueError, match="target_in: expected at least one token"):
        model(SOURCE, TARGET[:, :0])
    with pytest.raises(ValueError, match=r"target_in: expected .*'T'\] to go with source"):
        model(SOURCE, TARGET[:1])
    with pytest.raises(ValueError, match="lengths: expected shape"):
        model(SOURCE, TARGET, lengths=LENGTHS[:2])
    large = np.full((3, 4), 2**32 + 3)
    for call, name in (
        (lambda: model(large, TARGET), "source"),
        (lambda: model(SOURCE, large), "target_in"),
        (lambda: model(SOURCE, TARGET, lengths=large[:, 0]), "lengths"),
        (lambda: model.greedy(large, 2), "source"),
        (lambda: model.beam(SOURCE, 2, width=1, end=0, lengths=large[:, 0]), "lengths"),
    ):
        with pytest.raises(ValueError, match=f"{name}: expected integers from .* got 4294967299"):
            call()
    with pytest.raises(ValueError, match=r"lengths: expected integers from 0 to .* got -5"):
        model(SOURCE, TARGET, lengths=-LENGTHS)
    with pytest.raises(ValueError, match=r"steps: expected an integer from 1 to .* got 0"):
        model.greedy(SOURCE, 0)
    with pytest.raises(ValueError, match=r"width: expected an integer from 1 to .* got 0"):
        model.beam(SOURCE, 2, width=0, end=1)
    with pytest.raises(ValueError, match=r"end: expected an id below 7, got Array\(1,"):
        model.beam(SOURCE, 2, width=2, end=jnp.array(1))


def test_lengths_that_are_no_array_are_named():
    model = Bahdanau(**SIZES)
    source = jnp.ones((2, 3), jnp.int32)
    with pytest.raises(TypeError, match="lengths: expected"):
        model.greedy(source, steps=2, lengths=[3, 2])
