"""JAX's splash attention (Pallas, TPU): any static mask, whose empty blocks it never visits.

Run in the Pallas interpreter on the CPU, forward and gradients; it has not been run on a TPU yet,
and its block sizes are not tuned there. Lengths are padded to a multiple of 128. It takes no scale:
in bfloat16 one that is not a power of two doubles the width of q and k (`_scaled`).
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from attn._axes import aligned, conjunction
from attn._core import scaled
from attn._settings import is_number
from attn._varying import varying
from attn.kernels.band import Band, split
from attn.kernels.call import Call
from attn.kernels.guard import guarded
from attn.kernels.refuse import common_refusal, first_reason
from attn.masks import FULL, Mask
from attn.masks.language import spelled

LANES = 128
BLOCKS = (512, 256, 128)


@dataclasses.dataclass(frozen=True)
class Splash:
    """`interpret` runs the kernels in the Pallas interpreter, on any platform and slowly."""

    interpret: bool = False

    def refusal(self, call: Call) -> str | None:
        """Takes float32, bfloat16; any static mask with Padding(lengths); Segments and
        Padding(keys=...) with Causal and Window alone."""
        wrong = not self.interpret and call.platform != "tpu"
        return (
            first_reason(
                (wrong, f"platform: splash needs a TPU, this process runs on {call.platform}")
            )
            or common_refusal(call, "splash")
            or _option_refusal(call)
            or _mask_refusal(split(call.mask, call.q.shape[-3], call.k.shape[-3]))
        )

    def __call__(self, call: Call):
        return guarded(self._run, call, _rows), None

    def _run(self, call: Call, band: Band, q, k, v):
        from jax.experimental.pallas.ops.tpu import splash_attention as splash

        from attn.kernels import splash_mask

        N = call.q.shape[-2]
        q, k = _scaled(q, k, call.scale)
        q, k, v = (_padded(jnp.moveaxis(x, -2, -3), -2) for x in (q, k, v))  # [B, heads, length, H]
        more_T, more_S = q.shape[-2], k.shape[-2]
        mask = splash_mask.build(band, more_T, more_S)
        block_q, block_k = _block(more_T), _block(more_S)
        kernel = splash.make_splash_mha_single_device(
            splash.MultiHeadMask([mask] * N),
            block_sizes=splash.BlockSizes(
                block_q=block_q,
                block_kv=block_k,
                block_q_dkv=block_q,
                block_kv_dkv=block_k,
                block_q_dq=block_q,
                block_kv_dq=block_k,
            ),
            attn_logits_soft_cap=call.logit_cap,
            interpret=self.interpret,
        )
        ids = _ids(band, q.shape[0])
        if ids is not None:
            ids = splash.SegmentIds(*ids)
        out = jax.vmap(kernel)(q, k, v, ids)
        return jnp.moveaxis(out, -2, -3)[:, : band.T]


def _scaled(q, k, scale):
    """(q, k) whose product is scaled. With q times the scale rounded to bfloat16, rows were off by
    2.8 eps at logits of 8: the rounding error is put beside q, against a second copy of k."""
    wide = scaled(q, scale)
    near = wide.astype(q.dtype)
    fixed = scale is None or is_number(scale)
    number = q.shape[-1] ** -0.5 if scale is None else scale
    if q.dtype == wide.dtype or (fixed and abs(math.frexp(number)[0]) in (0, 0.5)):
        return near, k
    rest = (wide - near.astype(wide.dtype)).astype(q.dtype)
    return jnp.concatenate([near, rest], -1), jnp.concatenate([k, k], -1)


def _padded(x, axis, fill=0):
    pad = [(0, 0)] * x.ndim
    pad[axis] = (0, -x.shape[axis] % LANES)
    return jnp.pad(x, pad, constant_values=fill)


def _block(length):
    return next(block for block in BLOCKS if length % block == 0)


def _ids(band: Band, B: int) -> tuple[Int[Array, "B T"], Int[Array, "B S"]] | None:
    """Segment ids of queries and keys that also hide padding; None if nothing is hidden."""
    T, S = band.T, band.S
    if band.segments is None:
        queries, keys = jnp.zeros((1, T), jnp.int32), jnp.zeros((1, S), jnp.int32)
    else:
        queries, keys = band.segments.ids
        batch = jnp.broadcast_shapes(queries.shape[:1], keys.shape[:1])
        queries, keys = (jnp.broadcast_to(x, (*batch, x.shape[1])) for x in (queries, keys))
        queries, keys = jax.vmap(_ranks)(queries, keys)
    if band.padding is not None:
        keys = jnp.where(*aligned(band.padding.seen_keys(S), keys), -1)
    elif band.segments is None and S % LANES == 0:
        return None
    queries, keys = _padded(queries, -1), _padded(keys, -1, -1)
    return tuple(jnp.broadcast_to(x, (B, x.shape[1])) for x in (queries, keys))


def _ranks(queries, keys):
    """Ids, of any integers, as small numbers; -1 for keys whose id no query has."""
    known = jnp.sort(queries)
    at = jnp.searchsorted(known, keys).astype(jnp.int32)
    found = known[jnp.minimum(at, len(known) - 1)] == keys
    return jnp.searchsorted(known, queries).astype(jnp.int32), jnp.where(found, at, -1)


def _rows(band: Band):
    """`Band.rows`, also for any static mask with lengths."""
    if band.rest == FULL:
        return band.rows()
    first, reached = seen_first(band.others, band.T, band.S)
    keys = jnp.ones(band.S, bool) if band.padding is None else band.padding.seen_keys(band.S)
    past = keys.sum(-1, keepdims=True)  # lengths: the real keys are the first ones
    queries = jnp.less(*aligned(jnp.asarray(first), past))
    if band.padding is not None:
        queries = conjunction(queries, band.padding.seen_queries(band.T))
    return queries, conjunction(keys, reached)


@functools.lru_cache(maxsize=32)
def seen_first(mask: Mask, T: int, S: int) -> tuple[Int[np.ndarray, " T"], Bool[np.ndarray, " S"]]:
    """The first key that each query sees under a static mask (S if none); and which keys are seen
    by any. O(T S) once, in rows of blocks."""
    first, reached = np.full(T, S), np.zeros(S, bool)
    for start in range(0, T, 256):
        i = np.arange(start, min(start + 256, T))
        seen = mask.at(i[:, None], np.arange(S)[None, :])
        first[i] = np.where(seen.any(1), seen.argmax(1), S)
        reached |= seen.any(0)
    return first, reached


def _option_refusal(call):
    known = call.q.dtype in (jnp.float32, jnp.bfloat16)
    return first_reason(
        (not known, f"q: splash takes float32 and bfloat16, got {call.q.dtype}"),
        (call.bias is not None, "bias: splash adds none to its scores"),
        (
            call.return_lse,
            "return_lse (which sinks need): splash returns it without a gradient",
        ),
        (
            any(map(varying, (call.q, call.k, call.v))),
            "q, k, v: splash says not over which mesh axes its output varies; give jax.shard_map "
            "check_vma=False",
        ),
    )


def _mask_refusal(band: Band):
    return first_reason(
        (
            not band.rest.static,
            f"mask: splash knows the arrays of Padding and Segments joined by &, not of "
            f"{spelled(band.rest)}",
        ),
        (
            band.rest != FULL and (band.segments is not None or band.has_holes),
            f"mask: splash cannot tell which queries see nothing where {spelled(band.rest)} meets "
            "Segments or Padding(keys=...)",
        ),
    )
