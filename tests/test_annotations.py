"""The shapes in the annotations are those that run: tests of all of attn's parts under jaxtyping's
checker. None of them asks for a refusal, which would be the checker's. And a static checker reads
them: pyright once refused each record's call with a mask."""

import configparser
import inspect
import os
import pathlib
import subprocess
import sys
import typing

import pytest

import attn
from attn.masks import Mask, language

HERE = pathlib.Path(__file__).parent
CHECKED = (
    "test_oracle.py",
    pytest.param("annotated_calls.py", marks=pytest.mark.thorough),  # three minutes by itself
    "nn/test_encoder.py::test_every_option_gives_finite_scores_and_maps",
    "nn/test_decoder.py::test_every_mechanism_that_decodes_fits_the_decoder",
    "nn/test_seq2seq.py::test_step_by_step_equals_at_once",
    "nn/test_aligned.py::test_padding_never_leaks_and_greedy_takes_the_likeliest",
    "nn/test_mixers.py::test_token_by_token_is_at_once",
    "dense/test_engine.py::test_dropout_is_the_same_for_every_implementation_and_block",
    "dense/test_engine.py::test_each_bias_and_its_gradient_equal_the_materialized_ones",
    "kernels/test_kernel_band.py::test_blind_queries_are_known_exactly",
)


@pytest.mark.slow
@pytest.mark.parametrize("path", CHECKED)
def test_annotated_shapes_hold_while_tests_run(path):
    hook = "--jaxtyping-packages=attn,array_checker.checker"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", hook]
    run = subprocess.run(
        [*command, str(HERE / path)],
        capture_output=True,
        text=True,
        cwd=HERE.parent,
        # few optimisations: it is for the shapes
        env={**os.environ, "PYTHONPATH": f"{HERE}", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    )
    assert run.returncode == 0, run.stdout[-3000:]


def test_a_package_that_says_it_is_typed():
    setup = configparser.ConfigParser()
    setup.read(HERE.parent / "setup.cfg")
    assert setup["options.package_data"]["attn"] == "py.typed"
    assert (pathlib.Path(attn.__file__).parent / "py.typed").exists()


def test_a_parameter_whose_default_is_full_takes_any_mask():
    assert typing.get_type_hints(language)["FULL"] is Mask


def test_what_comes_back_depends_on_return_lse_and_nothing_else_does():
    whole = inspect.signature(attn.dot_product_attention)
    forms = [inspect.signature(f) for f in typing.get_overloads(attn.dot_product_attention)]
    asked = [form.parameters["return_lse"] for form in forms]
    assert [x.default for x in asked] == [False, inspect.Parameter.empty]
    assert [x.annotation for x in asked] == [typing.Literal[False], typing.Literal[True]]
    # as text: jaxtyping makes a new type for each annotation
    out, both = (inspect.formatannotation(form.return_annotation) for form in forms)
    assert inspect.formatannotation(whole.return_annotation) == f"{out} | {both}"
    for form in forms:
        named = form.parameters | {"return_lse": whole.parameters["return_lse"]}
        assert list(map(str, named.values())) == list(map(str, whole.parameters.values()))


@pytest.mark.parametrize("kind", attn.MECHANISMS.values())
def test_what_a_record_returns_is_annotated(kind):
    # inferred, it is unknown to those that only read a package's annotations
    assert inspect.signature(kind.__call__).return_annotation is not inspect.Signature.empty
