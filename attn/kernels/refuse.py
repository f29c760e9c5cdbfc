"""What every outside kernel refuses, and how: with the argument's name and the reason."""

from attn._settings import is_number
from attn.kernels.call import Call


def first_reason(*checks: tuple[bool, str]) -> str | None:
    """The reason of the first check that holds, None if none does."""
    return next((reason for wrong, reason in checks if wrong), None)


def common_refusal(call: Call, name: str) -> str | None:
    """Why no outside kernel can run the call, or None."""
    sizes = (*call.q.shape, *call.k.shape, *call.v.shape)
    return first_reason(
        (0 in sizes, f"q, k, v: {name} needs every axis to be at least 1, got {_shapes(call)}"),
        (call.block is not None, f"block: {name} chooses its own blocks, got {call.block}"),
        (
            call.dropout is not None,
            f"dropout_rate: {name} cannot drop the same weights as every other implementation",
        ),
    )


def scale_refusal(call: Call, name: str) -> str | None:
    """Why a kernel that takes the scale as a constant cannot run the call, or None."""
    fixed = call.scale is None or is_number(call.scale)
    return None if fixed else f"scale: {name} takes one Python number, got an array"


def _shapes(call):
    return ", ".join(str(list(x.shape)) for x in (call.q, call.k, call.v))
