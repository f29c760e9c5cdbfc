"""Memory that one step frees is the next step's, and not the kernel's in between."""

import contextlib
import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # mallopt(3), <malloc.h>


def keep_freed_memory() -> None:
    """Has the C library keep what this process frees, for the rest of its life.

    XLA on a CPU allocates the temporaries of a step anew at each step. What is larger than 32 MB
    glibc then asks of the kernel, which clears it page by page as it is touched, and gives back. A
    step with 46 MB of them met 11,000 page faults, and a quarter of its time went there. Where the
    C library has no mallopt (macOS, musl) nothing changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
