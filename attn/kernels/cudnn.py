"""cuDNN's flash attention through `jax.nn.dot_product_attention`: O(T + S) memory on NVIDIA GPUs.

Its argument mapping is tested with `jax.nn`'s XLA implementation in its place. On an H200 it was
within the contract, causal and in a window, at 8,192 tokens in bfloat16. Its limits are read from
jax 0.10.2 and from cudnn-frontend, and are kept narrower where those are in doubt.
Its backward pass adds up dq in no fixed order, so training repeats bit for bit only with
`XLA_FLAGS=--xla_gpu_deterministic_ops=true`.
"""

import dataclasses

import jax
import jax.numpy as jnp

from attn._platform import device
from attn.kernels.band import Band, split
from attn.kernels.call import Call
from attn.kernels.guard import guarded
from attn.kernels.refuse import common_refusal, first_reason, scale_refusal
from attn.kernels.scale import positive_scale
from attn.masks import FULL
from attn.masks.language import spelled


@dataclasses.dataclass(frozen=True)
class Cudnn:
    """`through` is the implementation asked of `jax.nn`: tests use "xla", which runs anywhere."""

    through: str = "cudnn"

    def refusal(self, call: Call) -> str | None:
        """Takes float16, bfloat16; FULL, Causal(), Window(left, 0) and Padding(lengths), joined by
        &, but not the last two together."""
        return (
            self._device_refusal(call)
            or common_refusal(call, "cudnn")
            or _option_refusal(call)
            or _mask_refusal(split(call.mask, call.q.shape[-3], call.k.shape[-3]))
        )

    def _device_refusal(self, call):
        if self.through != "cudnn":
            return None
        if call.platform != "gpu":
            return f"platform: cudnn needs a GPU, this process runs on {call.platform}"
        capability, narrow = compute_capability(), (jnp.bfloat16, jnp.float16)
        width, most = padded_width(call), 256 if capability >= (9, 0) else 128
        return first_reason(
            (
                capability < (8, 0),
                f"platform: cudnn needs an NVIDIA GPU of compute capability 8.0, got {capability}",
            ),
            (
                call.q.dtype not in narrow,
                f"q: cudnn takes bfloat16 and float16, got {call.q.dtype}; cast q, k and v",
            ),
            (width > most, f"q, v: cudnn takes head widths up to {most} here, got {width}"),
        )

    def __call__(self, call: Call):
        return guarded(self._run, call), None

    def _run(self, call: Call, band: Band, q, k, v):
        q, scale = positive_scale(call, q)
        # columns of 0 change no score and are cut from the output; odd lengths have no gradient
        wider = [padded_width(call) - x.shape[-1] for x in (q, k, v)]
        q, k, v = (
            jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, more)))
            for x, more in zip((q, k, v), wider)
        )
        lengths = band.lengths(len(q))
        out_of_sight = band.right == 0 and band.T <= band.S
        if lengths is None and band.S % 2 and not out_of_sight:
            lengths = jnp.full(len(q), band.S, jnp.int32)
        out = jax.nn.dot_product_attention(
            q,
            k,
            v,
            scale=scale,
            is_causal=band.right == 0,
            local_window_size=None if band.left is None else (band.left, 0),
            key_value_seq_lengths=lengths,
            implementation=self.through,
        )
        return out[:, : band.T, :, : call.v.shape[-1]]


def padded_width(call: Call) -> int:
    """`jax.nn` wants one width for q, k and v, and cuDNN a multiple of 8."""
    return -(-max(call.q.shape[-1], call.v.shape[-1]) // 8) * 8


def compute_capability() -> tuple[int, ...]:
    """The capability of the device that calls run on, (0,) if it is not from NVIDIA."""
    found = getattr(device(), "compute_capability", "")
    parts = str(found).split(".")
    return tuple(map(int, parts)) if all(p.isdigit() for p in parts) else (0,)


def _option_refusal(call):
    return first_reason(
        (
            call.bias is not None,
            "bias: cudnn reads a T x S array in q's 16 bits, and biases are kept in float32",
        ),
        (call.logit_cap is not None, "logit_cap: jax.nn has no such argument for cudnn"),
        (
            call.return_lse,
            "return_lse (which sinks need): jax.nn rounds cudnn's to q's 16 bits and gives it no "
            "gradient",
        ),
    ) or scale_refusal(call, "cudnn")


def _mask_refusal(band: Band):
    knows = "it knows Causal(), Window(left, 0) and Padding(lengths), joined by &"
    return first_reason(
        (band.rest != FULL, f"mask: cudnn cannot honour {spelled(band.rest)}; {knows}"),
        (
            band.segments is not None,
            "mask: cudnn cannot honour Segments through jax.nn, which has no argument for them",
        ),
        (
            band.has_holes,
            "mask: cudnn cannot honour Padding(keys=...), which may have holes; write "
            "Padding(lengths) if it has none",
        ),
        (
            band.right not in (None, 0),
            f"mask: cudnn sees up to the query itself or all, not {band.right} keys further; "
            f"{knows}",
        ),
        (
            band.left is not None and band.right is None,
            f"mask: cudnn's windows end at the query itself; {knows}",
        ),
        (
            band.left is not None and (band.has_lengths or band.T > band.S),
            "mask: cudnn's Window is only used without Padding(lengths) and for T <= S",
        ),
        (
            not band.always_sees(),
            "mask: it leaves queries that see nothing, whose gradient in cudnn is in doubt",
        ),
    )
