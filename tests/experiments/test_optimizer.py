"""Weight decay shrinks matrices, and nothing that starts where its paper starts it for a reason."""

import jax
import pytest
from flax import nnx

from attn import RWKV7, Mamba2
from attn.nn import Encoder, EncoderConfig
from experiments.optimizer import decays

KEPT = {"bias", "scale", "a_log", "embedding", "token_shift"}
SHRUNK = {"qkv", "out", "out_gate", "kernel", "down", "up"}


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("mechanism", [RWKV7(), Mamba2()], ids=lambda m: m.name)
def test_matrices_decay_and_biases_scales_rates_and_shares_do_not(mechanism, scan):
    sizes = dict(vocab_size=5, max_length=8, classes=3, layers=2, width=8, heads=2, mlp_width=8)
    how = dict(mechanism=mechanism, head="token", pooling="none", scan=scan)
    model = nnx.eval_shape(lambda: Encoder(EncoderConfig(**sizes, **how), key=jax.random.key(0)))
    found = set()
    for path, shrinks in jax.tree.leaves_with_path(decays(nnx.state(model))):
        names = {str(getattr(part, "key", getattr(part, "name", ""))) for part in path}
        found |= names & (KEPT | SHRUNK)
        if names & KEPT:
            assert not shrinks, path
        elif names & SHRUNK:
            assert shrinks, path
    missing = {"RWKV7": "a_log", "Mamba2": "token_shift"}[mechanism.name]
    assert (KEPT | {"qkv", "out", "out_gate", "kernel"}) - {missing} <= found
