"""torch's attention where JAX computes, in its own layout [B, N, T, H]: no copy is timed."""

import contextlib
import dataclasses
import functools
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from attn import Causal, Mask, Window
from experiments.measure import cost
from experiments.measure.machine import on_gpu
from experiments.measure.turns import MODES, Ready, Unavailable

COMPILE_SECONDS = 120


def load() -> Any:
    # its threads would spin after each call, on the cores whose turn is another contender's
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import torch
    except ImportError:
        raise Unavailable("torch is not installed") from None
    if on_gpu() and not torch.cuda.is_available():
        raise Unavailable("torch has no CUDA here")
    torch.set_num_threads(os.cpu_count() or 1)
    return torch


def place() -> str:
    return "cuda" if on_gpu() else "cpu"


def wait(found: Any) -> Any:
    """The same, once the device has computed it."""
    if on_gpu():
        import torch

        torch.cuda.synchronize()
    return found


def sdpa(mask: Mask, inputs: Sequence[tuple], mode: str) -> Ready:
    """`scaled_dot_product_attention` on (q, k, v, gradient of the output)."""
    torch = load()
    q, k = inputs[0][:2]
    if mask == Causal():
        options = {"is_causal": True}
    else:
        options = {"attn_mask": table(mask, q.shape[1], k.shape[1])}
    if q.shape[2] != k.shape[2]:
        options["enable_gqa"] = True
    attend = functools.partial(torch.nn.functional.scaled_dot_product_attention, **options)
    return ready(attend, inputs, mode)


def flex(mask: Mask, inputs: Sequence[tuple], mode: str) -> Ready:
    """Compiled FlexAttention with a block mask, made once as its users do; compiling is apart."""
    if mode != MODES[0] and not on_gpu():
        raise Unavailable("it has no backward pass on a CPU")
    torch = load()
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    (_, T, N, _), K = inputs[0][0].shape, inputs[0][1].shape[2]
    # past eight shapes torch stops compiling without an error, and runs it unfused
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    blocks = create_block_mask(mask_mod(mask, T), None, None, T, T, device=place())
    attend = functools.partial(compiled, block_mask=blocks, enable_gqa=N != K)
    try:
        return warmed(ready(attend, inputs, mode))
    except Unavailable:
        raise
    except Exception as error:  # no compiler, a dtype, a shape: torch has many names for it
        message = (str(error).strip().splitlines() or [""])[0][:160]
        raise Unavailable(f"it does not compile: {type(error).__name__}: {message}") from None


def mask_mod(mask: Mask, T: int) -> Callable:
    """What FlexAttention asks of (batch row, head, i, j); of most masks it is looked up."""
    if mask == Causal():
        return lambda b, h, i, j: i >= j
    if isinstance(mask, Window):
        left, right = mask.left, mask.right
        return lambda b, h, i, j: (i - j <= left) & (j - i <= right)
    shown = table(mask, T, T)
    return lambda b, h, i, j: shown[i, j]


def table(mask: Mask, T: int, S: int) -> Any:
    """The whole mask as a tensor of booleans."""
    import torch

    return torch.from_numpy(np.array(mask.array(T, S))).to(place())


TORCH_PEERS: dict[str, Callable[[Mask, Sequence[tuple], str], Ready]] = {
    "torch": sdpa,
    "torch flex": flex,
}


def ready(
    attend: Callable,
    inputs: Sequence[tuple],
    mode: str,
    more: Sequence[Any] = (),
    *,
    to: Callable | None = None,
    back: Callable | None = None,
) -> Ready:
    """`attend(q, k, v, *more)` on (q, k, v, gradient of the output), whose gradients are those of
    q, k, v and `more`; `to` and `back` are from and to arrays, by default of the other layout."""
    to, back, torch = to or to_torch, back or from_torch, load()
    held = [tuple(map(to, x)) for x in inputs]

    def call(q, k, v, g):
        if mode == MODES[0]:
            with torch.inference_mode():
                return (attend(q, k, v, *more),)
        leaves = [x.detach().requires_grad_() for x in (q, k, v, *more)]
        out = attend(*leaves)
        return out.detach(), *torch.autograd.grad(out, leaves, g)

    return Ready(cost.Finished(call, held, wait), lambda: [back(x) for x in call(*held[0])])


def warmed(prepared: Ready) -> Ready:
    """The same after its first call, which compiles it."""
    start = time.perf_counter()
    with _limit(COMPILE_SECONDS):
        prepared.call(0)
    return dataclasses.replace(prepared, compile_seconds=time.perf_counter() - start)


def tensor(x: jax.Array) -> Any:
    """The same values, shape and dtype, where JAX computes."""
    import torch

    # NumPy has no bfloat16 that torch would read
    plain = np.array(x.astype("float32"))
    return torch.from_numpy(plain).to(place(), getattr(torch, x.dtype.name))


def array(x: Any) -> np.ndarray:
    """As float32, which NumPy has, where a tensor's own dtype may be bfloat16."""
    return x.float().cpu().numpy()


def to_torch(x: jax.Array) -> Any:
    """[B, T, N, H] -> a tensor [B, N, T, H] of the same dtype."""
    return tensor(x).transpose(1, 2).contiguous()


def from_torch(x: Any) -> np.ndarray:
    return array(x).swapaxes(1, 2)


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
