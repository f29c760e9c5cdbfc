"""tokamax's attention kernels (Pallas Mosaic for GPU and TPU): `pip install attn-lab[kernels]`.

Written against tokamax 0.0.17, which needs Python 3.12 and jax 0.11.1. Its argument mapping is
tested with tokamax's XLA implementation in the kernels' place; it has not been run on a GPU or a
TPU yet. Which GPUs have a backward pass only tokamax knows: `jax.grad` may still raise.
"""

import dataclasses
import importlib.util

import jax
import jax.numpy as jnp

from attn.biases import ArrayBias
from attn.kernels.band import Band, split
from attn.kernels.call import Call
from attn.kernels.guard import guarded
from attn.kernels.plain import Blockwise
from attn.kernels.refuse import common_refusal, first_reason, scale_refusal
from attn.kernels.scale import positive_scale
from attn.masks import FULL
from attn.masks.language import spelled


@dataclasses.dataclass(frozen=True)
class Tokamax:
    """`through` names tokamax's own implementation, as tokamax's choice could fall back to one that
    holds T x S scores. Tests use "xla", which runs anywhere."""

    through: str = "mosaic"

    def refusal(self, call: Call) -> str | None:
        """Takes float32, bfloat16, float16; FULL, Causal, Window and Padding(lengths), joined by
        &."""
        kernels = self.through != "xla"
        return (
            first_reason(
                (
                    kernels and call.platform not in ("gpu", "tpu"),
                    f"platform: tokamax needs a GPU or TPU, this process runs on {call.platform}",
                ),
                (
                    importlib.util.find_spec("tokamax") is None,
                    "tokamax is not installed: pip install 'attn-lab[kernels]' on Python 3.12",
                ),
            )
            or common_refusal(call, "tokamax")
            or _option_refusal(call)
            or _mask_refusal(split(call.mask, call.q.shape[-3], call.k.shape[-3]))
            or self._own_refusal(call)
        )

    def _own_refusal(self, call):
        """What tokamax itself says when it traces the call."""
        arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (call.q, call.k, call.v)]
        trace = lambda q, k, v: self(dataclasses.replace(call, q=q, k=k, v=v))[0]
        try:
            jax.eval_shape(trace, *arrays)
        except NotImplementedError as error:
            return f"tokamax says: {error}"
        except ImportError as error:  # of what it needs itself, as xprof
            return f"tokamax cannot be imported: {error}; pip install 'attn-lab[kernels]'"
        return None

    def __call__(self, call: Call):
        return guarded(self._run, call), None

    def _run(self, call: Call, band: Band, q, k, v):
        if call.bias is None:
            return self._kernel(call, band, q, k, v)
        # -inf in a bias hides, NaN behind the mask is hidden: only blockwise promises either
        plain = lambda: Blockwise()(dataclasses.replace(call, q=q, k=k, v=v))[0]
        return jax.lax.cond(
            jnp.isfinite(call.bias.values).all(),
            lambda: self._kernel(call, band, q, k, v),
            jax.checkpoint(plain),  # else room is kept for what both branches remember
        )

    def _kernel(self, call: Call, band: Band, q, k, v):
        import tokamax

        q, scale = positive_scale(call, q)
        bounded = band.left is not None or band.right not in (None, 0)
        # a bound of T or S keys hides nothing
        window = (
            band.T if band.left is None else band.left,
            band.S if band.right is None else band.right,
        )
        return tokamax.dot_product_attention(
            q,
            k,
            v,
            None if call.bias is None else call.bias.values,
            scale=scale,
            is_causal=band.right == 0,
            local_window_size=window if bounded else None,
            key_value_seq_lengths=band.lengths(q.shape[0]),
            logits_soft_cap=call.logit_cap,
            implementation=self.through,
        )


def _option_refusal(call):
    known = call.q.dtype in (jnp.float32, jnp.bfloat16, jnp.float16)
    array = call.bias is None or isinstance(call.bias, ArrayBias)
    return first_reason(
        (not known, f"q: tokamax takes float32, bfloat16 and float16, got {call.q.dtype}"),
        (not array, f"bias: tokamax takes an array, not {type(call.bias).__name__}"),
        (
            call.bias is not None and call.logit_cap is not None,
            "logit_cap: tokamax caps scores after the bias is added, attn before",
        ),
        (
            call.return_lse,
            "return_lse (which sinks need): tokamax.dot_product_attention does not return it",
        ),
    ) or scale_refusal(call, "tokamax")


def _mask_refusal(band: Band):
    knows = "it knows Causal, Window and Padding(lengths), joined by &"
    return first_reason(
        (band.rest != FULL, f"mask: tokamax cannot honour {spelled(band.rest)}; {knows}"),
        (band.segments is not None, f"mask: tokamax cannot honour Segments; {knows}"),
        (
            band.has_holes,
            "mask: tokamax cannot honour Padding(keys=...), which may have holes; write "
            "Padding(lengths) if it has none",
        ),
        (
            not band.always_sees(),
            "mask: it may leave queries that see nothing (Causal of a negative offset, or Window "
            "with Padding(lengths) or T > S), whose gradient in tokamax is not known to be 0",
        ),
    )
