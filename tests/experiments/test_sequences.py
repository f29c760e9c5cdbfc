"""Tasks of sequences: a row is right when greedy decoding gives its target, and counts once."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn import Linear
from experiments.config import mechanism, task
from experiments.errors import ConfigError
from experiments.learner import Learner, by_row
from experiments.validation import from_dict

TASK = task("reverse", vocab_size=7, lengths=(2, 4), validation=9, test=8)
MODELS = {
    "transformer": {"layers": 1, "heads": 2, "mlp_width": 8},
    "bahdanau": {"family": "bahdanau"},
    "luong": {"family": "luong"},
    "lstmn": {"family": "lstmn"},
}


def experiment(family="transformer", task=TASK, **model):
    return from_dict(
        {
            "task": task,
            "model": {"width": 8, **MODELS[family], **model},
            "optimizer": {"learning_rate": 1e-2},
            "train": {"steps": 2, "batch_size": 4, "eval_batch_size": 8},
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
def test_all_right_under_teacher_forcing_is_what_greedy_decoding_gives(family):
    learner = Learner(experiment(family))
    model, batch = learner.model(), learner.experiment.task.batch(0, 0, 8)
    labels = np.array(model.greedy(batch.tokens, 5, lengths=batch.lengths))
    labels[4:6, 2] = (labels[4:6, 2] + 1) % 7  # one token of these is another
    labels[6:, 3] = (labels[6:, 3] + 1) % 7  # of these one that does not count
    weights = np.ones((8, 5), np.float32)
    weights[6:, 3:] = 0
    batch = dataclasses.replace(batch, labels=labels, weights=weights)
    sums = jax.jit(learner.eval_step)(nnx.split(model)[1], batch)
    right = np.array([1, 1, 1, 1, 0, 0, 1, 1])
    assert sums["asked"].tolist() == [1] * 8
    assert sums["right"].tolist() == right.tolist()


def test_the_loss_is_of_tokens_and_a_row_counts_once():
    losses = jnp.array([[1.0, 3.0, jnp.nan], [4.0, 5.0, 6.0], [jnp.nan] * 3])
    weights = jnp.array([[1.0, 1, 0], [1, 1, 1], [0, 0, 0]])
    right = jnp.array([[True, True, False], [True, False, True], [False] * 3])
    loss, correct, weight = by_row(losses, right, weights)
    assert loss.tolist() == [2, 5, 0]
    assert correct.tolist()[:2] == [True, False]
    assert weight.tolist() == [1, 1, 0]


@pytest.mark.slow
def test_a_step_learns_from_rows_of_every_length():
    learner = Learner(experiment())
    batch = learner.shape.check(learner.experiment.task.batch(0, 0, 4))
    state, metrics = jax.jit(learner.train_step)(learner.init(), batch, jnp.int32(0))
    assert state.step == 1
    assert metrics["finite"].all()
    assert 1 < metrics["loss"] < 4
    changed = [
        bool((x != y).any())
        for x, y in zip(*map(jax.tree.leaves, (state.params, learner.init().params)))
    ]
    assert all(changed)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (dict(task="copy", causal=True, family="bahdanau"), "family: expected 'transformer'"),
        (dict(family="luong", layers=3), "layers: expected its default with family='luong'"),
        (dict(cross=mechanism("window")), "cross: expected a mechanism in which each query looks"),
        (dict(family="luong", cross=mechanism("linear")), "cross: expected its default with fam"),
    ],
)
def test_what_a_family_cannot_be_is_named(changes, named):
    with pytest.raises(ConfigError, match=named):
        Learner(experiment(**changes))


def test_each_mistake_of_a_family_is_one():
    """Two were told to be one, the second beside the margin."""
    with pytest.raises(ConfigError) as refused:
        Learner(experiment(family="luong", layers=3, heads=2))
    names = [line.partition(":")[0] for line in refused.value.problems]
    assert names == ["layers", "heads"]


def test_a_decoder_reads_by_the_mechanism_it_is_given():
    learner = Learner(experiment(cross=mechanism("linear", feature_map="relu")))
    assert [block.cross.mechanism for block in learner.model().stack.blocks] == [
        Linear(feature_map="relu")
    ]
    for wrong, named in (
        ({"name": "linaer"}, "model.cross.name: unknown mechanism 'linaer'; did you mean 'linear'"),
        ({"name": "linear", "chnk": 3}, "model.cross.chnk: unknown field; did you mean 'chunk'"),
        ({"name": "linear", "chunk": 0}, "model.cross.chunk: "),
    ):
        with pytest.raises(ConfigError, match=re.escape(named)):
            experiment(cross=wrong)
    with pytest.raises(ConfigError, match=r"model.cross: expected its default with digits, which"):
        experiment(task="digits", cross="linear")
