"""Beam search finds what enumeration of every sequence finds, and of width 1 is greedy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn.nn import beam_search

V, STEPS, END = 3, 4, 1


def tables(seed: int, rows: int):
    """For each row and prefix, a table of scores: [rows, prefixes, V], prefix as a number in base
    V + 1 with digits token + 1."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(rows, (V + 1) ** STEPS, V)) * 1.5
    scores[1::2, :, END] += 1.5  # rows in which short ones win
    return scores.astype(np.float32)


def log_softmax(x):
    x = np.asarray(x, np.float64)
    return x - np.log(np.exp(x).sum())


def enumerated(table, alpha):
    """{tokens: score} of every sequence that ends, or is cut off after STEPS tokens."""
    found = {}
    for length in range(1, STEPS + 1):
        for tokens in itertools.product(range(V), repeat=length):
            if END in tokens[:-1] or (length < STEPS and tokens[-1] != END):
                continue
            prefix, total = 0, 0.0
            for token in tokens:
                total += log_softmax(table[prefix])[token]
                prefix = prefix * (V + 1) + token + 1
            full = (*tokens, *[END] * (STEPS - length))
            found[full] = total / ((5 + length) / 6) ** alpha
    return found


def search(table, width, alpha):
    table = jnp.asarray(table)
    rows = len(table)
    look = jax.vmap(lambda one, prefix: one[prefix])

    def step(state, token):
        prefix = (state["prefix"] * (V + 1) + token + 1) % (V + 1) ** STEPS
        return {"prefix": prefix, "count": state["count"] + 1}, look(table, prefix)

    start = {"prefix": jnp.zeros((rows, width), jnp.int32), "count": jnp.int32(0)}
    first = look(table, start["prefix"])
    go = jax.jit(lambda s, x: beam_search(step, s, x, steps=STEPS, end=END, alpha=alpha))
    return [np.asarray(x) for x in go(start, first)]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_that_holds_every_prefix_is_exact(alpha):
    table = tables(0, 6)
    width = V * 2 ** (STEPS - 1)
    tokens, scores = search(table, width, alpha)
    early = 0
    for row, one in enumerate(table):
        want = sorted(enumerated(one, alpha).items(), key=lambda x: -x[1])
        got = [tuple(x.tolist()) for x in tokens[row]]
        assert got == [x for x, _ in want[:width]]
        np.testing.assert_allclose(scores[row], [s for _, s in want[:width]], rtol=1e-5)
        early += END in got[0][:-1]
    assert 0 < early < 6  # some of the best end early, some do not


def test_width_one_is_greedy():
    table = tables(1, 8)
    tokens, scores = search(table, 1, 0.6)
    for row, one in enumerate(table):
        prefix, greedy, total = 0, [], 0.0
        while len(greedy) < STEPS and END not in greedy:
            logp = log_softmax(one[prefix])
            greedy.append(int(logp.argmax()))
            total += logp.max()
            prefix = prefix * (V + 1) + greedy[-1] + 1
        want = total / ((5 + len(greedy)) / 6) ** 0.6
        assert tokens[row, 0].tolist() == greedy + [END] * (STEPS - len(greedy))
        np.testing.assert_allclose(scores[row, 0], want, rtol=1e-5)


def test_a_wider_beam_than_there_are_sequences_says_so():
    tokens, scores = search(tables(2, 2), 60, 0.6)
    found = len(enumerated(tables(2, 2)[0], 0.6))
    assert np.isfinite(scores).sum(1).tolist() == [found, found]
    assert (np.diff(scores[:, :found]) <= 0).all()
    assert (tokens[:, found:] == END).all()
    assert len({tuple(x) for x in tokens[0, :found].tolist()}) == found


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (dict(steps=0), "steps"),
        (dict(end=V), "end"),
        (dict(alpha=-1.0), "alpha"),
        (dict(alpha=float("inf")), "alpha"),
        (dict(state=jnp.zeros((3, 2))), "state"),
        (dict(scores=jnp.zeros(V)), "scores"),
    ],
)
def test_what_does_not_fit_is_named(changes, named):
    given = dict(state=jnp.zeros((2, 3)), scores=jnp.zeros((2, 3, V)), steps=2, end=1, alpha=0.6)
    given |= changes
    with pytest.raises(ValueError, match=f"^{named}: expected"):
        beam_search(None, given.pop("state"), given.pop("scores"), **given)


def test_numbers_of_numpy_are_numbers():
    with jax.numpy_dtype_promotion("strict"):
        _, scores = beam_search(
            lambda state, token: (state, jnp.zeros((2, 3, V))),
            (),
            jnp.zeros((2, 3, V)),
            steps=np.int64(2),
            end=np.int64(1),
            alpha=np.float32(0.5),
        )
    assert scores.dtype == jnp.float32


def test_scores_are_float32_whatever_jax_takes_a_number_for():
    table = jnp.eye(V, dtype=jnp.float32)
    with jax.enable_x64(True):
        step = lambda state, token: (state, table[token])
        _, scores = beam_search(step, (), jnp.zeros((2, 3, V), jnp.float32), steps=2, end=1)
    assert scores.dtype == jnp.float32


@pytest.mark.parametrize("scores", [jnp.zeros((2, 3, V), int), [[0.0, 1.0]]])
def test_scores_that_are_no_floats_are_named(scores):
    with pytest.raises(TypeError, match=r"^scores: expected an array of floats"):
        beam_search(None, (), scores, steps=2, end=1)


def test_a_hypothesis_of_nan_leaves_the_beam_and_the_others_stay():
    rows = jnp.array([[jnp.nan] * 3, [0.0, 0.5, 1.0], [0.0, 0.0, 0.0]])
    count = lambda n, token: (n + 1, rows[token])  # a state may be a number of Python's
    tokens, scores = beam_search(count, 0, jnp.zeros((2, 3)), steps=3, end=2)
    # tokens 0 and 1 come first, and 0 leads to NaN
    assert np.isfinite(scores).all()
    assert tokens.tolist() == [[1, 2, 2], [1, 1, 2]]
    _, none = beam_search(count, 0, jnp.full((2, 3), jnp.nan), steps=3, end=2)
    assert (none == -jnp.inf).all()


def test_infinite_scores_share_what_there_is():
    """A token that is forced by +inf ended every hypothesis: all of them scored -inf."""
    forced = jnp.array([[0.0, 0.0, jnp.inf], [-jnp.inf, jnp.inf, jnp.inf]])[:, None]
    step = lambda t, _: (t + 1, forced)
    tokens, scores = beam_search(step, 0, forced, steps=2, end=0, alpha=0.0)
    np.testing.assert_array_equal(tokens[:, 0], [[2, 2], [1, 1]])
    np.testing.assert_allclose(scores[:, 0], [0.0, 2 * np.log(0.5)], rtol=1e-6)


def test_the_last_choice_asks_for_no_scores_after_it():
    """The state's length past the last step was computed and thrown away."""
    asked = []

    def count(state, token):
        jax.debug.callback(lambda t: asked.append(int(t)), state)
        return state + 1, jnp.zeros((2, 3))

    jax.block_until_ready(beam_search(count, 0, jnp.zeros((2, 3)), steps=4, end=2))
    jax.effects_barrier()
    assert sorted(asked) == [0, 1, 2]
