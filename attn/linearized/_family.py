"""Linearized: the base of a family of variants, feature maps and gates on one recurrence.

Each head has a state S [M, D]; token t updates and reads it by its `Terms`:

    S' = exp(log_decay_t) S_{t-1}                the state decays before it is written
    S_t = S' + k_t (v_t - erase_t . S')^T        v_t alone where there is nothing to erase
    o_t = q_t . S_t                              or q_t . S_{t-1}, if it `reads_before`

plus own_t v_t, if it `adds_own` (`Mechanism.own`). A normalised variant divides by the same
recurrence on values of 1, or by its `floor`. With `remove`, a second key,
S_t = S' - remove_t (erase_t . S_{t-1})^T + k_t v_t^T.
"""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attn._arrays import GROWS, check_arrays, learned_shapes
from attn._core import apply_weights, seen_array
from attn._explicit import auto_inside
from attn._inputs import check_qkv, check_tokens, refuse_rest
from attn._prompt import as_tokens
from attn._requests import check_requests
from attn._settings import check_count, check_flags, check_room_for
from attn._wide import float_dtype, wide
from attn.linearized import _attend, _dense, _work
from attn.linearized._terms import Sizes, State, Terms, empty_state, sizes
from attn.masks import FULL, Causal, Padding, Segments
from attn.mechanism import Mechanism
from attn.norms import HeadNorm


def fixed(log_decay: Float[np.ndarray, "N"], k: Float[Array, "*L K H"]) -> Float[Array, "*L N 1"]:
    """A decay for each query head, the same for every token."""
    decay = jnp.asarray(log_decay[:, None], k.dtype)
    return jnp.broadcast_to(decay, (*k.shape[:-2], *decay.shape))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linearized(Mechanism):
    """A variant defines its `terms`, whether it is normalised, and whether it reads before it
    writes; all else is here. O(T) time and memory, forward and backward; a decoding state of
    constant size. `chunk`, rounded up to a power of two, changes only the speed; None takes the
    fastest by `_work`."""

    honours: ClassVar = (Causal, Padding, Segments)
    normalised: ClassVar[bool] = False
    # of keys without log-weights, what a normaliser is at least; 0: only one of 0 is replaced, by 1
    floor: ClassVar[float] = 0.0
    reads_before: ClassVar[bool] = False
    adds_own: ClassVar[bool] = False
    squares: ClassVar[bool] = False  # features may overflow where q and k do not
    # whether a layer normalises the output, a field of the variants that do, and by which norm
    output_norm: ClassVar[bool] = False
    published_norm: ClassVar[HeadNorm] = HeadNorm()
    chunk: int | None = None

    def __post_init__(self):
        if self.chunk is not None:
            check_count("chunk", self.chunk)
        check_flags(self)
        check_requests(self)

    @property
    def head_norm(self) -> HeadNorm | None:
        return self.published_norm if self.output_norm else None

    @abc.abstractmethod
    def terms(self, q: Float[Array, "*L N H"], k: Float[Array, "*S K H"], **arrays: Array) -> Terms:
        """The terms of each token, from that token alone; `arrays` are learned arrays and gates."""

    @auto_inside
    def __call__(self, q, k, v, *, mask=FULL, bias=None, **arrays) -> Array:
        mask, gates, learned = self._checked(q, k, v, mask, bias, arrays)
        causal, padding, segments = mask.take(*self.honours)[0]
        terms = {"causal": causal, "padding": padding, "segments": segments}
        return _attend.attend(self, q, k, v, gates, learned, **terms)

    def reference(self, q, k, v, *, mask=FULL, bias=None, **arrays):
        bound, _ = check_qkv(q, k, v, mask)
        w = self.weights(q, k, mask=mask, bias=bias, **arrays)
        seen = seen_array(bound, q.shape[-3], k.shape[-3])
        return apply_weights(w, wide(v), seen)

    def weights(self, q, k, *, mask=FULL, bias=None, **arrays):
        mask, gates, learned = self._checked(q, k, k, mask, bias, arrays)
        return _dense.weights(self, q, k, gates, learned, mask)

    def loop(self, q, k, v, **arrays) -> Float[Array, "*B T N D"]:
        """A second definition, token by token: what `mask=Causal()` must equal."""
        gates, learned = self._checked_tokens(q, k, v, arrays)
        return _dense.loop(self, q, k, v, gates, learned)

    def _checked(self, q, k, v, mask, bias, arrays):
        """The bound mask, the gates and the learned arrays."""
        mask, bias = check_qkv(q, k, v, mask, bias)
        refuse_rest(self.name, mask.take(*self.honours)[1], bias, self.honours)
        if Causal in self.requires and mask.take(Causal)[0][0] is None:
            raise NotImplementedError(
                f"mask: {self.name} is defined with Causal alone: what a token writes depends on "
                "those before it. Use mask=Causal(), or gla, which has a bidirectional form"
            )
        (*batch, _, N, H), (S, K) = q.shape, k.shape[-3:-1]
        shapes = self.gate_shapes(num_heads=N, num_kv_heads=K, head_dim=H)
        sizes = {"num_heads": N, "num_kv_heads": K, "head_dim": H, "value_dim": v.shape[-1]}
        wanted = {name: (*batch, S, *shape) for name, shape in shapes.items()}
        wanted |= learned_shapes(self, **sizes)
        check_arrays(self.name, arrays, wanted, self._optional(H))
        arrays = {name: x.astype(wide(q).dtype) for name, x in arrays.items()}
        gates = {name: arrays[name] for name in shapes}
        learned = {name: x for name, x in arrays.items() if name not in shapes}
        return mask, gates, learned

    def _checked_tokens(self, q, k, v, arrays):
        """The gates and learned arrays, for as many keys as queries."""
        _, gates, learned = self._checked(q, k, v, Causal(), None, arrays)
        check_tokens(q, k)
        return gates, learned

    def _optional(self, head_dim: int) -> dict[str, tuple[int, ...]]:
        """Shapes of optional arrays."""
        return {}

    def flops(self, T, S, N, K, H, D):
        size, mapped = self._sizes(N, K, H, D), self.map_flops(H)
        if not size.ordered:
            return _work.unordered(size, T, S, N, K, D, self.normalised, mapped)
        once = lambda length: (
            mapped * length * (N + K)
            + _work.in_order(size, length, N, D, self.chunk, self.normalised)
        )
        # without Causal it also runs in reverse, where queries end beside the last key
        causal = self.normalised or Causal in self.requires
        return once(max(T, S)) + (0 if causal else once(S))

    def map_flops(self, head_dim: int) -> int:
        """Operations of the products that make the features of one query or key."""
        return 0

    def _sizes(self, N, K, H, D) -> Sizes:
        heads = {"num_heads": N, "num_kv_heads": K, "head_dim": H}
        of = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
        learned = learned_shapes(self, **heads, value_dim=D)
        # what grows with max_length does not change a state
        whole = lambda shape: (1 if size == GROWS else size for size in shape)
        arrays = {name: of(*whole(shape)) for name, shape in learned.items()}
        arrays |= {name: of(1, *shape) for name, shape in self.gate_shapes(**heads).items()}
        return sizes(self, of(1, N, H), of(1, K, H), arrays)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ) -> State:
        sizes = {"num_kv_heads": num_kv_heads, "head_dim": head_dim, "value_dim": value_dim}
        check_room_for(batch, max_length, num_heads=num_heads, **sizes)
        size = self._sizes(num_heads, num_kv_heads, head_dim, value_dim)
        return empty_state(tuple(batch), size, value_dim, float_dtype(dtype))

    def step(self, state, q, k, v, **arrays) -> tuple[State, Any]:
        """Decode the next tokens: `q`, `k`, `v` and gates may hold any number of them."""
        gates, learned = self._checked_tokens(q, k, v, arrays)
        return _attend.follow(self, state, q, k, v, gates, learned)

    def prefill(self, q, k, v, *, max_length, **arrays) -> tuple[Any, Float[Array, "..."]]:
        return as_tokens(self, q, k, v, max_length, **arrays)
