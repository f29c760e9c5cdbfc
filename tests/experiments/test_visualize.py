"""Attention maps of a trained run: one picture, one page, and clear words where there is none."""

import inspect
import re

import jax
import numpy as np
import pytest
from flax import nnx

from attn import FULL, MECHANISMS
from experiments import align, evaluate, seen, train, visualize
from experiments.config import mechanism, task
from experiments.evaluate import load
from experiments.learner import Learner
from experiments.report.sight import ATTENDING, LARGEST, Sight, attending, averaged
from experiments.seen import READ, in_place_of_softmax, look, sight
from experiments.validation import from_dict


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "linear"
    experiment = from_dict(
        {
            "task": task("digits"),
            "model": {"attention": "linear", "layers": 2, "width": 8, "heads": 2, "mlp_width": 8},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"steps": 2, "batch_size": 4},
        }
    )
    train.run(experiment, folder, progress=False)
    return folder


@pytest.mark.slow
def test_every_layer_and_head_is_drawn(trained, capsys):
    assert visualize.main([f"--workdir={trained}", "--example=5"]) == 0
    assert "attention.html" in capsys.readouterr().out
    page = (trained / "attention.html").read_text()
    titles = re.findall(r"layer \d, head \d", page)
    assert titles == [f"layer {n}, head {h}" for n in (1, 2) for h in (1, 2)]
    assert page.count("<image") == 6  # and the digit, and the receptive field
    assert "receptive field" in page
    assert "http:" not in page
    assert "Linear(" in page
    assert (trained / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert (trained / "attention.svg").read_text().startswith('<svg xmlns="http')


@pytest.mark.slow
def test_the_receptive_field_is_the_norm_of_the_jacobian(trained):
    # one cotangent at a time: vmapped over all, XLA for CPUs gets it wrong
    learner, params, _ = load(trained)
    encoder = nnx.merge(learner.graph, params)
    tokens = learner.experiment.posed.examples("validation", np.array([0])).tokens[0]
    x = encoder.embedding(tokens, dropout_key=None)
    after = lambda x: encoder.norm(encoder.stack(x, dropout_key=None, **encoder._context(x, FULL)))
    one = jax.jit(lambda x, i, c: jax.grad(lambda x: after(x)[i, c])(x))
    rows = np.array([3, 60])
    exact = [np.sqrt(sum(one(x, i, c) ** 2 for c in range(8)).sum(-1)) for i in rows]
    seen = visualize.look(trained, 0)
    np.testing.assert_allclose(seen.field[rows], exact, rtol=1e-4, atol=1e-6)
    few = jax.jit(lambda t: encoder.receptive_field(t, rows, probes=4))(tokens)
    assert few.shape == (2, 64)
    assert 0.5 < few.sum() / seen.field[rows].sum() < 1.5
    assert not np.allclose(few, seen.field[rows])


@pytest.mark.slow
def test_the_effective_matrix_of_a_linear_variant_is_shown(trained):
    seen = visualize.look(trained, 0)
    assert [x.shape for x in seen.maps] == [(2, 64, 64)] * 2
    np.testing.assert_allclose(np.concatenate(seen.maps).sum(-1), 1, atol=1e-5)
    assert seen.image.shape == (8, 8)


@pytest.mark.slow
def test_the_error_to_softmax_is_that_of_the_outputs(trained):
    learner, params, _ = load(trained)
    encoder = nnx.merge(learner.graph, params)
    tokens = learner.experiment.posed.examples("test", np.array([0])).tokens
    seen = look(learner, params, "test", 0)
    pairs = encoder.look(tokens, lambda layer, x, **context: layer.beside_softmax(x, **context))
    wanted = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs]
    np.testing.assert_allclose(seen.errors, wanted, rtol=1e-4)
    assert min(wanted) > 0.01
    found = sight(trained)  # and kept beside the run
    assert Sight.load(trained).errors == found.errors == seen.errors


@pytest.mark.parametrize("name", ["performer", "nystrom", "bigbird", "softmax", "gla", "additive"])
def test_what_stands_in_for_softmax(name):
    stands = in_place_of_softmax(MECHANISMS[name]())
    assert stands == (name not in ("gla", "additive"))
    assert not in_place_of_softmax(object())  # of another project


def test_negative_weights_are_drawn_around_zero():
    signed = np.array([[[-1.0, 0.5], [0.2, 0.8]]], np.float32)
    seen = visualize.Seen([signed, np.abs(signed)], "", np.eye(2), np.arange(2), None, {})
    svg = visualize.draw(seen).svg
    assert "±1" in svg
    assert "max 1" in svg


def test_long_sequences_are_averaged():
    small = averaged(np.ones((1000, 1000)))
    assert small.shape == (250, 250)
    np.testing.assert_array_equal(small, 1)
    assert averaged(np.ones((64, 1000))).shape == (64, 250)
    odd = averaged(np.tri(601))
    assert odd.shape == (201, 201)
    assert np.isfinite(odd).all()


def test_captions_say_what_is_averaged_sampled_and_estimated():
    """Of a long sequence the picture has neither each row nor each weight."""
    for caption in (visualize.CAPTION, ATTENDING):
        assert f"More than {LARGEST} rows or columns are drawn as means" in caption
    assert f"of at most {READ} i at equal distances, estimated" in visualize.CAPTION
    assert {inspect.signature(look).parameters[x].default for x in ("probes", "rows")} == {READ}


@pytest.mark.slow
def test_a_mechanism_without_a_matrix_is_named(trained, capsys, monkeypatch):
    from attn import MECHANISMS

    def weights(self, q, k, **_):
        raise NotImplementedError(f"{self.name} has no T x S matrix to show")

    monkeypatch.setattr(MECHANISMS["linear"], "weights", weights)
    assert visualize.main([f"--workdir={trained}"]) == 0
    page = (trained / "attention.html").read_text()
    assert "Linear has no T x S matrix" in page
    assert page.count("<image") == 2  # the digit and the receptive field


@pytest.mark.slow
def test_padding_is_not_shown():
    """Its queries took three quarters of the picture of a row of 32 tokens among 128."""
    model = {"layers": 1, "width": 8, "heads": 2, "mlp_width": 8, "causal": True}
    tokens = task("induction", length=12, lengths=(5, 12), validation=4, test=4)
    rest = {"optimizer": {"learning_rate": 1e-3}, "train": {"steps": 1, "batch_size": 4}}
    learner = Learner(from_dict({"task": tokens, "model": model, **rest}))
    params = learner.init().params
    for example, n in ((0, 5), (1, 12)):
        found = look(learner, params, "validation", example)
        assert found.maps[0].shape == (2, n, n)
        assert found.field.shape == (n, n)
        assert found.tokens.shape == (n,)
        np.testing.assert_allclose(found.maps[0].sum(-1), 1, rtol=1e-5)


@pytest.mark.slow
def test_beside_a_layer_without_a_matrix_the_others_are_shown(tmp_path):
    """None was: a short convolution below it hid the layer that recalls."""
    model = {"layers": 2, "width": 4, "heads": 2, "mlp_width": 0}
    model["attention"] = [mechanism("depthwise_conv"), mechanism("softmax")]
    rest = {"optimizer": {"learning_rate": 1e-3}, "train": {"steps": 2, "batch_size": 4}}
    learner = Learner(from_dict({"task": task("digit_patches"), "model": model, **rest}))
    found = look(learner, learner.init().params, "test", 0)
    assert found.maps[0] is None
    assert found.maps[1].shape == (2, 16, 16)
    assert found.why == "layer 1: DepthwiseConv has no T x S matrix to show"
    titles = re.findall(r"layer \d, head \d", visualize.draw(found).svg)
    assert titles == ["layer 2, head 1", "layer 2, head 2"]
    kept = Sight((None, found.maps[1].mean(0)), found.field, "looked", found.errors)
    kept.save(tmp_path)
    again = Sight.load(tmp_path)
    assert again.layers[0] is None
    ((drawing, _),) = attending({"hybrid": again})
    assert re.findall(r"layer \d", drawing.svg) == ["layer 2"]
    assert drawing.svg.count("<image") == 2


def test_what_is_no_trained_run_is_refused(tmp_path, trained, capsys, monkeypatch):
    assert visualize.main([f"--workdir={tmp_path / 'none'}"]) == 2
    assert visualize.main([f"--workdir={tmp_path}"]) == 5
    assert visualize.main([f"--workdir={trained}", "--example=270"]) == 2
    assert visualize.main(["--exmple=3"]) == 2
    monkeypatch.setattr(seen, "LONGEST", 63)
    assert visualize.main([f"--workdir={trained}"]) == 2
    errors = capsys.readouterr().err
    assert "longer than 63 positions" in errors
    assert "no such folder" in errors
    assert "no run directory" in errors
    assert "validation has examples 0..269" in errors
    assert "did you mean '--example'?" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("module", [align, evaluate, visualize])
def test_a_comparison_is_told_to_name_one_of_its_runs(module, tmp_path, capsys):
    # or only that it has no config.json, with the code of a checkpoint
    for name, path in (("a", "metrics.jsonl"), ("softmax-0-abc", "config.json")):
        (tmp_path / "cells" / name).mkdir(parents=True)
        (tmp_path / "cells" / name / path).write_text("{}")
    arguments = [f"--workdir={tmp_path}"]
    assert module.main(arguments) == 5
    errors = capsys.readouterr().err
    assert f"name one of its runs, such as {tmp_path}/cells/softmax-0-abc\n" in errors
