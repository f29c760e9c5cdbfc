"""Outputs and gradients of gated and delta-rule variants equal those of fla's naive recurrences.

Skipped unless torch and flash-linear-attention are installed; their files are loaded by path, as
the package itself imports triton.
"""

import importlib.util
import pathlib
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Causal
from attn.linearized.delta_net import DeltaNet
from attn.linearized.gated_delta_net import GatedDeltaNet
from attn.linearized.gla import GLA
from attn.linearized.hgrn2 import HGRN2
from attn.linearized.kda import KDA
from attn.linearized.lightning import Lightning
from attn.linearized.mamba2 import Mamba2
from attn.linearized.retention import Retention
from attn.linearized.rwkv6 import RWKV6
from attn.linearized.rwkv7 import RWKV7
from attn.testing import assert_close, inputs

torch = pytest.importorskip("torch")
FLA = importlib.util.find_spec("fla")
if FLA is None:
    pytest.skip("flash-linear-attention is not installed", allow_module_level=True)


@pytest.fixture
def naive(monkeypatch):
    """naive(file, name): a function of fla/ops/`file`."""
    if importlib.util.find_spec("einops") is None:  # imported there, used by other functions
        stub = types.ModuleType("einops")
        stub.rearrange = None
        monkeypatch.setitem(sys.modules, "einops", stub)
    root = pathlib.Path(next(iter(FLA.submodule_search_locations)))

    def load(file, name):
        spec = importlib.util.spec_from_file_location("fla_naive", root / "ops" / file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)

    return load


def head_first(function, *args, gates=(), **settings):
    """function of [B, N, T, ...] called on [B, T, N, ...]."""
    out = function(*(x.transpose(1, 2) for x in args), *gates, **settings)
    return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)


def length_one(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def same_decay(rates, q):
    return rates.expand(q.shape[:3])


def retention(naive, q, k, v):
    return head_first(naive("retention/naive.py", "naive_retention"), q, k, v)


def lightning(naive, q, k, v):
    N = q.shape[2]
    q, k = torch.nn.functional.silu(q), torch.nn.functional.silu(k)
    g = same_decay(-8 / N * torch.arange(N, dtype=q.dtype), q)
    return naive("simple_gla/naive.py", "naive_recurrent_simple_gla")(q, k, v, g, scale=1.0)[0]


def gla(naive, q, k, v, log_decay):
    return naive("gla/naive.py", "naive_recurrent_gla")(q, k, v, log_decay)[0]


def mamba2(naive, q, k, v, dt, a_log, d):
    recur = naive("simple_gla/naive.py", "naive_recurrent_simple_gla")
    return recur(q, dt[..., None] * k, v, -a_log.exp() * dt, scale=1.0)[0] + d[:, None] * v


def hgrn2(naive, q, k, v):
    g = torch.nn.functional.logsigmoid(k)
    return gla(naive, torch.nn.functional.silu(q), 1 - g.exp(), v, g)


def rwkv6(naive, q, k, v, log_decay, bonus):
    recur = naive("rwkv6/recurrent_naive.py", "naive_recurrent_rwkv6")
    return head_first(recur, q, k, v, log_decay, gates=(bonus,), scale=1.0)


def delta_net(naive, q, k, v, beta):
    recur = naive("delta_rule/naive.py", "delta_rule_recurrence")
    return head_first(recur, length_one(q), length_one(k), v, beta)


def gated_delta_net(naive, q, k, v, log_decay, beta):
    recur = naive("gated_delta_rule/naive.py", "naive_recurrent_gated_delta_rule")
    return recur(length_one(q), length_one(k), v, beta, log_decay)[0]


def kda(naive, q, k, v, log_decay, beta):
    recur = naive("kda/naive.py", "naive_recurrent_kda")
    return recur(length_one(q), length_one(k), v, log_decay, beta)[0]


def rwkv7(naive, q, k, v, log_decay, a, k_k, k_a):
    recur = naive("generalized_delta_rule/dplr/naive.py", "dplr_recurrence")
    kappa = length_one(k * k_k)
    k = k * (1 + (a - 1) * k_a)
    q = q * q.shape[-1] ** 0.5  # it scales, the paper does not
    return head_first(recur, q, k, v, -kappa, kappa * a, log_decay)


@pytest.mark.parametrize(
    ("kind", "define"),
    [
        (Retention, retention),
        (Lightning, lightning),
        (GLA, gla),
        (Mamba2, mamba2),
        (HGRN2, hgrn2),
        (RWKV6, rwkv6),
        (DeltaNet, delta_net),
        (GatedDeltaNet, gated_delta_net),
        (KDA, kda),
        (RWKV7, rwkv7),
    ],
)
def test_equals_fla(kind, define, naive):
    mechanism = kind(chunk=8)
    arrays = inputs(mechanism, T=21, S=21, scale=2.0)
    weight = np.sin(np.arange(2 * 21 * 4 * 6) * 0.7 + 0.3).reshape(2, 21, 4, 6)

    def loss(arrays):
        q, k, v, own = arrays
        out = mechanism(q, k, v, mask=Causal(), **own)
        return (out * jnp.asarray(weight, out.dtype)).sum(), out

    (_, out), found = jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays)

    leaves, tree = jax.tree.flatten(arrays)
    leaves = [torch.tensor(np.asarray(x), requires_grad=True) for x in leaves]
    q, k, v, own = jax.tree.unflatten(tree, leaves)
    k, v = (x.repeat_interleave(2, dim=2) for x in (k, v))
    want = define(naive, q, k, v, **own)
    (want * torch.tensor(weight, dtype=want.dtype)).sum().backward()

    assert_close(out, want.detach().numpy(), dtype="float32", what="output")
    for (path, got), x in zip(jax.tree_util.tree_leaves_with_path(found), leaves, strict=True):
        what = f"gradient of {jax.tree_util.keystr(path)}"
        assert_close(got, x.grad.numpy(), dtype="float32", kind="gradient", what=what)
