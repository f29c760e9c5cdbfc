"""Memory that one step frees is kept for the next, not returned to the kernel in between."""

import contextlib
import ctypes
import os

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8  # mallopt(3), <malloc.h>
HEAP = 2**26  # bytes of a heap of a thread other than the first: glibc's HEAP_MAX_SIZE
SEVERAL = "--xla_force_host_platform_device_count"


def run_in_caller() -> None:
    """Makes JAX run the programs of a CPU in the thread that calls them, not in one of its own. If
    JAX has started, or is to have several CPU devices, all stays as it is: it does not read this
    setting again, and programs of several run in threads of its own in any case."""
    import jax

    devices = jax.config.jax_num_cpu_devices
    if devices > 1 or (devices < 0 and SEVERAL in os.environ.get("XLA_FLAGS", "")):
        return
    with contextlib.suppress(RuntimeError):
        # once it has started it refuses another number; of other settings it does not say so
        jax.config.update("jax_num_cpu_devices", devices + 2)
        jax.config.update("jax_num_cpu_devices", devices)
        jax.config.update("jax_cpu_enable_async_dispatch", False)


def keep_freed_memory() -> None:
    """Makes the C library keep what this process frees, for the rest of its life.

    XLA on a CPU allocates the temporaries of a step anew at each step. Those larger than 32 MB
    glibc takes from the kernel, which clears them page by page as they are touched, and gives back.
    A step of configs/pathfinder.py:small, with 104 MB of them, met 25,000 page faults, and 38 of
    its 82 ms of processor time went there. If the C library has no mallopt (macOS, musl), nothing
    changes.

    The first thread's heap may hold blocks of any size, another's `HEAP` bytes, given back when
    empty unless the padding is as large. Unless `run_in_caller` has JAX run programs in the first
    thread, others that ask for memory from now on share its heap. Each time one waits for another:
    with one heap a step of that configuration takes 1.25 times as long.
    """
    import jax

    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        if jax.config.read("jax_cpu_enable_async_dispatch"):
            mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(M_TOP_PAD, HEAP)
