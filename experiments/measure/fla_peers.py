"""flash-linear-attention as a peer (Yang and Zhang 2024): its Triton kernels on a GPU, elsewhere
its naive chunks of causal linear attention, the one of its forms that runs on a CPU."""

import functools
import importlib
import importlib.util
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from attn import Causal, Mask
from experiments.measure.machine import on_gpu
from experiments.measure.torch_peers import array, load, ready, tensor, warmed
from experiments.measure.turns import Ready, Unavailable


def linear(kernel, q, k, v):
    # its layers map and divide as this does
    import torch

    phi = lambda x: torch.nn.functional.elu(x) + 1
    return kernel(phi(q), phi(k), v, scale=1.0, normalize=True)[0]


def retention(kernel, q, k, v):
    return kernel(q, k, v)[0]


def mamba2(kernel, q, k, v, dt, a_log, d):
    k, g = (dt[..., None] * k).to(k.dtype), -a_log.exp() * dt
    return kernel(q, k, v, g, scale=1.0)[0] + d[:, None] * v


def gla(kernel, q, k, v, log_decay):
    return kernel(q, k, v, log_decay)[0]


def delta_net(kernel, q, k, v, beta):
    return kernel(q, k, v, beta, use_qk_l2norm_in_kernel=True)[0]


def gated_delta_net(kernel, q, k, v, log_decay, beta):
    return kernel(q, k, v, log_decay, beta, use_qk_l2norm_in_kernel=True)[0]


# our variants: the kernel's module in fla.ops, its name, and how it takes our arrays; those here
# are [B, T, N, H] as ours are, scaled by 1 / sqrt(H) unless told, and their gates float32
KERNELS: dict[str, tuple[str, str, Callable]] = {
    "linear": ("linear_attn", "chunk_linear_attn", linear),
    "retention": ("retention", "chunk_retention", retention),
    "mamba2": ("simple_gla", "chunk_simple_gla", mamba2),
    "gla": ("gla", "chunk_gla", gla),
    "delta_net": ("delta_rule", "chunk_delta_rule", delta_net),
    "gated_delta_net": ("gated_delta_rule", "chunk_gated_delta_rule", gated_delta_net),
    "kda": ("kda", "chunk_kda", gated_delta_net),
}


def contender(peer: str) -> str:
    """What rows call a peer: fla's kernel by its name, as `fla` alone is the naive form."""
    return "fla linear" if peer == "fla" and on_gpu() else peer


def fla(mask: Mask, inputs: Sequence[tuple], mode: str) -> Ready:
    """Causal linear attention with features elu + 1."""
    if mask != Causal():
        raise Unavailable("it is causal")
    if on_gpu():
        return kernels("linear", {}, inputs, mode)
    load()
    attend = _fla_chunk()
    (_, T, N, _), K = inputs[0][0].shape, inputs[0][1].shape[2]
    if N != K or T % 64:
        raise Unavailable("it is without grouped heads, for multiples of 64 tokens")
    chunks = lambda *x, **settings: (attend(*x, **settings),)
    return ready(functools.partial(linear, chunks), inputs, mode, to=tensor, back=array)


def kernels(
    variant: str, arrays: dict[str, jax.Array], inputs: Sequence[tuple], mode: str
) -> Ready:
    """What `variant`, a key of `KERNELS`, computes from its arrays, whose gradients follow those of
    q, k and v; compiled and tuned."""
    load()
    arrays = dict(sorted(arrays.items()))  # as `jax.tree.leaves` orders those of ours
    module, name, form = KERNELS[variant]
    kernel = found(module, name)

    def attend(q, k, v, *more):
        times = q.shape[2] // k.shape[2]
        k, v = (x.repeat_interleave(times, dim=2) if times > 1 else x for x in (k, v))
        return form(kernel, q, k, v, **dict(zip(arrays, more, strict=True))).to(q.dtype)

    more = [tensor(x) for x in arrays.values()]
    return warmed(ready(attend, inputs, mode, more, to=tensor, back=array))


def found(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"fla.ops.{module}"), name)
    except ImportError as error:
        raise Unavailable(f"fla-core with Triton is not installed: {error}") from None


def _fla_chunk() -> Callable:
    """Read from its file: importing the package needs Triton."""
    found = importlib.util.find_spec("fla")
    if found is None or importlib.util.find_spec("einops") is None:
        raise Unavailable("fla is not installed (pip install fla-core einops --no-deps)")
    path = pathlib.Path(found.submodule_search_locations[0], "ops/linear_attn/naive.py")
    spec = importlib.util.spec_from_file_location("fla_linear_attn_naive", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.naive_chunk_linear_attn
