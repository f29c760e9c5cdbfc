"""Any composition of static terms: blocks never lose a pair, JSON never changes one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attn import masks

small, size = st.integers(0, 6), st.integers(1, 6)
terms = st.one_of(
    st.just(masks.FULL),
    st.builds(masks.Causal, st.integers(-5, 5)),
    st.builds(masks.Window, small, small),
    st.builds(masks.Dilated, small, size),
    st.builds(masks.Prefix, small),
    st.builds(masks.Global, st.lists(st.integers(0, 20), max_size=3).map(tuple)),
    st.builds(masks.Strided, size),
    st.integers(1, 6).flatmap(lambda b: st.builds(masks.Fixed, st.just(b), st.integers(0, b))),
    st.builds(masks.Random, size, st.integers(0, 3), small),
    st.builds(masks.Axial, size, size),
    st.builds(masks.Local2D, size, size, st.integers(0, 3)),
    st.builds(masks.Summary, st.just(6), st.integers(0, 6)),
    st.builds(lambda left, n: masks.Coarse(masks.Window(left, 0), n), st.integers(0, 3), size),
    st.just(masks.LogDistance()),
)
compositions = st.recursive(
    terms,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(compositions, *[st.integers(1, 17)] * 2, *[st.integers(1, 7)] * 2)
def test_blocks_density_and_json_of_any_composition(mask, T, S, block_q, block_k):
    whole = mask.array(T, S)
    some, every = mask.blocks(T, S, block_q, block_k)
    for a, b in np.ndindex(some.shape):
        block = whole[a * block_q : (a + 1) * block_q, b * block_k : (b + 1) * block_k]
        assert some[a, b] or not block.any()
        assert block.all() or not every[a, b]
    assert abs(mask.density(T, S) - whole.mean()) < 1e-9
    again = masks.from_json(mask.to_json())
    assert again == mask
    assert hash(again) == hash(mask)
    assert ((~mask).array(T, S) == ~whole).all()
