"""The shapes in the annotations are those that run: tests of all of attn's parts under jaxtyping's
checker. None of them asks for a refusal, which would be the checker's."""

import os
import pathlib
import subprocess
import sys

import pytest

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
