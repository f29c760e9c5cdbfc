"""What a hostile user gives the linearized family: refused by name, or right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
import attn.testing
from attn import Causal, Padding, Segments
from attn.testing import inputs


@pytest.mark.slow
@pytest.mark.parametrize("batch", [(), (1, 2)])
@pytest.mark.parametrize(
    "mechanism", [attn.GLA(chunk=4), attn.Mamba2(chunk=4), attn.RWKV6(chunk=4)], ids=repr
)
def test_gates_of_one_head_or_channel_with_any_batch_axes(mechanism, batch):
    q, k, v, gates = inputs(mechanism, batch=batch, T=5, S=5, K=4)
    call, loop, reference = map(jax.jit, (mechanism, mechanism.loop, mechanism.reference))
    out = call(q, k, v, mask=Causal(), **gates)
    np.testing.assert_allclose(out, loop(q, k, v, **gates), rtol=1e-4, atol=1e-5)
    both = call(q, k, v, **gates)
    np.testing.assert_allclose(both, reference(q, k, v, **gates), rtol=1e-4, atol=1e-5)


def test_documents_with_ids_beyond_32_bits_stay_apart():
    linear = attn.Linear(chunk=4)
    with jax.enable_x64(True):
        q, k, v, _ = inputs(linear, T=9, S=9)
        ids = jnp.broadcast_to(jnp.array([0] * 4 + [2**32] * 5), (2, 9))
        mask = Causal() & Segments(ids, ids)
        out, want = (jax.jit(f)(q, k, v, mask=mask) for f in (linear, linear.reference))
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["linear", "cosformer", "efficient", "based"])
def test_a_state_that_is_not_these_tokens_is_refused(kind):
    mechanism = attn.MECHANISMS[kind]()
    q, k, v, _ = inputs(mechanism, T=4, S=4)
    one = [x[:, :1] for x in (q, k, v)]
    with pytest.raises(TypeError, match=r"state: expected that of `init_state`, got NoneType"):
        mechanism.step(None, *one)
    prefill = jax.jit(mechanism.prefill, static_argnames="max_length")
    state, _ = prefill(*(x[None].repeat(3, 0) for x in (q, k, v)), max_length=9)
    with pytest.raises(ValueError, match="expected"):  # batch (2, 3) after (3, 2)
        mechanism.step(state, *(jnp.broadcast_to(x[:, None], (2, 3, *x.shape[1:])) for x in one))
    state, _ = prefill(q, k, v, max_length=9)
    with pytest.raises(ValueError, match=r"k: expected as many tokens as q, 1, got 4"):
        mechanism.step(state, one[0], k, v)


def test_prompts_are_checked():
    q, k, v, _ = inputs(attn.Linear(), T=4, S=4)
    with pytest.raises(ValueError, match="max_length: expected an integer from 4"):
        attn.Linear().prefill(q, k, v, max_length=3)
    with pytest.raises(ValueError, match="k: expected as many tokens as q, 3, got 4"):
        attn.Linear().prefill(q[:, :3], k, v, max_length=9)
    with pytest.raises(ValueError, match="k: expected as many tokens as q, 3, got 4"):
        attn.Linear().loop(q[:, :3], k, v)


def test_arrays_are_those_it_takes():
    delta = attn.DeltaNet()
    q, k, v, gates = inputs(delta, T=4, S=4)
    call = lambda **arrays: delta(q, k, v, mask=Causal(), **{**gates, **arrays})
    with pytest.raises(TypeError, match="beta: Linear takes no learned arrays or gates"):
        attn.Linear()(q, k, v, **gates)
    with pytest.raises(TypeError, match="log_decay: DeltaNet takes beta"):
        call(log_decay=gates["beta"])
    with pytest.raises(TypeError, match="beta: expected an array of floats, got list"):
        call(beta=[1.0])
    with pytest.raises(TypeError, match="beta: expected an array of floats, got complex64"):
        call(beta=gates["beta"] * 1j)
    with pytest.raises(ValueError, match=r"projection: expected \[4, 8\], got \[7, 3\]"):
        attn.Performer(features=4)(q[:, :0], k, v, projection=jnp.ones((7, 3)))


def test_settings_are_of_their_kind():
    with pytest.raises(TypeError, match="l2_norm: expected True or False, got 'no'"):
        attn.DeltaNet(l2_norm="no")
    with pytest.raises(ValueError, match="lower_bound"):
        attn.HGRN2(lower_bound="a")
    with pytest.raises(ValueError, match="layer_fraction"):
        attn.Lightning(layer_fraction=None)
    # 1e-40 is 0 to XLA on a CPU, and a row that sees nothing was 0 / 0
    for floor in (-1, 1e-40, 1e31, float("nan"), True, "1"):
        with pytest.raises(ValueError, match="floor: expected 0 or a number from 1e-30 to 1e30"):
            attn.RFA(floor=floor)
    with pytest.raises(ValueError, match="feature_map: expected one of elu"):
        attn.Linear(feature_map=["elu"])
    assert attn.Performer(features=np.int64(8)).features == 8


def test_a_map_of_ones_own():
    q, k, v, _ = inputs(attn.Linear(), T=5, S=5)
    call = lambda phi: attn.linear_attention(q, k, v, mask=Causal(), feature_map=phi)
    positive = lambda x: (jax.nn.softplus(x), None)
    assert np.isfinite(call(positive)).all()
    for wrong in ("elu", None, jax.nn.relu, np.eye(8)):
        with pytest.raises(TypeError, match="feature_map: expected"):
            call(wrong)
    learned = lambda w: call(lambda x: (jax.nn.softplus(x @ w), None)).sum()
    assert np.isfinite(learned(jnp.eye(8)))
    with pytest.raises(NotImplementedError, match="feature_map: it holds arrays"):
        jax.grad(learned)(jnp.eye(8))


def test_a_map_is_taken_as_it_is_at_each_call():
    """The second call ran the first one's program, with the weights that it had then."""

    class Shifted:
        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return jax.nn.relu(x) + self.by, None

        def method(self, x):
            return self(x)

    q, k, v, _ = inputs(attn.Linear(), T=5, S=5)
    call = lambda phi: attn.linear_attention(q, k, v, mask=Causal(), feature_map=phi)
    shifted = Shifted(0.1)
    closure = lambda x: (jax.nn.relu(x) + shifted.by, None)
    by_default = lambda x, held=shifted: held(x)
    by_keyword = lambda x, *, held=shifted: held(x)
    maps = shifted, shifted.method, closure, by_default, by_keyword
    before = [call(phi) for phi in maps]
    shifted.by = 5.0
    want = call(lambda x: (jax.nn.relu(x) + 5.0, None))
    for phi, out in zip(maps, before):
        assert np.abs(out - want).max() > 0.1
        np.testing.assert_array_equal(call(phi), want)


def test_gates_of_a_wider_type_are_taken_in_q_s():
    gla = attn.GLA(chunk=4)
    with jax.enable_x64(True):
        q, k, v, gates = inputs(gla, T=5, S=5)
        wide = jnp.asarray(np.asarray(gates["log_decay"]), jnp.float64)
        out = gla(q, k, v, mask=Causal(), log_decay=wide)
        assert out.dtype == jnp.float32
        np.testing.assert_array_equal(out, gla(q, k, v, mask=Causal(), **gates))


@pytest.mark.parametrize("kind", ["linear", "rwkv6"])
@pytest.mark.parametrize("mask", ["before all keys", "left padding", "of no document"])
def test_a_query_that_meets_no_key_is_0_be_it_nan(kind, mask):
    """Its NaN was in the output, where softmax, and the definition, have 0."""
    mechanism = attn.MECHANISMS[kind].examples()[0]
    q, k, v, learned = inputs(mechanism, T=7, S=7)
    meets = np.arange(7) > 1
    ids = jnp.broadcast_to(jnp.where(meets, 0, 5), (2, 7))
    mask = {
        "before all keys": Causal(-2),
        "left padding": Causal() & Padding(keys=jnp.broadcast_to(meets, (2, 7))),
        "of no document": Segments(ids, jnp.zeros_like(ids)),
    }[mask]
    call = jax.jit(lambda q: mechanism(q, k, v, mask=mask, **learned))
    dirty, clean = call(jnp.where(meets[:, None, None], q, jnp.nan)), call(q)
    assert (dirty[:, :2] == 0).all()
    np.testing.assert_array_equal(dirty, clean)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism", [*attn.Hedgehog.examples(), attn.RWKV6(chunk=8), attn.RWKV7(chunk=8)], ids=repr
)
def test_what_overflows_by_learned_arrays_reaches_no_past(mechanism):
    """By those that all start with no product did; by others the past had gradients of NaN, and of
    RWKV-7 outputs too."""
    q, k, v, learned = inputs(mechanism, T=7, S=7)
    gates = mechanism.gates(num_heads=4, num_kv_heads=2, head_dim=8)
    learned = {name: x if name in gates else 3 * x + 1 for name, x in learned.items()}

    def past(q, k, v, learned):
        out = mechanism(q, k, v, mask=Causal(), **learned)[:, :3]
        return (out**2).sum(), out

    grad = jax.jit(jax.grad(past, argnums=(0, 1, 2, 3), has_aux=True))
    huge = [x.at[:, 3:].set(jnp.copysign(3e38, x[:, 3:])) for x in (q, k, v)]
    jax.tree.map(np.testing.assert_array_equal, grad(*huge, learned), grad(q, k, v, learned))


SQUARES = [
    attn.Linear(feature_map="squared_relu"),
    attn.Linear(feature_map="dpfp"),
    attn.Linear(feature_map="taylor"),
    attn.Based(window=0),
]


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mechanism", SQUARES, ids=repr)
def test_features_that_overflow_reach_no_other_document(mechanism, causal):
    q, k, v, _ = inputs(mechanism, T=7, S=7)
    ids = jnp.broadcast_to(jnp.array([0] * 3 + [1] * 4), (2, 7))
    mask = Segments(ids, ids) & Causal() if causal else Segments(ids, ids)
    own = lambda *qkv: (mechanism(*qkv, mask=mask)[:, :3] ** 2).sum()
    gradients = jax.jit(jax.grad(own, argnums=(0, 1, 2)))
    for which in (0, 1):
        spoiled = [x.at[:, 5].set(1e30) if n == which else x for n, x in enumerate((q, k, v))]
        for gradient in gradients(*spoiled):
            assert np.isfinite(gradient).all()


@pytest.mark.parametrize("mechanism", [attn.Linear(), attn.Cosformer()], ids=repr)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_overflows_both_ways_reaches_no_gradient_of_another_row(mechanism, which):
    """Under Causal it did not; without, nobody asked about the row, and its gradient was NaN."""
    arrays = inputs(mechanism, T=7, S=7)[:3]
    other = lambda *qkv: (mechanism(*qkv)[0] ** 2).sum()
    gradients = jax.jit(jax.grad(other, argnums=(0, 1, 2)))
    huge = [x.at[1, 4].set(3e38) if n == which else x for n, x in enumerate(arrays)]
    jax.tree.map(np.testing.assert_array_equal, gradients(*huge), gradients(*arrays))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta_net", "kda", "mamba2", "rwkv7"])
def test_infinite_gates_reach_no_other_document(kind):
    mechanism = attn.MECHANISMS[kind](chunk=4)
    q, k, v, arrays = inputs(mechanism, T=7, S=7)
    ids = jnp.broadcast_to(jnp.array([0] * 3 + [1] * 4), (2, 7))
    mask = Causal() & Segments(ids, ids)
    gate = {"delta_net": "beta", "kda": "beta", "mamba2": "dt", "rwkv7": "a"}[kind]
    arrays[gate] = arrays[gate].at[:, 5].set(-jnp.inf)
    own = lambda k, arrays: (mechanism(q, k, v, mask=mask, **arrays)[:, :3] ** 2).sum()
    for gradient in jax.tree.leaves(jax.jit(jax.grad(own, argnums=(0, 1)))(k, arrays)):
        assert np.isfinite(gradient).all()


def test_decoding_under_strict_promotions():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for kind in ("linear", "cosformer", "efficient", "gla"):
            mechanism = attn.MECHANISMS[kind]()
            q, k, v, gates = inputs(mechanism, T=4, S=4)
            jax.eval_shape(
                lambda mechanism=mechanism, arrays=(q, k, v), gates=gates: mechanism.prefill(
                    *arrays, max_length=9, **gates
                )
            )


def test_values_without_width():
    for kind in ("linear", "based", "gla"):
        mechanism = attn.MECHANISMS[kind]()
        q, k, v, gates = inputs(mechanism, T=4, S=4, D=0)
        assert mechanism(q, k, v, mask=Causal(), **gates).shape == (2, 4, 4, 0)


def test_what_a_dtype_cannot_hold_is_infinite_in_it():
    # law 1 meets it: the delta rule without unit keys has gradients of 1e5 in float16
    close = lambda got: attn.testing.assert_close(
        np.float16(got), np.array([1e5, 1.0]), dtype=jnp.float16, what="x", kind="gradient"
    )
    close([np.inf, 1.0])
    for wrong in ([-np.inf, 1.0], [np.nan, 1.0], [np.inf, np.inf]):
        with pytest.raises(attn.testing.BrokenLaw, match="not finite"):
            close(wrong)
