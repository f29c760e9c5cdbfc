"""The checks of what an attention layer is built of and called with."""

import jax.numpy as jnp

from attn._requests import check_requests, undone
from attn._settings import check_count, check_flag
from attn.masks import Causal, Mask
from attn.mechanism import Mechanism
from attn.positions import Rotary


def check_kinds(mechanism: Mechanism, rotary: Rotary, **flags: bool) -> None:
    """Raise TypeError for what is not a mechanism, a rotary or a flag."""
    if not isinstance(mechanism, Mechanism):
        what = "a Mechanism such as attn.Softmax()"
        raise TypeError(f"mechanism: expected {what}, got {mechanism!r}")
    if not isinstance(rotary, Rotary):
        raise TypeError(f"rotary: expected an attn.positions.Rotary, got {rotary!r}")
    for name, flag in flags.items():
        check_flag(name, flag)


def heads_of(
    mechanism: Mechanism,
    *,
    width: int,
    num_heads: int,
    num_kv_heads: int | None,
    head_dim: int | None,
    max_length: int,
    rotary: Rotary,
    xpos: bool,
) -> tuple[int, int, int]:
    """The numbers of query heads and key heads, and their width. Raises ValueError for sizes that
    do not fit together or the mechanism, and for requests by it that no layer can meet."""
    counts = {"width": width, "num_heads": num_heads, "max_length": max_length}
    for name, size in counts.items():
        check_count(name, size)
    N, K = num_heads, num_heads if num_kv_heads is None else num_kv_heads
    check_count("num_kv_heads", K)
    if head_dim is None and width % N:
        raise ValueError(f"num_heads: expected a divisor of width {width}, got {N}")
    if N % K:
        raise ValueError(f"num_kv_heads: expected a divisor of num_heads {N}, got {K}")
    check_requests(mechanism)
    if mechanism.shared_qk and K != N:
        raise ValueError(f"num_kv_heads: expected {N} with shared_qk, got {K}")
    if xpos and mechanism.shared_qk:
        raise ValueError("xpos: expected False with shared_qk, for it scales q and k apart")
    if wrong := undone(mechanism, rotary, xpos):
        raise ValueError(f"{'xpos' if xpos else 'rotary'}: {wrong}")
    H = width // N if head_dim is None else head_dim
    check_count("head_dim", H)
    if H % mechanism.parts:
        raise ValueError(
            f"head_dim: expected a multiple of {mechanism.parts} for {mechanism.name}, got {H}"
        )
    if mechanism.short_conv and mechanism.blending(num_kv_heads=K, head_dim=H) is not None:
        what = f"expected 0 with {mechanism.name}'s blending"
        raise ValueError(f"short_conv: {what}, got {mechanism.short_conv}")
    return N, K, H


def check_learned(mechanism: Mechanism, learned: dict) -> None:
    """Raise ValueError for a learned array that cannot be learned, or holds nothing."""
    for name, x in learned.items():
        dtype, shape = jnp.result_type(x), list(jnp.shape(x))
        if not jnp.issubdtype(dtype, jnp.floating) or 0 in shape:
            what = "expected an array of real numbers, and some of them"
            raise ValueError(f"{mechanism.name}: init: {name}: {what}, got {dtype} {shape}")


def check_output(mechanism: Mechanism, y, shape: tuple[int, ...], dtype) -> None:
    """Raise ValueError for another output than a mechanism is to give: one of fewer rows would
    broadcast, and one of whole numbers send no gradient back."""
    got = getattr(y, "dtype", type(y).__name__), getattr(y, "shape", ())
    if got != (dtype, shape):
        told = lambda dtype, shape: f"{dtype} {list(shape)}"
        what = f"expected an output [*B, T, N, D] in q's dtype, {told(dtype, shape)}"
        raise ValueError(f"{mechanism.name}: {what}, got {told(*got)}")


def check_names(mechanism: Mechanism, learned: dict, gates: dict) -> None:
    """Raise ValueError for a learned array with a gate's name, and for a shift of a projection that
    the layer does not have."""
    if both := sorted(learned.keys() & gates.keys()):
        raise ValueError(f"{mechanism.name}: init and gates both name {', '.join(both)}")
    known = {"q", "v", *gates}
    known |= set() if mechanism.shared_qk else {"k"}
    known |= set() if mechanism.output_gate is None else {"output_gate"}
    known |= {"shares"} if mechanism.shift_rank else set()
    if unknown := sorted(mechanism.shifts.keys() - known):
        raise ValueError(
            f"shifts: expected names out of {', '.join(sorted(known))} from {mechanism.name}, "
            f"got {', '.join(unknown)}"
        )


def check_context(mechanism: Mechanism, *, positions, gates: dict) -> None:
    """Raise ValueError for anything that needs q and k to come from one sequence."""
    name = mechanism.name
    if positions is not None:
        raise ValueError("positions: two sequences share none to rotate by; leave them out")
    if gates:
        raise ValueError(
            f"context: {name} gates each key by its own token, and its "
            f"gates ({', '.join(gates)}) are projected from x; leave context out"
        )
    if mechanism.short_conv:
        raise ValueError(
            f"context: {name} convolves x over time, and a context is another sequence; leave "
            "it out, or set short_conv=0"
        )
    if mechanism.bonus is not None:
        raise ValueError(
            f"context: {name} adds a token's own value, and a context is another sequence; leave "
            "it out, or set bonus=None"
        )
    if mechanism.shifts:
        raise ValueError(
            f"context: {name} mixes each token with the one before, and a context is another "
            "sequence; leave it out, or set token_shift=False"
        )


def check_batch(x, *past) -> None:
    """Raise ValueError for a token of another batch than the tokens kept in a state, which would
    otherwise broadcast."""
    for before in past:
        if before is not None and before.shape[:-2] != x.shape[:-2]:
            want, got = [*before.shape[:-2], 1, x.shape[-1]], list(x.shape)
            raise ValueError(f"x: expected {want} to go with state, got {got}")


def check_causal(mask: Mask) -> None:
    """Raise ValueError unless the mask is joined with `Causal`."""
    if isinstance(mask, Mask) and mask.take(Causal)[0] == (None,):
        raise ValueError(
            "mask: expected one joined by & with Causal() for xPos, whose scores grow with the "
            f"distance to later keys, got {mask}"
        )
