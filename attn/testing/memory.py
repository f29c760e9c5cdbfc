"""Law 8: a mechanism holds the memory that it promises."""

import dataclasses
import math

import jax

from attn.masks import FULL, Causal
from attn.mechanism import Mechanism
from attn.testing.cases import inputs
from attn.testing.contract import BrokenLaw
from attn.testing.trying import error_of, holds_no_square, with_gradients

LENGTHS = (2048, 8192)  # tokens: memory is compared between them


def memory_is_linear(mechanism: Mechanism) -> None:
    """8. The traced forward and backward pass holds no T x S buffer, and compiled bytes (temporary
    + argument + output - alias) grow at most 2.3x per doubling of T, over two of them: blocks
    rounded up make one uneven. A variant that refuses so many tokens holds it trivially."""
    if not mechanism.linear_memory:
        return
    mask = Causal() if Causal in mechanism.honours else FULL
    small = {"batch": (1,), "N": 2, "K": 1, "H": 8, "D": 8}

    def traced(T):
        arrays = inputs(mechanism, T=T, S=T, **small)
        return jax.jit(lambda a: with_gradients(mechanism)(a, mask, None)), arrays

    run, arrays = traced(LENGTHS[-1])
    if _refused_for_a_field(mechanism, error_of(lambda: jax.eval_shape(run, arrays))):
        return
    holds_no_square(run, (arrays,), LENGTHS[-1], what="the program")
    sizes = []
    for T in LENGTHS:
        run, arrays = traced(T)
        m = run.lower(arrays).compile().memory_analysis()
        sizes.append(
            m.temp_size_in_bytes
            + m.argument_size_in_bytes
            + m.output_size_in_bytes
            - m.alias_size_in_bytes
        )
    growth = math.sqrt(sizes[1] / sizes[0])
    if growth > 2.3:
        first, last = LENGTHS
        what = f"bytes grow {growth:.2f}x per doubling of T from {first} to {last}"
        raise BrokenLaw(f"{what}, allowed 2.3: {sizes}")


def _refused_for_a_field(mechanism: Mechanism, error: Exception | None) -> bool:
    """Whether it is a ValueError that begins with the name of a field, as of `length`."""
    fields = tuple(f"{field.name}:" for field in dataclasses.fields(mechanism))
    return isinstance(error, ValueError) and str(error).startswith(fields)
