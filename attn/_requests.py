"""Checks of what a mechanism asks of its layer."""

import math

from attn._rotary import Rotary
from attn._settings import is_integer, is_number
from attn.mechanism import Mechanism
from attn.norms import HeadNorm

OUTPUT_GATES = ("silu", "sigmoid")  # functions of jax.nn


def wrong_requests(mechanism: Mechanism) -> list[str]:
    """A line for each of `short_conv`, `output_gate`, `head_norm`, `bonus` and `shifts` that is
    invalid."""
    taps, gate, bonus = mechanism.short_conv, mechanism.output_gate, mechanism.bonus
    norm, norms = mechanism.head_norm, "an attn.norms.HeadNorm, or None"
    number = is_number(bonus) and math.isfinite(bonus)
    gates = f"{' or '.join(map(repr, OUTPUT_GATES))}, or None"
    shifts, starts = mechanism.shifts, "initializers such as attn.gates.Fading(power=1.0)"
    starts += ", of 'shares' too" if mechanism.shift_rank else ""
    complete = not (shifts and mechanism.shift_rank) or "shares" in shifts
    rules = [
        (is_integer(taps) and taps >= 0, "short_conv", "a number of taps, 0 for none", taps),
        (gate in (None, *OUTPUT_GATES), "output_gate", gates, gate),
        (norm is None or isinstance(norm, HeadNorm), "head_norm", norms, norm),
        (bonus is None or number, "bonus", "a finite number, or None", bonus),
        (complete and all(map(callable, shifts.values())), "shifts", starts, shifts),
    ]
    return [f"{name}: expected {what}, got {x!r}" for right, name, what, x in rules if not right]


def turned_too_far(mechanism: Mechanism, turned: int) -> str:
    """What is wrong with `turned` rotated channels of a head's q and k, "" if nothing."""
    most = mechanism.turnable
    if most is None or turned <= most:
        return ""
    what = f"expected rotary.fraction to turn at most the first {most} channels of each head"
    return f"{what}, which {mechanism!r} keeps as they are, got {turned}"


def undone(mechanism: Mechanism, rotary: Rotary, xpos: bool) -> str:
    """Why the mechanism would undo the scales of rotated q and k, "" if it does not."""
    what = "xPos" if xpos else "" if rotary.temperature == 1 else rotary.scaling
    if not (mechanism.qk_norm and what):
        return ""
    return (
        f"{what} scales queries and keys, which {mechanism.name} with qk_norm=True undoes; set the "
        "layer's qk_norm instead, which comes first"
    )


def check_requests(mechanism: Mechanism) -> None:
    """Raise ValueError with all `wrong_requests`: for records where they are fields."""
    if wrong := wrong_requests(mechanism):
        raise ValueError("\n".join(wrong))
