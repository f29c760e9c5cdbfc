"""Compiler options for what runs once: XLA takes longer to compile it well than to run it."""

import functools
from typing import Any

import jax


def quick_options() -> dict[str, Any]:
    """Few optimisations; results may differ in their last bits. None on a GPU: with few, XLA of jax
    0.11.2 drew a mask wrong on an H200 (benchmarks/nvidia-h200)."""
    if jax.default_backend() != "cpu":
        return {}
    return {"xla_backend_optimization_level": 0, **older_generator()}


@functools.cache
def older_generator() -> dict[str, Any]:
    """The option that asks for XLA's older code generator for CPUs, which compiles three times as
    fast; none where XLA has no such option any more, as with jax 0.11."""
    asked = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda x: x).lower(0.0).compile(compiler_options=asked)
    except jax.errors.JaxRuntimeError:
        return {}
    return asked
