"""What the machine itself can do, measured where it is used: products, copies, memory."""

import contextlib
import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.limits import allowed
from experiments.records import version

PEERS = ("torch", "triton", "fla-core", "tokamax")


def on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def on_cpu() -> contextlib.AbstractContextManager:
    """Definitions in float64 are computed there: token after token is slow on a GPU."""
    return jax.default_device(jax.devices("cpu")[0])


def precision(dtype: str) -> contextlib.AbstractContextManager:
    """In it products of float32 are float32's: JAX's default on a GPU is TF32, which is outside
    the contract of numbers."""
    full = on_gpu() and dtype == "float32"
    return jax.default_matmul_precision("highest") if full else contextlib.nullcontext()


def memory_bytes() -> int:
    """Of the GPU what JAX may take, else of the machine what this process may."""
    if on_gpu() and (limit := (jax.devices()[0].memory_stats() or {}).get("bytes_limit")):
        return limit
    return allowed()


def peak_flops(size: int = 2048, rounds: int = 8) -> float:
    """FLOP/s of a float32 matrix product on all cores: the best of XLA's and NumPy's."""
    x = np.random.default_rng(0).standard_normal((size, size), np.float32)
    y = jnp.asarray(x)
    product = jax.jit(lambda a: a @ a)
    runs = [lambda: x @ x, lambda: jax.block_until_ready(product(y))]
    return 2 * size**3 / min(_best(run, rounds) for run in runs)


def peaks() -> dict[str, float]:
    """FLOP/s of a matrix product by dtype; on a CPU, of float32 alone."""
    if not on_gpu():
        return {"float32": peak_flops()}
    return {dtype: _device_flops(dtype) for dtype in ("float32", "bfloat16")}


def peak_of(dtype: str, peaks: dict[str, float]) -> float:
    """The peak that a row of `dtype` is held against."""
    return peaks.get("bfloat16" if dtype == "float16" else dtype, peaks["float32"])


def told(peaks: dict[str, float]) -> str:
    where = "highest precision" if on_gpu() else "all cores"
    first, *others = (f"{x / 1e9:.0f} GFLOP/s, {dtype}" for dtype, x in peaks.items())
    return ", ".join([f"{first}, {where}", *others])


def _device_flops(dtype: str, size: int = 8192, products: int = 16) -> float:
    x = np.random.default_rng(0).standard_normal((size, size), np.float32) / size**0.5
    x = jnp.asarray(x, dtype)
    chain = _chain(dtype, products)
    return 2 * size**3 * products / _best(lambda: jax.block_until_ready(chain(x)), 3)


@functools.cache
def _chain(dtype: str, products: int) -> Callable:
    """Many products a dispatch, each of what the one before gave."""

    def run(x):
        with precision(dtype):
            return jax.lax.fori_loop(0, products, lambda _, y: x @ y, x)

    return jax.jit(run)


def device() -> dict[str, Any]:
    """What a report says of a GPU, and of the peers that need one; nothing on a CPU."""
    if not on_gpu():
        return {}
    gpu, copy = jax.devices()[0], DeviceCopy()
    speed = copy.bytes / _best(lambda: copy(0), 8)
    return {
        "device": gpu.device_kind,
        "compute capability": getattr(gpu, "compute_capability", "?"),
        "multiprocessors": getattr(gpu, "core_count", "?"),
        "device memory": f"{memory_bytes() / 1e9:.1f} GB for JAX",
        "device copy": f"{speed / 1e9:.0f} GB/s read and written",
        "peers": ", ".join(f"{name} {version(name) or 'not installed'}" for name in PEERS),
    }


def _best(run: Callable, rounds: int) -> float:
    run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count())


class Copy:
    """Copies `size` bytes from one array into another, on all cores: reads and writes 2 size."""

    def __init__(self, size: int = 2**27):
        count = os.cpu_count() or 1
        source = np.ones(size // 8)
        target = np.zeros_like(source)  # its pages are there before the first copy
        self.parts = list(zip(np.array_split(target, count), np.array_split(source, count)))
        self.bytes = 2 * source.nbytes

    def __call__(self, _: int) -> None:
        list(_threads().map(lambda part: np.copyto(*part), self.parts))


class DeviceCopy:
    """Writes `size` bytes on the device for as many that it reads."""

    def __init__(self, size: int = 2**31):
        self.source = jnp.zeros(size // 4, jnp.float32)
        self.bytes = 2 * self.source.nbytes
        self.run = jax.jit(lambda x: x + 1)  # XLA would alias a copy

    def __call__(self, _: int) -> None:
        jax.block_until_ready(self.run(self.source))


def copy() -> Copy | DeviceCopy:
    """Of the memory in which attention is computed."""
    return DeviceCopy() if on_gpu() else Copy()
