"""FLOPs from the jaxpr equal closed forms, and what cannot be counted is named, never guessed."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from tiers import at_once

from attn import (
    FULL,
    MECHANISMS,
    NSA,
    Based,
    Causal,
    MoBA,
    Pooled,
    Routing,
    Sinkhorn,
    Softmax,
    TopK,
    dot_product_attention,
)
from experiments.measure.flops import count


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def test_a_matrix_product_is_2_m_k_n():
    assert count(jnp.matmul, shape(3, 5), shape(5, 7)).flops == 2 * 3 * 5 * 7
    batched = count(lambda a, b: jnp.einsum("btnh,bsnh->bnts", a, b), *[shape(2, 6, 4, 8)] * 2)
    assert batched.flops == 2 * 2 * 4 * 6 * 6 * 8


def test_gradients_of_a_product_are_two_more():
    loss = lambda a, b: (a @ b).sum()
    assert (
        count(jax.value_and_grad(loss, (0, 1)), shape(3, 5), shape(5, 7)).flops == 3 * 2 * 3 * 5 * 7
    )


def test_scan_bodies_are_multiplied_also_nested_and_under_grad():
    w = shape(4, 4)

    def run(x):
        inner = lambda c, _: (c @ c, None)
        outer = lambda c, _: lax.scan(inner, c, None, length=3)
        return lax.scan(outer, x, None, length=5)[0].sum()

    assert count(run, w).flops == 15 * 2 * 4**3
    assert count(jax.grad(run), w).flops == 3 * 15 * 2 * 4**3


@pytest.mark.parametrize(
    "wrap", [jax.jit, jax.checkpoint, jax.vmap, lambda f: lambda x: lax.map(f, x)]
)
def test_calls_are_entered(wrap):
    f = wrap(lambda x: x @ x)
    assert count(f, shape(6, 4, 4)).flops == 6 * 2 * 4**3


def test_custom_rules_are_entered():
    @jax.custom_vjp
    def f(x):
        return x @ x

    f.defvjp(lambda x: (f(x), x), lambda x, g: (g @ x.T + x.T @ g,))
    assert count(f, shape(4, 4)).flops == 2 * 4**3
    assert count(jax.value_and_grad(lambda x: f(x).sum()), shape(4, 4)).flops == 3 * 2 * 4**3


def test_a_convolution_counts_its_kernel():
    conv = lambda x, w: lax.conv_general_dilated(x, w, (1,), "VALID")
    assert count(conv, shape(2, 3, 10), shape(5, 3, 4)).flops == 2 * (2 * 5 * 7) * 3 * 4


def test_the_dearest_branch_counts():
    f = lambda x: lax.cond(x[0, 0] > 0, lambda x: x @ x @ x, lambda x: x @ x, x)
    assert count(f, shape(4, 4)).flops == 2 * 2 * 4**3


def test_loops_whose_trips_are_known_are_multiplied():
    """Trip counts from a constant table, read by a scanned index: what blockwise attention does."""
    trips = jnp.array([3, 0, 2])

    def f(x):
        row = lambda a: lax.fori_loop(0, trips[a], lambda _, c: c @ c, x)
        return lax.map(row, jnp.arange(3))

    assert count(f, shape(4, 4)).flops == 5 * 2 * 4**3
    assert count(f, shape(4, 4)).unknown == ()


FIVE = jnp.int32(5)


@pytest.mark.parametrize(
    ("start", "test", "step"),
    [
        ((1, 0), lambda c: c[0] < FIVE, lambda c: (c[0] + 1, c[1])),  # a constant of the test
        ((0, 1), lambda c: c[1] < FIVE, lambda c: (c[0], c[1] + 1)),
        ((5, 1), lambda c: c[1] < c[0], lambda c: (c[0], c[1] + 1)),
        ((1, 5), lambda c: c[0] < c[1], lambda c: (c[0] + 1, c[1])),
    ],
)
def test_a_loop_counts_to_its_limit_wherever_both_are(start, test, step):
    body = lambda c: (*step(c), c[2] @ c[2])
    begin = map(jnp.int32, start)  # of one type with the limit
    got = count(lambda x: lax.while_loop(test, body, (*begin, x)), shape(4, 4))
    assert (got.flops, got.steps, got.unknown) == (4 * 2 * 4**3, 4, ())


def test_a_scan_from_its_end_reads_tables_from_their_end():
    def step(carry, n):
        total = carry[1] + n
        return (lax.fori_loop(0, total, lambda _, y: y @ y, carry[0]), total), None

    # a step without a trip is a step of the scan
    for reverse, trips, steps in ((False, 0 + 2 + 7, 1 + 2 + 7), (True, 5 + 7 + 7, 5 + 7 + 7)):
        of = lambda x, r=reverse: lax.scan(step, (x, 0), jnp.array([0, 2, 5]), reverse=r)
        got = count(of, shape(4, 4))
        assert (got.flops, got.steps, got.unknown) == (trips * 2 * 4**3, steps, ())


@pytest.mark.parametrize(
    "loop",
    [
        lambda x, n: lax.fori_loop(0, n, lambda _, c: c @ c, x),
        lambda x, n: lax.while_loop(lambda c: c[0, 0] < 1, lambda c: c @ c, x),
        # not a counter: it doubles
        lambda x, n: lax.while_loop(lambda c: c[0] < 8, lambda c: (2 * c[0], c[1] @ c[1]), (1, x))[
            1
        ],
        # nor what goes on by two, or to a limit that moves
        lambda x, n: lax.while_loop(lambda c: c[0] < 8, lambda c: (c[0] + 2, c[1] @ c[1]), (1, x)),
        lambda x, n: lax.while_loop(
            lambda c: c[1] < c[0], lambda c: (c[0] - 1, c[1] + 1, c[2] @ c[2]), (8, 1, x)
        ),
    ],
)
def test_loops_that_depend_on_data_are_named(loop):
    got = count(loop, shape(4, 4), jax.ShapeDtypeStruct((), jnp.int32))
    assert got.flops == 0
    assert "while" in got.unknown[0]


def test_factorizations_are_named():
    assert count(jnp.linalg.cholesky, shape(4, 4)).unknown == ("cholesky",)
    body = lambda c: (c[0] + 1, jnp.linalg.cholesky(c[1]))
    in_loop = lambda x: lax.while_loop(lambda c: c[0] < 3, body, (0, x))
    assert count(in_loop, shape(4, 4)).unknown == ("cholesky",)


@pytest.mark.parametrize("implementation", ["materialized", "blockwise"])
def test_exact_attention_equals_its_formula(implementation):
    T, N, K, H = 512, 4, 2, 16
    q, kv = shape(1, T, N, H), shape(1, T, K, H)
    f = lambda q, k, v: dot_product_attention(q, k, v, implementation=implementation)
    assert count(f, q, kv, kv).flops == Softmax().flops(T, T, N, K, H, H)


def counted_and_claimed(mechanism, T):
    """Grouped heads, and values of another width."""
    heads, (N, K, H, D) = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16}, (4, 2, 16, 24)
    draw = lambda key: mechanism.init(key, **heads, value_dim=D, max_length=T)
    arrays = jax.eval_shape(draw, jax.random.key(0))
    gates = mechanism.gate_shapes(**heads)
    wide = lambda gate, tail: (*tail[:-1], D) if gate.endswith("_v") else tail
    arrays |= {gate: shape(1, T, *wide(gate, tail)) for gate, tail in gates.items()}
    mask = Causal() if Causal in mechanism.requires else FULL
    call = lambda q, k, v, arrays: mechanism(q, k, v, mask=mask, **arrays)
    found = count(call, shape(1, T, N, H), shape(1, T, K, H), shape(1, T, K, D), arrays)
    assert found.unknown == ()
    return found.flops, mechanism.flops(T, T, N, K, H, D)


@pytest.mark.parametrize("name", at_once(MECHANISMS))
def test_every_formula_is_what_its_jaxpr_counts(name):
    counted, claimed = counted_and_claimed(MECHANISMS[name](), 512)
    assert claimed == pytest.approx(counted, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
def test_formulas_know_lengths_of_no_whole_blocks(name):
    counted, claimed = counted_and_claimed(MECHANISMS[name](), 300)
    assert claimed == pytest.approx(counted, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
def test_formulas_know_lengths_and_settings(name):
    for mechanism in (MECHANISMS[name](), *MECHANISMS[name].examples()):
        if name == "cosformer" and mechanism.length:
            continue  # the longest that it takes, shorter than these
        counted, claimed = counted_and_claimed(mechanism, 1024)
        assert claimed == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize(
    "mechanism",
    [
        MoBA(block_size=16, top=4),  # all blocks
        NSA(selection_block=16, selected=4, window=8),
        Based(),  # its window holds all of them
        TopK(keys=64),  # all keys, which need no ranking
        Sinkhorn(block_size=3),
        Routing(clusters=3),  # each would hold all of them
        Pooled(stride=3, pool="conv"),
        Pooled(stride=300, pool="conv"),
    ],
)
def test_formulas_of_short_texts_are_exact(mechanism):
    counted, claimed = counted_and_claimed(mechanism, 60)
    assert claimed == counted


@pytest.mark.parametrize("name", ["strided", "fixed", "axial"])
def test_a_prompt_costs_what_a_call_does(name):
    """It was O(T^2): 9 to 18 times as much at 4,096 tokens."""
    mechanism, x = MECHANISMS[name](), shape(1, 4096, 2, 16)
    call = lambda q, k, v: mechanism(q, k, v, mask=Causal())
    prompt = lambda q, k, v: mechanism.prefill(q, k, v, max_length=4096)[1]
    assert count(prompt, x, x, x).flops == count(call, x, x, x).flops


@pytest.mark.parametrize("name", MECHANISMS)
def test_formulas_of_few_or_no_tokens_are_whole_numbers(name):
    for T, S in ((0, 0), (0, 7), (7, 0), (1, 1), (7, 19), (19, 7)):
        claimed = MECHANISMS[name]().flops(T, S, 4, 2, 16, 16)
        assert isinstance(claimed, int)
        assert claimed >= 0


def test_blocks_that_a_mask_empties_are_not_counted():
    T = 2048
    run = lambda mask: lambda q: dot_product_attention(q, q, q, mask=mask).sum()
    q = shape(1, T, 4, 16)
    full, causal = count(run(FULL), q), count(run(Causal()), q)
    assert causal.unknown == ()
    assert Causal().density(T, T) <= causal.flops / full.flops < 0.7
    # the recomputing backward pass: 7 products where the forward pass has 2
    assert count(jax.grad(run(FULL)), q).flops == full.flops * 7 // 2


def test_what_no_output_needs_is_not_counted():
    assert count(lambda x: ((x @ x).sum(), x.sum())[1], shape(4, 4)).flops == 0


def test_steps_are_those_that_wait_for_each_other():
    x, row = shape(4, 4), lambda c, _: (c @ c, None)
    scan = lambda x, length: lax.scan(row, x, None, length=length)[0]
    assert count(lambda x: x @ x @ x, x).steps == 0
    assert count(lambda x: scan(x, 5), x).steps == 5
    assert count(lambda x: scan(scan(x, 5), 3), x).steps == 8
    # side by side
    assert count(lambda x: scan(x, 5) + scan(2 * x, 3), x).steps == 5
    # nested
    outer = lambda c, _: (scan(c, 3), None)
    assert count(lambda x: lax.scan(outer, x, None, length=5)[0], x).steps == 15
    # nothing is carried: all steps at once
    assert count(lambda x: lax.map(lambda r: r @ x, x), x).steps == 0
    assert (
        count(lambda x: lax.map(lambda r: lax.fori_loop(0, 3, lambda _, c: c @ x, r), x), x).steps
        == 3
    )
    lower = lambda x: jax.scipy.linalg.solve_triangular(x, x, lower=True)
    assert count(lower, x).steps == 4
    rows = lambda f, b: lax.fori_loop(0, 3, lambda _, y: f(y), b)
    found = count(lambda x: lax.custom_linear_solve(lambda y: x @ y, x, rows, symmetric=True), x)
    assert (found.steps, found.flops) == (3, 3 * 2 * 4**3)
