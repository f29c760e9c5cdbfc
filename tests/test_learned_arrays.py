"""Learned arrays and gates of a size the record did not ask for are refused, by name."""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import pytest
from tiers import FEW

import attn
from attn import MECHANISMS
from attn.testing.cases import SHAPE, base_mask, inputs


def learned_by(record):
    """The names of its arrays, of which none is made: all of them would take a minute."""
    return sorted(jax.eval_shape(lambda: inputs(record, N=2)[3]))


EXAMPLES = [
    pytest.param(record, id=f"{name}-{n}", marks=[pytest.mark.slow] * (name not in FEW))
    for name, kind in MECHANISMS.items()
    for n, record in enumerate(kind.examples())
    if learned_by(record)
]


def forms(record, q, k, v):
    """Each way to call the record, as a function of what it learned."""
    mask = base_mask(record)
    sizes = dict(num_heads=SHAPE["N"], num_kv_heads=k.shape[-2], head_dim=SHAPE["H"])
    one = lambda x: x[:, :1]

    def step(learned):
        sized = dict(value_dim=v.shape[-1], max_length=SHAPE["S"] + 3)
        state = record.init_state(SHAPE["batch"], **sizes, **sized)
        gates = record.gate_shapes(**sizes)
        learned = {name: one(x) if name in gates else x for name, x in learned.items()}
        return record.step(state, one(q), one(k), one(v), **learned)

    yield lambda learned: record(q, k, v, mask=mask, **learned)
    yield lambda learned: record.reference(q, k, v, mask=mask, **learned)
    yield lambda learned: record.weights(q, k, mask=mask, **learned)
    yield lambda learned: record.prefill(q, k, v, max_length=SHAPE["S"] + 3, **learned)
    yield step


def wrong_shapes(shape, longer):
    """Shapes with an axis more or less, and one longer or shorter where lengths do not decide."""
    yield from ((1, *shape), shape[1:])
    for axis, (size, other) in enumerate(zip(shape, longer)):
        if size == other:
            resized = lambda by: (*shape[:axis], size + by, *shape[axis + 1 :])
            yield from (resized(1), resized(-1))


@pytest.mark.parametrize("record", EXAMPLES)
def test_another_size_is_refused_with_both_shapes(record):
    heads = {"K": SHAPE["N"]} if record.shared_qk else {}
    q, k, v, learned = inputs(record, **heads)
    longer = inputs(record, S=SHAPE["S"] + 5, **heads)[3]
    gates = record.gate_shapes(num_heads=4, num_kv_heads=k.shape[-2], head_dim=8)
    for form in forms(record, q, k, v):
        try:
            jax.eval_shape(form, learned)
        except NotImplementedError:
            continue
        for name, x in learned.items():
            after_tokens = 2 if name in gates else 0
            for shape in wrong_shapes(x.shape[after_tokens:], longer[name].shape[after_tokens:]):
                wrong = jax.ShapeDtypeStruct((*x.shape[:after_tokens], *shape), jnp.float32)
                with pytest.raises(ValueError, match=f"^{name}: expected .*, got ") as raised:
                    jax.eval_shape(form, {**learned, name: wrong})
                came = re.search(r"got (\[.*\])", str(raised.value))[1]
                assert came.endswith(str(list(shape))[1:]), (shape, came)


@pytest.mark.parametrize(
    "record", [pytest.param(*r.values, id=r.id) for r in EXAMPLES if r.id.endswith("-0")]
)
def test_one_that_is_not_finite_is_not_swallowed(record):
    """Those by which tokens are chosen reach no number of the output: theirs would be as finite."""
    heads = {"K": SHAPE["N"]} if record.shared_qk else {}
    q, k, v, learned = inputs(record, **heads)
    gates = record.gate_shapes(num_heads=4, num_kv_heads=k.shape[-2], head_dim=8)
    call, reference, *_ = map(jax.jit, forms(record, q, k, v))
    for name, x in learned.items():
        at = (0, 5) if name in gates else ()  # the first token's decay is of no use
        at += (0,) * (x.ndim - len(at))
        given = {**learned, name: jnp.asarray(x).at[at].set(jnp.nan)}
        assert jnp.isnan(call(given)).any(), name
        assert jnp.isnan(reference(given)).any(), name


@pytest.mark.parametrize("record", [r for r in EXAMPLES if "linformer" in r.id], ids=repr)
def test_arrays_made_for_longer_inputs_fit_and_for_shorter_do_not(record):
    q, k, v, learned = inputs(record)
    assert jax.eval_shape(record, q, k, v, **inputs(record, S=40)[3]).shape == v.shape[:2] + (4, 6)
    with pytest.raises(ValueError, match=r"^key_projection: expected .*, at least 19\]"):
        record(q, k, v, **{name: x[..., :18] for name, x in learned.items()})


def test_missing_superfluous_and_foreign_arrays_are_named():
    record = attn.Linformer(features=3)
    q, k, v, learned = inputs(record)
    with pytest.raises(ValueError, match=r"^value_projection: expected \[2, 3, 'max_length'\]"):
        record(q, k, v, key_projection=learned["key_projection"])
    with pytest.raises(TypeError, match=r"^sinks: Linformer takes key_projection, value_"):
        record(q, k, v, **learned, sinks=jnp.ones(4))
    with pytest.raises(TypeError, match=r"^key_projection: expected an array of floats, got int32"):
        record(q, k, v, **{**learned, "key_projection": jnp.ones((2, 3, 22), int)})


class InSteps(attn.Set):
    """One learned point for every 64 tokens of `max_length`."""

    def init(self, key, *, max_length, **sizes):
        return attn.Set(points=-(-max_length // 64)).init(key, max_length=max_length, **sizes)


def test_arrays_that_grow_in_steps_of_the_length_come_back():
    mechanism = InSteps()
    q, k, v, _ = inputs(mechanism)
    for max_length in (19, 65, 1000):
        sizes = dict(num_heads=4, num_kv_heads=2, head_dim=8, value_dim=6, max_length=max_length)
        learned = mechanism.init(jax.random.key(0), **sizes)
        assert mechanism(q, k, v, **learned).shape == (*q.shape[:-1], 6)


def _of_functions():
    """Each function that takes learned arrays, its record and those arrays' names."""
    for name, kind in MECHANISMS.items():
        record, call = kind.examples()[0], getattr(attn, f"{name}_attention", None)
        for array in learned_by(record) if call else ():
            yield pytest.param(record, call, array, id=f"{name}-{array}")


@pytest.mark.parametrize(("record", "call", "array"), list(_of_functions()))
def test_functions_refuse_what_is_no_array_of_floats(record, call, array):
    q, k, v, learned = inputs(record)
    settings = inspect.signature(call).parameters.keys() & vars(record).keys()
    run = functools.partial(call, q, k, v, mask=base_mask(record), **learned)
    run = functools.partial(run, **{name: getattr(record, name) for name in settings})
    x, optional = learned[array], inspect.signature(call).parameters[array].default is None
    for wrong in (x.tolist(), *map(x.astype, (int, bool, complex)), *([] if optional else [None])):
        with pytest.raises((TypeError, ValueError), match=f"^{array}: expected "):
            run(**{array: wrong})


@pytest.mark.parametrize("max_length", [-1, 2.0, "5", None])
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_state_for_no_number_of_tokens_is_refused(name, max_length):
    sizes = dict(num_heads=2, num_kv_heads=2, head_dim=8, value_dim=8)
    with pytest.raises((ValueError, NotImplementedError), match=r"max_length|decode"):
        MECHANISMS[name].examples()[0].init_state((1,), **sizes, max_length=max_length)


@pytest.mark.parametrize("batch", [2, (-1,)])
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_state_for_no_batch_is_refused(name, batch):
    sizes = dict(num_heads=2, num_kv_heads=2, head_dim=8, value_dim=8, max_length=9)
    with pytest.raises((TypeError, NotImplementedError), match=r"^batch: expected|decode"):
        MECHANISMS[name].examples()[0].init_state(batch, **sizes)


# of 8 heads (4 of keys) with width 64 and values of 48: what a sum over so many inputs divides by
VARIANCES = {
    "additive": {"query_projection": 1 / 64, "key_projection": 1 / 64, "score_vector": 1 / 64},
    "synthesizer": {"w1": 1 / 64, "w2": 1 / 64},
    "differential": dict.fromkeys(("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"), 0.01),
    "talking_heads": {"logit_mixing": 1 / 8, "weight_mixing": 1 / 8},
    "latent": {"key_up": 1 / 112, "value_up": 1 / 112},  # numbers kept of a token: 64 + 48
    "reformer": {"rotations": 1},
    "routing": {"centroids": 1 / 64},
    "sinkhorn": {"sorting": 1 / 64},
    "nsa": {
        **{"key_position": 0.02**2, "key_up": 1 / (32 * 64), "key_down": 2 / 64},
        **{"value_position": 0.02**2, "value_up": 1 / (32 * 48), "value_down": 2 / 48},
    },
    "linformer": {"key_projection": 1 / 64, "value_projection": 1 / 64},  # 64 features
    "poolingformer": {
        **dict.fromkeys(("query_projection", "key_projection", "value_projection"), 1 / 48),
        **{"key_pool": 1 / 64, "value_pool": 1 / 48},
    },
    "set": {"inducing_points": 1, "key_map": 1 / 48},
    "luna": {"packed": 1},
    "abc": {"control": 1 / 64},
}


@pytest.mark.parametrize("name", VARIANCES)
def test_initial_values_have_the_variance_that_their_inputs_ask_for(name):
    sizes = dict(num_heads=8, num_kv_heads=4, head_dim=64, value_dim=48, max_length=512)
    drawn = MECHANISMS[name]().init(jax.random.key(0), **sizes)
    for array, variance in VARIANCES[name].items():
        x = drawn[array]
        # five standard errors of a mean square of normal numbers
        near = 5 * (2 / x.size) ** 0.5
        assert float((x * x).mean()) == pytest.approx(variance, rel=near), array
