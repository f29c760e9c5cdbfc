"""Token mixers that are not attention: their definitions in NumPy, what they see, and decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from toy_mechanism import SOFTMAX, build, config, jit, run

from attn import FULL, Alibi, Array, Causal, Linear, Padding, Reformer, Segments, Window
from attn.nn import (
    GRU,
    LSTM,
    MIXERS,
    Average,
    Conv,
    Decoder,
    DepthwiseConv,
    FNet,
    functional,
    with_kv_heads,
)
from attn.nn.mixers.fourier import _product

W, T = 4, 9
RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, T, W)).astype(np.float32)
LENGTHS = np.array([9, 6, 0], np.int32)
REAL = np.arange(T) < LENGTHS[:, None]
HOLES = np.array([[1, 1, 0, 1, 1, 0, 0, 1, 1]] * 3, bool)
IDS = np.array([[0, 0, 0, 1, 1, 2, 2, 2, 2], [5, 5, 1, 1, 1, 1, 5, 5, 5], [7] * 9], np.int32)
TOKEN_LENGTHS = jnp.array([7, 3, 1], jnp.int32)
TOKENS = jnp.asarray(RNG.integers(0, 11, (3, 7)), jnp.int32)
NEAR = dict(rtol=2e-5, atol=2e-6)

EXAMPLES = [mixer for kind in MIXERS.values() for mixer in kind.examples()]
CAUSAL = [mixer for mixer in EXAMPLES if Causal in mixer.honours]
APART = [mixer for mixer in EXAMPLES[::-2] if Segments in mixer.honours]
every = pytest.mark.parametrize("mixer", EXAMPLES, ids=str)
causal = pytest.mark.parametrize("mixer", CAUSAL, ids=str)
apart = pytest.mark.parametrize("mixer", APART, ids=str)


def filled(make):
    """(graph, params) with numbers drawn in NumPy: quick, and no bias is 0, where it would not
    show."""
    graph, shapes = nnx.split(nnx.eval_shape(make))
    rng = np.random.default_rng(1)
    return graph, jax.tree.map(
        lambda x: jnp.asarray(0.4 * rng.normal(size=x.shape), x.dtype), shapes
    )


def layer(mixer, dtype=jnp.float32):
    return nnx.merge(*filled(lambda: mixer.layer(W, dtype=dtype, key=jax.random.key(1))))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(cell, state, x):
    c, h = state
    y = x @ cell["dense_i"]["kernel"] + h @ cell["dense_h"]["kernel"] + cell["dense_h"]["bias"]
    i, f, g, o = np.split(y, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return c, sigmoid(o) * np.tanh(c)


def gru(cell, state, x):
    (_, h) = state
    of_x = np.split(x @ cell["dense_i"]["kernel"] + cell["dense_i"]["bias"], 3)
    of_h = np.split(h @ cell["dense_h"]["kernel"], 3)
    r, z = (sigmoid(a + b) for a, b in zip(of_x[:2], of_h[:2]))
    n = np.tanh(of_x[2] + r * of_h[2])
    return None, (1 - z) * n + z * h


def recurrence(mixer, p, x, seen):
    """One row, token by token; `seen` [T, T] says which tokens are there and of one document."""
    step, hidden = {LSTM: lstm, GRU: gru}[type(mixer)], mixer.width or W
    ways = [("forward", range(len(x)))]
    ways += [("backward", range(len(x))[::-1])] if mixer.bidirectional else []
    outs = []
    for name, order in ways:
        state, last, out = (np.zeros(hidden), np.zeros(hidden)), None, np.zeros((len(x), hidden))
        for t in order:
            if last is not None and not seen["same"][t, last]:
                state = (np.zeros(hidden), np.zeros(hidden))
            last = t
            if seen["there"][t]:
                state = step(p[name], state, x[t])
            out[t] = state[1]
        outs.append(out)
    return np.concatenate(outs, -1) @ p["out"]


def convolution(mixer, p, x, seen):
    y, ahead = np.zeros(x.shape), 0 if seen["causal"] else mixer.kernel // 2
    for t, j in np.ndindex(len(x), mixer.kernel):
        s = t - (j - ahead) * mixer.dilation
        if 0 <= s < len(x) and seen["there"][s] and seen["same"][t, s]:
            y[t] += x[s] @ p["kernel"][j] if type(mixer) is Conv else x[s] * p["kernel"][j]
    return y


def fourier(mixer, p, x, seen):
    y = np.zeros(x.shape)
    if seen["there"].any():
        y[seen["there"]] = np.fft.fft2(x[seen["there"]]).real
    return y


def average(mixer, p, x, seen):
    y = np.zeros(x.shape)
    for t in range(len(x)):
        ok = seen["there"] & seen["same"][t] & (np.arange(len(x)) <= (t if seen["causal"] else 99))
        y[t] = x[ok].mean(0) if ok.any() else 0
    return y


KINDS = {
    LSTM: recurrence,
    GRU: recurrence,
    Conv: convolution,
    DepthwiseConv: convolution,
    FNet: fourier,
    Average: average,
}


def by_hand(made, causal=False, there=None, ids=None):
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(nnx.state(made)))
    there = np.ones((3, T), bool) if there is None else there
    ids = np.zeros((3, T), int) if ids is None else ids
    rows = [
        dict(there=there[b], same=ids[b][:, None] == ids[b], causal=causal) for b in range(len(X))
    ]
    return [KINDS[type(made.mixer)](made.mixer, params, X[b], row) for b, row in enumerate(rows)]


def masks_of(mixer):
    """(mask, what it means) of each term that the mixer honours, and of all together."""
    yield FULL, {}
    yield Padding(LENGTHS) & Padding(keys=HOLES), dict(there=REAL & HOLES)
    if Segments in mixer.honours:
        yield Padding(LENGTHS) & Segments(IDS, IDS), dict(there=REAL, ids=IDS)
    if Causal in mixer.honours:
        mask = Causal() & Padding(LENGTHS) & Segments(IDS, IDS)
        yield mask, dict(there=REAL, ids=IDS, causal=True)


@pytest.mark.parametrize("mask", [FULL, Padding(LENGTHS)], ids=["full", "padded"])
def test_a_transform_of_float64_is_one(mask):
    with jax.enable_x64(True):
        made, x = layer(FNet(), jnp.float64), X.astype(np.float64)
        out = run(made, x, mask=mask)
    assert out.dtype == np.float64
    for row, y, length in zip(x, out, [T] * 3 if mask == FULL else LENGTHS):
        want = np.fft.fft2(row[:length]).real if length else 0
        np.testing.assert_allclose(y[:length], want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("n", [9, 46_342, 65_537, 2**20])
def test_turns_of_a_long_row_are_exact(n):
    """From 46,342 tokens on, 32 bits do not hold the product of two places."""
    r = np.array([0, 1, n // 3, n - 2, n - 1], np.int32)
    found = _product(*(jnp.asarray(x) for x in (r[:, None], r[None], np.int32([[n]]))))
    np.testing.assert_array_equal(found, [[int(a) * int(b) % n for b in r] for a in r])


@every
def test_it_equals_its_definition(mixer):
    made = layer(mixer)
    graph, params = nnx.split(made)
    masks, meanings = zip(*masks_of(mixer))
    go = jit(lambda params, masks: [nnx.merge(graph, params)(X, mask=m) for m in masks])
    for out, meaning in zip(go(params, masks), meanings):
        np.testing.assert_allclose(out, by_hand(made, **meaning), **NEAR)


@every
def test_padding_never_shows_even_nan(mixer):
    made = layer(mixer)
    graph, params = nnx.split(made)

    @jit
    def value_and_gradient(params, x, there):
        def loss(params, x):
            y = nnx.merge(graph, params)(x, mask=Padding(keys=there))
            return jnp.sum(jnp.where(there[..., None], jnp.sin(y), 0)), y

        (_, y), gradient = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x)
        return y, gradient

    y, gradient = value_and_gradient(params, X, REAL)
    assert all(np.isfinite(a).all() for a in jax.tree.leaves((y, gradient)))
    assert not np.asarray(gradient[1])[~REAL].any()
    hidden = np.where(REAL[..., None], X, np.nan)
    jax.tree.map(
        np.testing.assert_array_equal, value_and_gradient(params, hidden, REAL), (y, gradient)
    )
    np.testing.assert_array_equal(y[2], 0)  # a row without tokens


@causal
def test_the_past_does_not_see_the_future(mixer):
    made = layer(mixer)
    graph, params = nnx.split(made)
    go = jit(lambda x: nnx.merge(graph, params)(x, mask=Causal()))
    y = go(X)
    for t in (0, 4, 7):
        for later in (RNG.normal(size=X.shape), 1e8 * X, np.full(X.shape, np.nan)):
            other = np.where(np.arange(T)[:, None] > t, later, X).astype(np.float32)
            np.testing.assert_array_equal(go(other)[:, : t + 1], y[:, : t + 1])
    assert np.abs(np.asarray(go(2 * X)) - y)[:, 1:].max() > 0.1


@causal
def test_a_prompt_beyond_max_length_is_refused(mixer):
    """As layers that attend do."""
    made = layer(mixer)
    for wrong in (2, None):
        with pytest.raises(ValueError, match=f"max_length: expected an integer from 3 .* {wrong}"):
            made.prefill(X[:, :3], max_length=wrong)


@causal
def test_token_by_token_is_at_once(mixer):
    made = layer(mixer)
    graph, params = nnx.split(made)

    @jit
    def go(params, x):
        made = nnx.merge(graph, params)
        one = lambda state, x: made.step(state, x[..., None, :])
        state, first = made.prefill(x[:, :3], max_length=T)
        _, more = jax.lax.scan(one, state, jnp.moveaxis(x[:, 3:], 1, 0))
        return made(x, mask=Causal()), first, jnp.moveaxis(more[..., 0, :], 0, 1)

    whole, first, more = go(params, X)
    np.testing.assert_allclose(jnp.concatenate([first, more], 1), whole, **NEAR)


def test_a_decoder_of_mixers_goes_on_where_its_prompt_ends():
    hybrid = (SOFTMAX, Conv(kernel=2, dilation=2))
    for changes in (dict(mechanism=hybrid), dict(mechanism=LSTM(), scan=True)):
        settings = config(head="token", pooling="none", classes=11, layers=2, **changes)

        graph, params = filled(lambda: Decoder(settings, key=jax.random.key(0)))

        @jit
        def go(params):
            model = nnx.merge(graph, params)
            state, first = model.prefill(TOKENS[:, :3])
            _, scores = jax.lax.scan(model.step, state, TOKENS[:, 3:].T)
            return model(TOKENS), jnp.concatenate([first[:, None], jnp.moveaxis(scores, 0, 1)], 1)

        whole, steps = go(params)
        np.testing.assert_allclose(steps, whole[:, 2:], rtol=2e-4, atol=2e-5)
        assert np.abs(whole).max() > 0.1


def forms(mixer, value):
    """`value(loss)(params)` in a loop, a scan, tied and both, compiled as one program."""
    changes = [dict(), dict(scan=True, remat=True), dict(tied=True), dict(tied=True, scan=True)]
    applies, params = zip(*[functional(build(layers=2, mechanism=mixer, **c)) for c in changes])
    loss = lambda apply: lambda p: jnp.square(apply(p, TOKENS, lengths=TOKEN_LENGTHS)).sum()
    return jit(lambda params: [value(loss(a))(p) for a, p in zip(applies, params)])(params)


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXERS)
def test_scan_and_tied_layers_are_the_loop(name):
    loop, scan, tied, both = forms(MIXERS[name].examples()[0], lambda loss: loss)
    np.testing.assert_allclose([loop, tied], [scan, both], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "depthwise_conv"])
def test_scan_and_tied_layers_have_the_gradients_of_the_loop(name):
    near = lambda a, b: jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), a, b
    )
    loop, scan, tied, both = forms(MIXERS[name].examples()[-1], jax.grad)
    blocks = [loop["stack"]["blocks"][i] for i in range(2)]
    near(jax.tree.map(lambda *x: jnp.stack(x), *blocks), scan["stack"]["blocks"][0])
    near(tied, both)


def test_an_encoder_of_mixers_and_mechanisms_trains():
    mechanisms = (SOFTMAX, FNet(), LSTM(width=3, bidirectional=True))
    model = dict(layers=3, mechanism=mechanisms, positions="rotary", kv_heads=1, dropout=0.1)
    labels, key, optimizer = jnp.array([0, 1, 2]), jax.random.key(2), optax.adam(3e-3)

    graph, params = filled(lambda: build(**model))

    @jit
    def train(params):
        def loss(params):
            y = nnx.merge(graph, params)(TOKENS, lengths=TOKEN_LENGTHS, dropout_key=key)
            return optax.softmax_cross_entropy_with_integer_labels(y, labels).mean()

        def step(carry, _):
            params, state = carry
            value, gradient = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(gradient, state)
            return (optax.apply_updates(params, updates), state), (value, gradient)

        return jax.lax.scan(step, (params, optimizer.init(params)), length=3)[1]

    losses, gradients = train(params)
    assert (np.diff(losses) < 0).all()
    for x in jax.tree.leaves(gradients):
        assert np.isfinite(x).all()
        assert np.abs(x).max() > 0


def test_a_hybrid_can_be_given_fewer_key_heads():
    encoder = build(layers=2, mechanism=(SOFTMAX, GRU(width=3)))
    fewer = jax.eval_shape(lambda: nnx.state(with_kv_heads(encoder, 1)))
    kept = lambda blocks: jax.tree.map(jnp.shape, nnx.to_pure_dict(blocks[1]["attention"]))
    assert kept(fewer["stack"]["blocks"]) == kept(nnx.state(encoder)["stack"]["blocks"])


def test_a_parameter_is_a_function_of_the_key_and_its_path():
    of = lambda **fields: LSTM(**fields).layer(W, dtype=jnp.float32, key=jax.random.key(1))
    one, both = of(width=3), of(width=3, bidirectional=True)
    same = lambda a, b: jax.tree.map(np.testing.assert_array_equal, nnx.state(a), nnx.state(b))
    same(one.forward, both.forward)
    kernel = lambda cell: np.asarray(cell.dense_i.kernel[...])
    assert not np.array_equal(kernel(both.forward), kernel(both.backward))
    same(*(build(mechanism=m).stack.blocks[0].mlp for m in (SOFTMAX, LSTM())))


@every
def test_it_keeps_a_narrow_dtype_and_sums_in_float32(mixer):
    made, wide, x = layer(mixer, jnp.bfloat16), layer(mixer), jnp.asarray(X, jnp.bfloat16)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        y = run(made, x, mask=Padding(LENGTHS))
    assert y.dtype == jnp.bfloat16
    want = np.asarray(run(wide, x.astype(jnp.float32), mask=Padding(LENGTHS)))
    assert np.abs(np.asarray(y, np.float32) - want).max() < 0.02 * np.abs(want).max()


@every
def test_any_length_and_leading_axes(mixer):
    made = layer(mixer)
    assert run(made, X[:, :1]).shape == (3, 1, W)
    x = np.broadcast_to(X[:, :5], (2, 3, 5, W))
    y = run(made, x, mask=Padding(np.minimum(LENGTHS, 5)[None]))
    assert y.shape == x.shape
    np.testing.assert_array_equal(y[0], y[1])


@apart
def test_a_query_with_an_id_of_its_own_sees_no_other_document(mixer):
    """Ids of queries and keys may differ: then a query sees the documents of its own id alone."""
    made, keys = layer(mixer), np.array([[0, 0, 0, 0, 1, 1, 1, 1, 1]] * 3, np.int32)
    queries = keys.copy()
    queries[:, :2] = 1
    mask = Segments(queries, keys)
    seen = np.asarray(mask.array(T, T))[0]
    jacobian = jit(jax.jacobian(lambda x: made(x[None], mask=Segments(queries[:1], keys[:1]))[0]))
    moved = np.abs(np.asarray(jacobian(X[0]))).max((1, 3))
    assert not moved[~seen].any()


@pytest.mark.parametrize(
    ("mixer", "goes_on"),
    [(Average(), True), (DepthwiseConv(kernel=7), True), (LSTM(), False), (GRU(), False)],
    ids=str,
)
def test_an_id_that_returns_is_one_document_but_to_recurrent_layers(mixer, goes_on):
    made, mask = layer(mixer), Causal() & Segments(IDS[1:2], IDS[1:2])
    before = X[1:2].copy()
    before[:, :2] += 1  # the id 5, which returns at 6
    moved = run(made, before, mask=mask) != run(made, X[1:2], mask=mask)
    assert np.asarray(moved)[:, 6].any() == goes_on


@apart
def test_ids_of_all_rows_and_of_each_are_told_apart_by_axes_of_one(mixer):
    want = run(layer(mixer), X, mask=Segments(np.array([IDS[0]] * 3), IDS))
    with jax.numpy_rank_promotion("raise"):
        got = run(layer(mixer), X, mask=Segments(IDS[0], IDS))
    np.testing.assert_array_equal(got, want)


@every
def test_what_it_cannot_honour_is_refused_by_name(mixer):
    made, name = layer(mixer), type(mixer).__name__
    refused = {"Array": Array(np.ones((3, T, T), bool)), "Window": Window(1, 0)}
    if Causal not in mixer.honours:
        refused["Causal"] = Causal()
        with pytest.raises(NotImplementedError, match=f"{name}.* does not decode"):
            made.prefill(X, max_length=9)
        with pytest.raises(NotImplementedError, match=f"{name}.* does not decode"):
            made.step(None, X[:, :1])
    else:
        refused["Causal"] = Causal(1)
    if Segments not in mixer.honours:
        refused["Segments"] = Segments(IDS, IDS)
    for term, mask in refused.items():
        with pytest.raises(NotImplementedError, match=rf"mask: {name}.* {term}"):
            made(X, mask=mask)
    with pytest.raises(NotImplementedError, match=f"bias: {name}.* has no scores"):
        made(X, bias=Alibi(jnp.ones(2)))
    with pytest.raises(NotImplementedError, match=f"bias: {name}.* has no scores"):
        made.prefill(X, bias=Alibi(jnp.ones(2)), max_length=9)
    with pytest.raises(NotImplementedError, match=f"{name}.* has no T x S matrix"):
        jax.eval_shape(lambda: build(mechanism=(SOFTMAX, mixer), layers=2).maps(TOKENS))
    with pytest.raises(TypeError, match="mask: expected a Mask"):
        made(X, mask=REAL)
    calls = [made]
    if Causal in mixer.honours:
        state, _ = made.prefill(X[:, :3], max_length=9)
        calls += [lambda x: made.prefill(x, max_length=9), lambda x: made.step(state, x)]
    for call in calls:
        for wrong in (X[..., :3], X[0, 0]):
            with pytest.raises(ValueError, match=r"x: expected \['...', 'T', 4\], got"):
                call(wrong)
    if Causal in mixer.honours:
        with pytest.raises(TypeError, match=r"state: expected that of `prefill`, got NoneType"):
            made.step(None, X[:, :1])
        for wrong in (X[:1, :1], X[0, :1]):  # one of no batch was taken for all rows
            with pytest.raises(ValueError, match=r"(state|q): expected .* got"):
                made.step(state, wrong)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: LSTM(width=0), "width: expected an integer from 1"),
        (lambda: Conv(kernel=0), "kernel: expected an integer from 1"),
        (lambda: DepthwiseConv(dilation=1.5), "dilation: expected an integer from 1"),
        (
            lambda: config(mechanism=(SOFTMAX, LSTM()), layers=2, positions="t5"),
            "positions: LSTM has no scores to add t5 to",
        ),
        (
            lambda: config(mechanism=Linear(), positions="alibi"),
            "positions: Linear has no scores to add alibi to; take rotary, sinusoidal",
        ),
        (
            lambda: config(mechanism=(SOFTMAX, Reformer(), LSTM()), layers=3, positions="t5"),
            "positions: Reformer and LSTM has no scores to add t5 to; take sinusoidal",
        ),
        (lambda: config(mechanism=GRU(), kv_heads=1), "kv_heads: GRU has no heads, got 1"),
        (lambda: config(mechanism=FNet(), qk_norm=True), "qk_norm: FNet has no heads"),
        (lambda: config(mechanism=FNet(), positions="rotary"), "positions: FNet has no heads"),
        (
            lambda: config(mechanism=GRU(), pooling="cls"),
            "pooling: expected another",
        ),
        (lambda: config(mechanism=LSTM), "mechanism: expected a Mechanism .* or a Mixer"),
    ],
)
def test_mistakes_are_named(make, named):
    with pytest.raises(ValueError, match=f"^{named}"):
        make()


def test_a_flag_is_true_or_false():
    with pytest.raises(TypeError, match=r"^bidirectional: expected True or False, got 'yes'$"):
        GRU(bidirectional="yes")


def test_records_are_values():
    for mixer in EXAMPLES:
        again = eval(repr(mixer), {kind.__name__: kind for kind in MIXERS.values()})
        assert again == mixer
        assert hash(again) == hash(mixer)
