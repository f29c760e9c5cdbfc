"""The two implementations in plain JAX: they run anywhere and take every mask and bias."""

import functools

import jax
import jax.numpy as jnp

from attn._blockwise import blockwise
from attn._core import attend_materialized, check_scale, dense_scores, isolate_rows, number_of
from attn.kernels.call import Call


class Materialized:
    """Holds the T x S scores: O(T S) memory; derivatives of any kind and order, by JAX. A NaN shows
    in the outputs of queries that see it, and in gradients as far as the loss sends a NaN back."""

    def refusal(self, call: Call) -> str | None:
        """It honours everything but `block`."""
        blocks = f"block: materialized holds all scores, in no blocks, got {call.block}"
        return None if call.block is None else blocks

    def __call__(self, call: Call):
        N, H = call.q.shape[-2:]
        scale, number = call.scale, number_of(call.scale, H)
        if number is None:
            check_scale(scale, N)
        else:
            scale = None  # compiled in, not an input
        settings = number, call.logit_cap, call.return_lse
        return _attend(settings, call.q, call.k, call.v, call.mask, call.bias, scale, call.dropout)


@functools.partial(jax.jit, static_argnums=0)  # for calls outside of jit
def _attend(settings, q, k, v, mask, bias, scale, dropout):
    number, logit_cap, return_lse = settings
    s, seen = dense_scores(q, k, mask, bias, scale if number is None else number, logit_cap)
    out = attend_materialized(s, seen, v, dropout=dropout)
    lse = _log_sum_exp(s, seen) if return_lse else None
    return out.astype(jnp.result_type(q)), lse


def _log_sum_exp(s, seen):
    """[*B, T, N]; rows of -inf or NaN are set apart, as 0 times their gradient of NaN is NaN."""
    s, poison = isolate_rows(s, seen)
    empty = ~(seen & (s != -jnp.inf)).any(-1)
    hidden = jnp.where(empty[..., None], 0, jnp.where(seen, s, -jnp.inf))
    lse = jnp.where(empty, -jnp.inf, jax.nn.logsumexp(hidden, -1)) + poison[..., 0]
    return jnp.moveaxis(lse, -2, -1)


class Blockwise:
    """Visits blocks: O(T + S) memory (`attn/_blockwise.py`); first derivatives, reverse mode."""

    def refusal(self, call: Call) -> None:
        """It honours everything."""

    def __call__(self, call: Call):
        return blockwise(
            call.q,
            call.k,
            call.v,
            call.mask,
            call.bias,
            scale=call.scale,
            logit_cap=call.logit_cap,
            block=call.block,
            dropout=call.dropout,
        )
