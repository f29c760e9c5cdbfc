"""torch's attention on a CPU, in its own layout [B, N, T, H], so that no copy is timed."""

import contextlib
import functools
import importlib.util
import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from attn import Causal, Mask, Window
from experiments.measure.turns import MODES, Ready, Unavailable

COMPILE_SECONDS = 120


def load() -> Any:
    # its threads would spin after each call, on the cores whose turn is another contender's
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import torch
    except ImportError:
        raise Unavailable("torch is not installed") from None
    torch.set_num_threads(os.cpu_count() or 1)
    return torch


def sdpa(mask: Mask, inputs: Sequence[tuple], mode: str) -> Ready:
    """`scaled_dot_product_attention` on (q, k, v, gradient of the output)."""
    torch = load()
    q, k = inputs[0][:2]
    if mask == Causal():
        options = {"is_causal": True}
    else:
        options = {"attn_mask": torch.from_numpy(np.array(mask.array(q.shape[1], k.shape[1])))}
    if q.shape[2] != k.shape[2]:
        options["enable_gqa"] = True
    attend = functools.partial(torch.nn.functional.scaled_dot_product_attention, **options)

    def call(q, k, v, g):
        if mode == MODES[0]:
            with torch.inference_mode():
                return (attend(q, k, v),)
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        out = attend(q, k, v)
        return out.detach(), *torch.autograd.grad(out, (q, k, v), g)

    return _ready(call, inputs)


def flex(mask: Mask, inputs: Sequence[tuple], mode: str) -> Ready:
    """Compiled FlexAttention with a block mask, made once as its users do; compiling is apart."""
    if mode != MODES[0]:
        raise Unavailable("it has no backward pass on a CPU")
    torch = load()
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if mask == Causal():
        visible = lambda b, h, i, j: i >= j
    elif isinstance(mask, Window):
        left, right = mask.left, mask.right
        visible = lambda b, h, i, j: (i - j <= left) & (j - i <= right)
    else:
        raise Unavailable(f"no block mask is written for {mask}")
    (_, T, N, _), K = inputs[0][0].shape, inputs[0][1].shape[2]
    # past eight shapes torch stops compiling without an error, and runs it unfused
    torch._dynamo.reset()
    attend = torch.compile(flex_attention, dynamic=False)
    blocks = create_block_mask(visible, None, None, T, T, device="cpu")

    def call(q, k, v, g):
        with torch.inference_mode():
            return (attend(q, k, v, block_mask=blocks, enable_gqa=N != K),)

    ready, start = _ready(call, inputs), time.perf_counter()
    try:
        with _limit(COMPILE_SECONDS):
            ready.call(0)
    except Unavailable:
        raise
    except Exception as error:  # no compiler, a dtype, a shape: torch has many names for it
        message = (str(error).strip().splitlines() or [""])[0][:160]
        raise Unavailable(f"it does not compile: {type(error).__name__}: {message}") from None
    seconds = time.perf_counter() - start
    return Ready(ready.call, ready.results, compile_seconds=seconds)


def fla(mask: Mask, inputs: Sequence[tuple], mode: str) -> Ready:
    """flash-linear-attention's naive reference of causal linear attention, chunks in torch and not
    its kernels: the one of its forms that runs on a CPU, with features elu + 1 (Yang and Zhang
    2024)."""
    torch = load()
    attend = _fla_chunk()
    (_, T, N, _), K = inputs[0][0].shape, inputs[0][1].shape[2]
    if mask != Causal() or N != K or T % 64:
        raise Unavailable("it is causal, without grouped heads, for multiples of 64 tokens")
    phi = lambda x: torch.nn.functional.elu(x) + 1

    def call(q, k, v, g):
        if mode == MODES[0]:
            with torch.inference_mode():
                return (attend(phi(q), phi(k), v, scale=1.0, normalize=True),)
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        out = attend(phi(q), phi(k), v, scale=1.0, normalize=True)
        return out.detach(), *torch.autograd.grad(out, (q, k, v), g)

    held = [tuple(torch.from_numpy(np.array(x)) for x in many) for many in inputs]
    results = lambda: [x.float().numpy() for x in call(*held[0])]
    return Ready(lambda r: call(*held[r % len(held)]), results)


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


TORCH_PEERS: dict[str, Callable[[Mask, Sequence[tuple], str], Ready]] = {
    "torch": sdpa,
    "torch flex": flex,
    "fla": fla,
}


def _ready(call: Callable[..., tuple], inputs: Sequence[tuple]) -> Ready:
    held = [tuple(map(to_torch, x)) for x in inputs]
    results = lambda: [from_torch(x) for x in call(*held[0])]
    return Ready(lambda r: call(*held[r % len(held)]), results)


def to_torch(x: jax.Array) -> Any:
    """[B, T, N, H] -> a tensor [B, N, T, H] of the same dtype."""
    import torch

    # NumPy has no bfloat16 that torch would read
    plain = np.asarray(x.astype("float32")).swapaxes(1, 2).copy()
    return torch.from_numpy(plain).to(getattr(torch, x.dtype.name))


def from_torch(x: Any) -> np.ndarray:
    return x.float().numpy().swapaxes(1, 2)


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raises Unavailable in the block after `seconds`, in a main thread."""

    def stop(*_):
        raise Unavailable(f"compiling took over {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
