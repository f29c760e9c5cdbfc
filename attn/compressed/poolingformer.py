"""Poolingformer (Zhang et al. 2021, arXiv:2105.04371): a window, then pools of its output, O(T)."""

import dataclasses
import functools
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn import _cache
from attn._axes import conjunction
from attn._blockwise import blockwise
from attn._core import dense_attention, isolate, seen_array
from attn._explicit import auto_inside
from attn._forms import visited_scores
from attn._inputs import check_qkv, check_state, refuse_rest
from attn._prompt import check_prompt
from attn._settings import check_choice, check_count, check_room_for
from attn._tokens import seen_tokens
from attn._wide import wide, wide_dtype
from attn.compressed._runs import Within, pool_runs, runs
from attn.masks import FULL, Causal, Mask, Padding, Window
from attn.mechanism import Mechanism

HONOURS = (Causal, Padding)
POOLS = ("dynamic", "mean", "max")


def poolingformer_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    query_projection: Float[Array, "N D H"],
    key_projection: Float[Array, "N D H"],
    value_projection: Float[Array, "N D D"],
    key_pool: Float[Array, "N H kernel"] | None = None,
    value_pool: Float[Array, "N D kernel"] | None = None,
    mask: Mask = FULL,
    bias=None,
    window: int = 128,
    pool_window: int = 512,
    kernel: int = 5,
    stride: int = 4,
    pool: Literal["dynamic", "mean", "max"] = "dynamic",
) -> Float[Array, "*B T N D"]:
    """y + z: y = softmax(q k^T / sqrt(H)) v over keys at most `window` away, and
    z = softmax(y Q pool(y K)^T / sqrt(H)) pool(y V), with Q, K, V the projections of each head.

    A pool covers `kernel` tokens, one starts every `stride`, and a query sees those that lie
    entirely within `pool_window` of it and, under `Causal`, end no later than it. "mean" and "max"
    are those of a pool's tokens; "dynamic" is the paper's lightweight dynamic convolution,
    sum_c d_c x_c with d = softmax(x_m P), m the middle token and P the head's `key_pool` or
    `value_pool`.

    Query i is token i, and pools are of the first level's outputs, so of queries: a key past the
    last query is in none. Nor is a query that sees nothing in the first level or, if T = S, one
    whose own key is padded; d is over the other tokens of a pool. An offset of `Causal` moves the
    edge of the first level alone. Each head projects its own y: the paper's second level mixes all
    heads, which a layer does only before and after. O(T (window + pool_window / stride)) time, O(T)
    memory. Honours `Causal` and `Padding` joined by `&`, else NotImplementedError. Raises
    ValueError for settings and arrays that do not fit, TypeError for a pool's arrays without it.
    """
    arrays = {"query_projection": query_projection, "key_projection": key_projection}
    arrays |= {"value_projection": value_projection, "key_pool": key_pool, "value_pool": value_pool}
    arrays = {name: x for name, x in arrays.items() if x is not None}
    windows = {"window": window, "pool_window": pool_window}
    record = Poolingformer(**windows, kernel=kernel, stride=stride, pool=pool)
    return record(q, k, v, mask=mask, bias=bias, **arrays)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TwoLevels:
    """The last keys and values of the first level, and all those of the second, unpooled."""

    near: _cache.Cache
    far: _cache.Cache  # float32 or wider


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poolingformer(Mechanism):
    """Softmax over a window, whose outputs are projected, pooled and attended to in a larger one
    (Poolingformer, Zhang et al. 2021, built from summaries of the paper); the two are added.

    Decodes with the window's keys and all projected ones; a step reads and pools all of the latter.
    """

    honours: ClassVar = HONOURS
    # the paper's window sizes, taken for the reach on each side; kernel and stride, and what d is
    # made of, could not be checked against its text, and its authors have no code
    window: int = 128
    pool_window: int = 512
    kernel: int = 5
    stride: int = 4
    pool: Literal["dynamic", "mean", "max"] = "dynamic"

    def __post_init__(self):
        for name in ("window", "pool_window", "kernel", "stride"):
            check_count(name, getattr(self, name), least=int(name in ("kernel", "stride")))
        if self.kernel < self.stride:
            raise ValueError(
                f"kernel: expected at least stride={self.stride}, or tokens between two pools are "
                f"in none, got {self.kernel}"
            )
        check_choice("pool", self.pool, POOLS)

    @auto_inside
    def __call__(self, q, k, v, *, mask=FULL, bias=None, **learned) -> Array:
        return self._levels(_by_blocks, q, k, v, mask, bias, learned)[0].astype(jnp.result_type(q))

    def reference(self, q, k, v, *, mask=FULL, bias=None, **learned):
        return self._levels(_drawn, q, k, v, mask, bias, learned)[0]

    def _levels(self, attend, q, k, v, mask, bias, learned):
        """The output, and the second level's keys and values of each token, before pooling."""
        self.check_learned(q, k, v, **learned)
        mask, bias = check_qkv(q, k, v, mask, bias)
        (causal, padding), rest = mask.take(*HONOURS)
        refuse_rest("poolingformer", rest, bias, HONOURS)
        (*batch, T, N, H), (S, D) = q.shape, (v.shape[-3], v.shape[-1])
        if 0 in (*batch, T, S, D):
            zeros = lambda width: jnp.zeros((*batch, T, N, width), wide_dtype(q.dtype))
            return zeros(D), zeros(H), zeros(D)
        y, live = attend(*map(wide, (q, k, v)), mask & Window(self.window, self.window))
        _, seen = seen_tokens(padding, tuple(batch), T, S)
        q, k, v = _projected(y, learned)
        pool_k, pool_v, there = self._pools(k, v, live & seen if T == S else live, learned)
        right = self.pool_window if causal is None else 0
        shown = self._far(T, right) & Padding(keys=there, queries=live)
        z, _ = attend(q, pool_k, pool_v, shown)
        return y + z, k, v

    @functools.partial(jax.jit, static_argnums=0)  # for calls outside of jit
    def _pools(self, k, v, seen: Bool[Array, "*B T"], learned):
        """Pooled keys and values [*B, P, N, *], and which pools hold a visible token [*B, P]."""
        T, n = k.shape[-3], k.ndim - 3
        (k, poison), (v, v_poison) = isolate(k), isolate(v)  # a projection may overflow
        poison = poison + v_poison
        cut = lambda x: runs(x, min(self.kernel, T), min(self.stride, T), n)
        hide = lambda x: cut(jnp.where(seen[..., None, None], x, 0))
        there = cut(seen)
        k, v = (
            pool_runs(hide(x), there, self.pool, learned.get(name))
            for x, name in ((k, "key_pool"), (v, "value_pool"))
        )
        return k + hide(poison[..., None]).sum(-3), v, there.any(-1)

    def _far(self, T: int, right: int) -> Within:
        """Which query sees which pool."""
        return Within(self.kernel, min(self.stride, T), self.pool_window, right)

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        N, H, D = num_heads, head_dim, value_dim
        shapes = {"query_projection": (N, D, H), "key_projection": (N, D, H)}
        shapes |= {"value_projection": (N, D, D)}
        if self.pool == "dynamic":
            shapes |= {"key_pool": (N, H, self.kernel), "value_pool": (N, D, self.kernel)}
        draw = lambda key, shape: (
            jax.random.normal(key, shape, jnp.float32) * max(1, shape[1]) ** -0.5
        )
        keys = jax.random.split(key, len(shapes))
        return {name: draw(key, shape) for key, (name, shape) in zip(keys, shapes.items())}

    def flops(self, T, S, N, K, H, D):
        if 0 in (T, S, D):
            return 0
        P = -(-T // min(self.stride, T))
        near = visited_scores(Window(self.window, self.window), T, S, N)
        far = visited_scores(self._far(T, self.pool_window), T, P, N)
        # a dynamic pool's weights, and the sum that they weigh
        pools = 2 * P * min(self.kernel, T) if self.pool == "dynamic" else 0
        return 2 * N * ((near + far + pools) * (H + D) + T * D * (2 * H + D))

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        check_room_for(batch, max_length, num_heads=num_heads)
        near = _cache.empty(batch, num_kv_heads, head_dim, value_dim, self.window + 1, dtype)
        sizes = num_heads, head_dim, value_dim, max_length
        return TwoLevels(near, _cache.empty(batch, *sizes, wide_dtype(dtype)))

    def prefill(self, q, k, v, *, max_length, **learned):
        check_prompt(q, k, v, max_length)
        out, far_k, far_v = self._levels(_by_blocks, q, k, v, Causal(), None, learned)
        far = _cache.fill(wide(far_k), wide(far_v), max_length)
        return TwoLevels(_cache.fill(k, v, self.window + 1), far), out.astype(jnp.result_type(q))

    def step(self, state, q, k, v, **learned):
        check_state(state, TwoLevels, q)
        _cache.check_size(state.near, self.window + 1)
        self.check_learned(q, k, v, **learned)
        near, y = _cache.step(state.near, q, k, v)
        far_q, far_k, far_v = _projected(y, learned)
        far = _cache.append(state.far, far_k, far_v)
        keys, values, filled = _cache.tokens(far)
        T = keys.shape[-3]
        seen = jnp.broadcast_to(filled.seen_keys(T), keys.shape[:-2])
        pool_k, pool_v, there = self._pools(keys, values, seen, learned)
        at = far.length[None, None] - 1, jnp.arange(there.shape[-1])[None]
        shown = Padding(keys=conjunction(there, self._far(T, 0).at(*at)[0]))
        out = y + dense_attention(far_q, pool_k, pool_v, mask=shown)
        return TwoLevels(near, far), _cache.unless_forgotten(far, out).astype(jnp.result_type(q))

    @classmethod
    def examples(cls):
        small = {"window": 2, "pool_window": 7}
        mean = cls(window=3, pool_window=9, kernel=3, stride=3, pool="mean")
        return cls(**small, kernel=4, stride=2), mean, cls(**small, kernel=3, stride=2, pool="max")


def _projected(y, learned):
    """Queries, keys and values of the second level; the key of a y that is not finite is NaN."""
    y, poison = isolate(y)
    names = ("query_projection", "key_projection", "value_projection")
    q, k, v = (jnp.einsum("...nd,ndh->...nh", y, learned[x].astype(y.dtype)) for x in names)
    return q, k + jax.lax.stop_gradient(poison)[..., None], v


def _by_blocks(q, k, v, mask):
    """Softmax attention, and which queries see any key."""
    out, lse = blockwise(q, k, v, mask, None, scale=None)
    return out, (lse != -jnp.inf)[..., 0]


def _drawn(q, k, v, mask):
    """The same by the full matrix."""
    seen = seen_array(mask, q.shape[-3], k.shape[-3]).any(-1)[..., 0, :]
    return dense_attention(q, k, v, mask=mask), jnp.broadcast_to(seen, q.shape[:-2])
