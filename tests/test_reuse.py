"""The examples of docs/reuse.md run as they stand there; `attention_fn` honours or refuses."""

import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import attn
from attn.nn import attention_fn

TEXT = (pathlib.Path(__file__).parent.parent / "docs/reuse.md").read_text()


def sections():
    """{heading: the code below it}"""
    parts = re.split(r"^## (.*)\n", TEXT, flags=re.M)[1:]
    block = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
    return {name: "\n".join(block.findall(text)) for name, text in zip(parts[::2], parts[1::2])}


NEEDED = {
    "Equinox": ("equinox",),
    "A Hugging Face BERT": ("torch", "transformers"),
    "A trained run": ("safetensors",),
    "Saving to safetensors": ("safetensors",),
}


CONFIG = pathlib.Path(__file__).parent.parent / "configs/bytes.py"


def train_bytes(workdir):
    """One step of the run that the example is about, of a smaller model and text."""
    from experiments import train
    from experiments.config_file import read

    pathlib.Path("text").write_bytes(bytes(range(256)) * 6)
    small = {"task.path": "text", "model.layers": 1, "model.width": 16, "train.steps": 1}
    overrides = [f"--config.{name}={value}" for name, value in small.items()]
    experiment = read(str(CONFIG), ["--config.objective=causal", *overrides])
    train.run(experiment, pathlib.Path(workdir), progress=False)


SLOW = ("A Hugging Face BERT", "A trained run")  # to import; to train


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in sections()]
)
def test_example_runs(name, tmp_path, monkeypatch):
    for module in NEEDED.get(name, ()):
        pytest.importorskip(module, reason=f"{module} is not installed")
    monkeypatch.chdir(tmp_path)
    if name == "A trained run":
        train_bytes("runs/bytes-causal")
    code = sections()[name]
    assert "assert" in code
    exec(code, {})


@pytest.mark.slow
def test_plain_jax_runs_on_four_devices():
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    code = sections()["Plain JAX"] + "\nassert jax.device_count() == 4"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stderr


Q, K, V = jax.random.normal(jax.random.key(0), (3, 2, 7, 4, 8))
SEEN = jnp.asarray(np.random.default_rng(0).random((2, 1, 7, 7)) < 0.5) | jnp.eye(7, dtype=bool)
BIAS = jax.random.normal(jax.random.key(1), (2, 4, 7, 7))


@pytest.mark.parametrize("theirs", [nnx.dot_product_attention, linen.dot_product_attention])
def test_masks_and_biases_are_flaxs(theirs):
    ours = attention_fn(attn.Softmax(implementation="materialized"))
    fewer_axes = ({"mask": mask} for mask in (SEEN[0], SEEN[0, 0], SEEN[0, 0, 0]))
    alike = {"mask": SEEN}, {"mask": SEEN[:1, :, :1]}, {"mask": SEEN[:1], "bias": BIAS}
    for options in (*alike, *fewer_axes):
        near = theirs(Q, K, V, **options)
        np.testing.assert_allclose(ours(Q, K, V, **options), near, atol=1e-5)
    np.testing.assert_allclose(
        attention_fn(attn.Softmax(), mask=attn.Causal())(Q, K, V),
        ours(Q, K, V, is_causal=True),
        atol=1e-5,
    )
    assert ours(Q, K, V, dtype=jnp.bfloat16).dtype == jnp.bfloat16


def test_dropout_is_the_modules():
    options = dict(dropout_rate=0.4, deterministic=False, broadcast_dropout=False)
    key = jax.random.key(2)
    own = attn.Softmax(implementation="materialized", dropout_rate=0.4)
    want = own(Q, K, V, dropout_key=key)
    ours = attention_fn(attn.Softmax(implementation="materialized"))
    np.testing.assert_array_equal(ours(Q, K, V, dropout_rng=key, **options), want)
    assert (ours(Q, K, V, dropout_rate=0.4, deterministic=True) != want).any()
    with pytest.raises(NotImplementedError, match="dropout_rate: Linear drops no weights"):
        attention_fn(attn.Linear())(Q, K, V, dropout_rng=key, **options)
    # it dropped nothing and did not say so
    without = {name: x for name, x in options.items() if name != "deterministic"}
    np.testing.assert_array_equal(ours(Q, K, V, dropout_rng=key, **without), want)
    with pytest.raises(ValueError, match=r"dropout_rate: expected 0, .* got 0\.4 of Softmax"):
        attention_fn(own)
    with pytest.raises(ValueError, match=r"dropout_rng: expected a key .*, got None"):
        ours(Q, K, V, **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"mask": jnp.ones((2, 4, 7, 7), bool)}, r"mask: .* all 4 heads, \[2, 1, 7, 7\], got"),
        ({"mask": SEEN}, "mask: Linear cannot honour Array"),
        ({"bias": BIAS}, "bias: Linear has no scores"),
        ({"dropout_rate": 0.1, "deterministic": False}, "broadcast_dropout: expected False"),
        ({"module": object()}, "module: expected None"),
        ({"precision": "highest"}, "precision: expected None: take jax.default_matmul_precision"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(options, named):
    with pytest.raises(NotImplementedError, match=named):
        attention_fn(attn.Linear())(Q, K, V, **options)


def test_a_mask_of_a_call_that_is_none_of_flaxs_is_named():
    ours = attention_fn(attn.Softmax())
    # it was read as booleans, and so as its opposite
    with pytest.raises(ValueError, match=r"mask: expected integers from 0 to 1, got -1"):
        ours(Q, K, V, mask=jnp.where(SEEN, 0, -1e9))
    traced = jax.jit(lambda mask: ours(Q, K, V, mask=mask))
    assert jnp.isnan(traced(jnp.where(SEEN, 0, -1e9))).all()
    np.testing.assert_allclose(traced(SEEN.astype(jnp.float32)), traced(SEEN), rtol=1e-6)
    with pytest.raises(TypeError, match=r"mask: expected an array of booleans, got Causal;"):
        ours(Q, K, V, mask=attn.Causal())


def test_what_needs_a_layer_of_its_own_is_named():
    for kind, what in (("linformer", "key_projection"), ("gla", "log_decay"), ("mamba2", "dt")):
        with pytest.raises(ValueError, match=f"mechanism: .* has .*{what}.*attn.nn.Attention"):
            attention_fn(attn.MECHANISMS[kind]())


def test_a_function_in_place_of_a_mechanism_is_named():
    with pytest.raises(TypeError, match=r"mechanism: .* attn\.Softmax\(\), got linear_attention$"):
        attention_fn(attn.linear_attention)
    with pytest.raises(TypeError, match=r"mask: expected a Mask from attn.masks, got NoneType"):
        attention_fn(attn.Linear(), mask=None)


def test_one_query_whose_place_counts_is_refused():
    q, k = jnp.ones((2, 1, 4, 8)), jnp.ones((2, 5, 4, 8))
    filled = jnp.arange(5)[None, None, None] < 3
    call = lambda fn: fn(q, k, k, mask=jnp.broadcast_to(filled, (2, 1, 1, 5)))
    assert call(attention_fn(attn.Softmax())).shape == q.shape
    for fn in (
        attention_fn(attn.Softmax(), mask=attn.Causal()),
        attention_fn(attn.SlidingWindow(left=2, right=0)),
    ):
        with pytest.raises(NotImplementedError, match="mask: expected more than one query"):
            call(fn)
