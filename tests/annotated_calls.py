"""Every form of every mechanism, traced: `test_annotations.py` runs it, its shapes checked."""

import contextlib

import jax
import pytest

from attn import MECHANISMS
from attn.testing.cases import SHAPE, inputs, masks_for

EXAMPLES = [m for kind in MECHANISMS.values() for m in kind.examples()]


def calls(m, q, k, v, mask, learned):
    yield lambda q: m.reference(q, k, v, mask=mask, **learned)
    yield lambda q: m.weights(q, k, mask=mask, **learned)
    yield jax.grad(lambda q: m(q, k, v, mask=mask, **learned).sum())


def decoding(m, q, k, v, learned):
    sizes = dict(num_heads=SHAPE["N"], num_kv_heads=k.shape[-2], head_dim=SHAPE["H"])
    one = lambda x: x[:, :1]

    def step(q):
        sized = dict(value_dim=SHAPE["D"], max_length=22)
        state = m.init_state(SHAPE["batch"], **sizes, **sized)
        gates = m.gate_shapes(**sizes)
        now = {name: one(x) if name in gates else x for name, x in learned.items()}
        return m.step(state, one(q), one(k), one(v), **now)

    yield step
    yield lambda q: m.prefill(q, k, v, max_length=22, **learned)


@pytest.mark.parametrize("m", EXAMPLES, ids=str)
def test_calls_of_every_form_are_as_annotated(m):
    q, k, v, learned = inputs(m, **{"K": SHAPE["N"]} if m.shared_qk else {})
    masks = masks_for(m, T=SHAPE["T"], S=SHAPE["S"]).values()
    forms = [form for mask in masks for form in calls(m, q, k, v, mask, learned)]
    for form in (*forms, *decoding(m, q, k, v, learned)):
        with contextlib.suppress(NotImplementedError):
            jax.eval_shape(form, q)
