"""Token-by-token decoding of variants that keep the keys and values of all tokens."""

import functools

from attn import _cache
from attn._inputs import check_qkv, check_state
from attn._prompt import bias_of, check_prompt
from attn.masks import FULL, Causal
from attn.mechanism import Mechanism


class Cached(Mechanism):
    """A variant that decodes from a cache of max_length tokens: a step is one row of its
    `reference`."""

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        return _cache.empty(batch, num_kv_heads, head_dim, value_dim, max_length, dtype)

    def of_length(self, max_length: int) -> Mechanism:
        """The mechanism that processes a prompt, so that it equals the steps: itself, unless the
        steps depend on the length of the cache."""
        return self

    def prefill(self, q, k, v, *, max_length, bias=None, **learned):
        check_prompt(q, k, v, max_length)
        out = self.of_length(max_length)(q, k, v, mask=Causal(), bias=bias_of(bias, q), **learned)
        return _cache.fill(k, v, max_length), out

    def step(self, state, q, k, v, *, bias=None, **learned):
        check_state(state, _cache.Cache, q)
        check_qkv(q, k, v, FULL)
        attend = functools.partial(self.reference, **learned)
        return _cache.decode(state, attend, q, k, v, bias)
