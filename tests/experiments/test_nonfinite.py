"""A batch that makes something infinite stops a run, or the run is as if it had never come."""

import dataclasses
import functools
import math
import re
import types
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_experiment import STEPS, rows, state_digest, tiny

from experiments import loop, train
from experiments.checkpoint import Checkpoints, flatten
from experiments.config import Experiment
from experiments.errors import ConfigError, Interrupted, NonFiniteError
from experiments.learner import Learner, State

pytestmark = pytest.mark.usefixtures("compiled_once")
BAD = 7  # the step that goes wrong, after a checkpoint at 4 and 5


def without(kind: str, **train: object) -> Experiment:
    return tiny(train={"on_nonfinite": kind, **train})


def together(kind: str) -> Experiment:
    """Four steps in a call."""
    return without(kind, steps_per_call=4, save_every=4)


def poison(steps: set[int], monkeypatch) -> list[int]:
    """Weighs every label of these steps' batches by nan; the list of those that were drawn."""
    make, drawn = loop.Session._batch, []

    def batch(session, step):
        made = make(session, step)
        if step + 1 not in steps:
            return made
        drawn.append(step + 1)
        return dataclasses.replace(made, weights=made.weights * np.float32(math.nan))

    monkeypatch.setattr(loop.Session, "_batch", batch)
    return drawn


@pytest.fixture(
    scope="module",
    params=[f(kind) for f in (without, together) for kind in ("skip", "rollback")],
    ids=["skip", "rollback", "skip-together", "rollback-together"],
)
def never_saw(request, tmp_path_factory, compiled_once) -> tuple[Experiment, list[dict], str]:
    """Experiment, rows and state of a run whose batch BAD is not trained on, nor looked at."""
    experiment, workdir = request.param, tmp_path_factory.mktemp("never")
    with pytest.MonkeyPatch.context() as patch:
        make = loop.Session._batches
        leave_out = lambda s, first: (s.skipped.update({BAD: "loss"}), make(s, first))[1]
        patch.setattr(loop.Session, "_batches", leave_out)
        train.run(experiment, workdir, progress=False)
    return experiment, rows(workdir), state_digest(workdir, experiment)


@pytest.mark.optimised
@pytest.mark.slow
def test_the_run_is_as_one_that_never_saw_the_batch(never_saw, tmp_path, monkeypatch, capfd):
    experiment, expected, state = never_saw
    drawn = poison({BAD}, monkeypatch)
    train.run(experiment, tmp_path, progress=False)
    assert f"step {BAD}: loss is not finite" in capfd.readouterr().err
    # going back, the batch comes again and is passed over
    assert len(drawn) == {"skip": 1, "rollback": 2}[experiment.train.on_nonfinite]
    found = rows(tmp_path)
    assert [row["step"] for row in found] == list(range(1, STEPS + 1))
    assert found[BAD - 1] == {"step": BAD, "skipped": "loss"}
    assert found == expected
    assert state_digest(tmp_path, experiment) == state


@pytest.mark.optimised
@pytest.mark.slow
def test_it_ends_the_same_when_it_is_stopped_on_the_way(never_saw, tmp_path, monkeypatch):
    experiment, expected, state = never_saw
    make = loop.Session._train

    def stopped(session, batches, numbers):
        if BAD - 1 in numbers:  # just before the batch is trained on
            session.signals.caught = 15
        return make(session, batches, numbers)

    with monkeypatch.context() as patch:
        poison({BAD}, patch)
        patch.setattr(loop.Session, "_train", stopped)
        with pytest.raises(Interrupted):
            train.run(experiment, tmp_path, progress=False)
    poison({BAD}, monkeypatch)
    train.run(experiment, tmp_path, progress=False)
    assert rows(tmp_path) == expected
    assert state_digest(tmp_path, experiment) == state


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rollback"])
def test_only_so_many_batches_are_done_without(kind: str, tmp_path: Path, monkeypatch):
    drawn = poison(set(range(BAD, STEPS + 1)), monkeypatch)
    with pytest.raises(NonFiniteError, match=rf"step {BAD + 2}: loss is .* after 2 other") as error:
        train.run(without(kind, nonfinite_limit=2), tmp_path, progress=False)
    assert error.value.code == 3
    assert len(drawn) < 20
    assert [row["step"] for row in rows(tmp_path)][: BAD - 1] == list(range(1, BAD))
    assert max(Checkpoints.of(tmp_path, without(kind, nonfinite_limit=2)).steps()) < BAD + 2


@pytest.mark.slow
def test_steps_that_are_made_again_are_no_slower_ones(tmp_path, monkeypatch):
    """Their time was counted and they were not: a run that had gone back seemed slower by them."""
    clock, make = [0.0], loop.Session._train

    def train_for_a_second(session, *arguments):
        clock[0] += 1
        return make(session, *arguments)

    monkeypatch.setattr(loop, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(loop.Session, "_train", train_for_a_second)
    poison({BAD}, monkeypatch)
    result = train.run(without("rollback"), tmp_path, progress=False)
    assert (clock[0], result["steps"], result["steps_per_second"]) == (STEPS + 2, STEPS, 1.0)


class Plain(Learner):
    """Its loss is the sum of all parameters times the sum of the batch's weights."""

    def _sums(self, params, batch, key):
        total = sum(x.sum() for x in jax.tree.leaves(params))
        rows = jnp.ones(len(batch.weights))
        return {"loss": total * batch.weights.sum(), "right": rows, "asked": rows * 0}


@functools.cache
def plain(kind: str) -> tuple[Learner, State, Callable]:
    learner = Plain(tiny(train={"on_nonfinite": kind}))
    return learner, jax.jit(learner.init)(), jax.jit(learner.train_step)


@pytest.mark.parametrize("kind", ["stop", "skip"])
@pytest.mark.parametrize(
    ("weight", "first"),
    [(math.nan, "loss"), (math.inf, "loss"), (1e30, "gradient norm"), (1.0, None)],
)
def test_a_bad_batch_leaves_all_but_the_step(kind: str, weight: float, first: str | None):
    # 1e30: each gradient is finite, and clipped by its infinite norm would be 0
    learner, state, train_step = plain(kind)
    e = learner.experiment
    batch = e.task.batch(e.seed, 0, e.train.batch_size)
    rest = np.zeros_like(batch.weights)
    rest.flat[0] = weight
    after, metrics = train_step(state, dataclasses.replace(batch, weights=rest), np.int32(0))
    bad = [n for n, ok in zip(learner.names(state), metrics["finite"], strict=True) if not ok]
    assert bad[:1] == [first] * (first is not None)
    old, new = flatten(state), flatten(after)
    assert int(new.pop("step")) == int(old.pop("step")) + (first is None or kind == "skip")
    same = [np.array_equal(x, new[name]) for name, x in old.items()]
    assert all(same) if first else not any(same)


def test_the_rate_of_a_row_is_that_of_its_update_after_a_batch_that_was_skipped():
    learner, state, train_step = plain("skip")
    e = learner.experiment
    for step, weight in enumerate([1.0, math.nan, 1.0, 1.0]):
        batch = e.task.batch(e.seed, step, e.train.batch_size)
        weights = np.full_like(batch.weights, weight)
        after, metrics = train_step(
            state, dataclasses.replace(batch, weights=weights), np.int32(step)
        )
        if weight == 1.0:
            # all gradients are equal, and it does not decay: Adam moves it by the rate
            moved = flatten(state.params), flatten(after.params)
            name = next(name for name in moved[0] if re.search(r"\b(bias|scale)\b", name))
            applied = np.abs(moved[1][name] - moved[0][name]).max()
            np.testing.assert_allclose(metrics["learning_rate"], applied, rtol=1e-3)
        state = after


def test_a_limit_without_a_reader_is_a_mistake():
    with pytest.raises(ConfigError, match=r"train\.nonfinite_limit: expected its default"):
        tiny(train={"nonfinite_limit": 3})
