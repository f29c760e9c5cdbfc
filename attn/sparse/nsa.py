"""NSA (Yuan et al. 2025, arXiv:2502.11089): compressed, selected and near keys, mixed by gates."""

import dataclasses
import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from attn import _cache
from attn._arrays import check_arrays, learned_shapes
from attn._axes import aligned
from attn._blockwise import blockwise
from attn._core import attend_materialized, dense_attention, dense_scores, scaled, scores
from attn._explicit import auto_inside
from attn._forms import visited_scores
from attn._inputs import check_kept, check_qkv, check_state, refuse_rest
from attn._prompt import check_prompt, state_for
from attn._settings import check_count, check_flags, check_room_for
from attn._tokens import even_blocks, no_output
from attn._varying import vary
from attn._wide import float_dtype, wide, wide_dtype
from attn.gates import Gate, Named
from attn.masks import FULL, Causal, Mask, Padding
from attn.mechanism import Mechanism
from attn.sparse import _sorted
from attn.sparse._coarse_to_fine import CoarseToFine
from attn.sparse._compress import Compressed, Runs, run_count
from attn.sparse._mixed import mixed
from attn.sparse._select import Blocks, by_group, by_query, last_seen

HONOURS = (Causal, Padding)
KEYS, VALUES = ("selected_k", "near_k"), ("selected_v", "near_v")


def nsa_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    gate: Float[Array, "*B S N 3"],
    key_position: Float[Array, "K l H"],
    key_up: Float[Array, "K l H H"],
    key_down: Float[Array, "K H H"],
    value_position: Float[Array, "K l D"],
    value_up: Float[Array, "K l D D"],
    value_down: Float[Array, "K D D"],
    mask: Mask,
    bias=None,
    compression_block: int = 32,
    compression_stride: int = 16,
    selection_block: int = 64,
    selected: int = 16,
    initial: int = 1,
    local: int = 2,
    window: int = 512,
    selected_k: Float[Array, "*B S K H"] | None = None,
    selected_v: Float[Array, "*B S K D"] | None = None,
    near_k: Float[Array, "*B S K H"] | None = None,
    near_v: Float[Array, "*B S K D"] | None = None,
) -> Float[Array, "*B T N D"]:
    """g_1 attend(compressed) + g_2 attend(selected) + g_3 attend(window), g the token's `gate`.

    Native sparse attention (Yuan et al. 2025, arXiv:2502.11089); each is softmax(q k^T / sqrt(H)) v
    over keys up to the query. Compressed: one key and value for each run of l = compression_block
    tokens, starting every compression_stride tokens, by gelu((x + position) up) down. Selected: the
    `selected` blocks of largest compressed weight, a run's times the share of its tokens in the
    block, summed over the query heads of a key head, which share their selection; the first
    `initial` and the last `local` blocks are always among them. Window: the last `window` tokens.
    Query i stands at token i + offset (of `Causal`) and takes that token's gate; past the last
    token there is none and the output is 0. A run with a padded token has no compressed key. The
    paper gives each branch its own keys and values (section 3.3.3): then k and v are those that are
    compressed, and all four of `selected_k`, `selected_v`, `near_k` and `near_v` those of the
    selected branch and of the window. Without these, all three branches use k and v.

    O(T (selected selection_block + window) + T S / compression_stride) time, O(T + S) memory.
    Raises NotImplementedError without Causal, on masks but Causal and Padding or on a bias,
    ValueError for settings and arrays that do not fit.
    """
    settings = {"compression_block": compression_block, "compression_stride": compression_stride}
    settings |= {"selection_block": selection_block, "selected": selected, "initial": initial}
    arrays = {"key_position": key_position, "key_up": key_up, "key_down": key_down}
    arrays |= {"value_position": value_position, "value_up": value_up, "value_down": value_down}
    apart = dict(zip(KEYS + VALUES, (selected_k, near_k, selected_v, near_v)))
    arrays |= {name: x for name, x in apart.items() if x is not None}
    separate = arrays.keys() & apart.keys() != set()
    nsa = NSA(**settings, local=local, window=window, separate=separate)
    return nsa(q, k, v, mask=mask, bias=bias, gate=gate, **arrays)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NSA(Mechanism):
    """Softmax over compressed keys, the blocks they select and a window, gated (NSA, Yuan et al.
    2025); `separate` keys and values for each of the three, as in the paper.

    Query heads of one key head select together, so repeating key heads changes what is selected.
    A layer's gates are sigmoids of one linear map, the paper's of an MLP. Decodes with a cache of
    all keys and of the compressed ones; a step reads the latter, the blocks they select and the
    window. With `separate` there is one more cache of all keys, and a ring buffer of the window.
    """

    honours: ClassVar = HONOURS
    requires: ClassVar = (Causal,)
    shares_selection: ClassVar = True
    compression_block: int = 32
    compression_stride: int = 16
    selection_block: int = 64
    selected: int = 16
    initial: int = 1
    local: int = 2
    window: int = 512
    separate: bool = False

    def __post_init__(self):
        check_flags(self)
        for field in dataclasses.fields(self):
            if field.type is bool:
                continue
            least = 0 if field.name == "initial" else 1
            check_count(field.name, getattr(self, field.name), least=least)
        for name in ("compression_block", "selection_block"):
            if getattr(self, name) % self.compression_stride:
                raise ValueError(
                    f"{name}: expected a multiple of compression_stride "
                    f"{self.compression_stride}, got {getattr(self, name)}"
                )
        if self.selected < self.initial + self.local:
            raise ValueError(
                f"selected: expected at least initial + local = {self.initial + self.local} "
                f"blocks, got {self.selected}"
            )

    @auto_inside
    def __call__(self, q, k, v, *, mask=FULL, bias=None, gate, **arrays) -> Array:
        mask, padding, last = self._checked(q, k, v, mask, bias, gate, arrays)
        if 0 in (*v.shape, q.shape[-3]):
            return no_output(q, v)
        return self._attend(q, k, v, mask, padding, last, gate, arrays)

    @functools.partial(jax.jit, static_argnums=0)  # for calls outside of jit
    def _attend(self, q, k, v, mask, padding, last, gate, arrays):
        gate = self._of_queries(gate, q, k.shape[-2], last)
        (fine_k, fine_v), near = self._branches(k, v, arrays)
        softmax = lambda keys, mask: blockwise(*map(wide, (q, *keys)), mask, None, scale=None)[0]
        near = softmax(near, self._window_of(mask))
        blocks = Blocks.of(fine_k, fine_v, padding, self.selection_block)
        runs = self._runs(k, v, blocks, padding, arrays)
        if self._far.selects(blocks.k.shape[1]):
            coarse, fine = self._far.attend(q, k.shape[-2], blocks, runs, last)
        else:
            coarse = self._far.compress(q, k.shape[-2], runs, last)
            fine = softmax((fine_k, fine_v), mask)
        return mixed(gate, coarse, fine, near).astype(jnp.result_type(q))

    def _checked(self, q, k, v, mask, bias, gate, arrays):
        """The bound mask, its padding, and the last key of each query [M, T]."""
        mask, bias = check_qkv(q, k, v, mask, bias)
        (causal, padding), rest = mask.take(*HONOURS)
        refuse_rest("nsa", rest, bias, HONOURS)
        if causal is None:
            raise NotImplementedError(
                "mask: nsa is defined with Causal alone: its window and its local blocks lie "
                "before the query. Use mask=Causal(), or moba, which has a bidirectional form"
            )
        (*batch, T, N, H), (S, K) = q.shape, k.shape[-3:-1]
        sizes = {"num_heads": N, "num_kv_heads": K, "head_dim": H, "value_dim": v.shape[-1]}
        wanted = dict(learned_shapes(self, **sizes))  # a copy: those are cached
        if self.separate:
            wanted |= dict.fromkeys(KEYS, k.shape) | dict.fromkeys(VALUES, v.shape)
        wanted["gate"] = (*batch, S, N, 3)
        check_arrays(self.name, {"gate": gate, **arrays}, wanted)
        return mask, padding, last_seen(T, S, K, causal, padding, batch)

    def _window_of(self, mask) -> Mask:
        """The last `window` tokens up to the query's own position."""
        return mask & ~Causal(mask.take(Causal)[0][0].offset - self.window)

    def _branches(self, k, v, arrays):
        """Keys and values of the selected branch, and those of the window."""
        if not self.separate:
            return (k, v), (k, v)
        return [[arrays[name].astype(k.dtype) for name in pair] for pair in zip(KEYS, VALUES)]

    def _runs(self, k, v, blocks: Blocks, padding, arrays) -> Runs:
        """The runs of k and v, which are those in `blocks` unless `separate`."""
        if self.separate:
            blocks = Blocks.of(k, v, padding, self.selection_block)
        return Runs.of(blocks, k.shape[-3], self.compression_stride, arrays)

    def _of_queries(self, gate, q, K: int, last):
        """The gate of the token at which each query stands; 0 where there is none."""
        *batch, T, _, _ = q.shape
        S = gate.shape[-3]
        at = last.reshape(*batch, K, T)[..., 0, :, None, None]
        gate = jnp.take_along_axis(gate, jnp.clip(at, 0, S - 1), axis=-3)
        return jnp.where((at >= 0) & (at < S), gate, 0)

    @property
    def _far(self) -> CoarseToFine:
        """What makes the compressed and the selected branch."""
        names = (field.name for field in dataclasses.fields(CoarseToFine))
        return CoarseToFine(**{name: getattr(self, name) for name in names})

    def reference(self, q, k, v, *, mask=FULL, bias=None, gate, **arrays):
        mask, padding, last = self._checked(q, k, v, mask, bias, gate, arrays)
        *batch, S, K, _ = k.shape
        (fine_k, fine_v), near = self._branches(k, v, arrays)
        near = dense_attention(q, *near, mask=self._window_of(mask))
        blocks = Blocks.of(fine_k, fine_v, padding, self.selection_block)
        runs = self._runs(k, v, blocks, padding, arrays)
        seen, rows = runs.complete(last), by_group(scaled(q, None), K)
        chosen = self._far.choose(rows, runs.ranked, seen, last, blocks.some)
        of_key = jnp.arange(S) // self.selection_block
        among = jnp.equal(*aligned(chosen[..., None], of_key)).any(-2)[:, :, None]
        s, visible = dense_scores(q, fine_k, mask, None, None, None)
        among = jnp.moveaxis(by_query(among, tuple(batch), K), -2, -3)
        among = jnp.repeat(among, s.shape[-3] // K, axis=-3)
        fine = attend_materialized(s, visible & among, fine_v)
        heads = lambda x: jnp.moveaxis(x.reshape(*batch, K, *x.shape[1:]), -3, -2)
        ck, cv = heads(runs.k + runs.poison[..., None]), heads(runs.v)
        seen = seen.reshape(*batch, K, *seen.shape[1:])[..., :1, :, :]
        coarse = attend_materialized(scores(scaled(q, None), ck), seen, cv)
        return mixed(self._of_queries(gate, q, K, last), coarse, fine, near)

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        arrays, length = {}, self.compression_block
        for name, width in (("key", head_dim), ("value", value_dim)):
            key, a, b, c = jax.random.split(key, 4)
            draw = lambda key, *tail: jax.random.normal(key, (num_kv_heads, *tail), jnp.float32)
            arrays[f"{name}_position"] = 0.02 * draw(a, length, width)
            # as of white noise, the hidden numbers have variance 1, and so has what comes out
            arrays[f"{name}_up"] = draw(b, length, width, width) * max(1, length * width) ** -0.5
            arrays[f"{name}_down"] = draw(c, width, width) * (2 / max(1, width)) ** 0.5
        return arrays

    def gates(self, *, num_heads, num_kv_heads, head_dim):
        gate = {"gate": Gate(shape=(num_heads, 3), activation=Named("sigmoid"))}
        apart = Gate(shape=(num_kv_heads, head_dim), bias=None)
        return gate | (dict.fromkeys(KEYS + VALUES, apart) if self.separate else {})

    @property
    def gates_like(self):
        return dict.fromkeys(KEYS, "k") if self.separate else {}

    def flops(self, T, S, N, K, H, D):
        if 0 in (T, S, D):
            return 0
        length, blocks = self.compression_block, -(-S // self.selection_block)
        runs = run_count(S, length, self.compression_stride)
        made = K * (runs * (length + 1) + length) * (H * H + D * D) if runs else 0
        met = lambda mask: visited_scores(mask, T, S, N) * N * (H + D)
        near, coarse = met(self._window_of(Causal())), T * N * runs * (H + D)
        if not self._far.selects(blocks):
            return 2 * (made + coarse + near + met(Causal()))
        ranked = coarse + T * N * runs * H  # scores once more, to select by
        count, size = even_blocks(T, self._far.at_once(T, N, max(H, D), blocks, runs))
        sizes = self.selected, blocks, self.selection_block, H, D
        return 2 * (made + ranked + near) + count * _sorted.flops(K, size, N // K, *sizes)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        check_room_for(batch, max_length)
        # whole blocks, which a step finds without a copy
        size = -(-max_length // self.selection_block) * self.selection_block
        empty = lambda size: _cache.empty(batch, num_kv_heads, head_dim, value_dim, size, dtype)
        apart = (empty(size), empty(min(self.window, size))) if self.separate else None
        runs = run_count(size, self.compression_block, self.compression_stride)
        exact = wide_dtype(float_dtype(dtype))
        zeros = lambda *tail: jnp.zeros((*batch, num_kv_heads, runs, *tail), exact)
        return Compressed(empty(size), zeros(head_dim), zeros(value_dim), zeros(), apart)

    def prefill(self, q, k, v, *, max_length, **arrays):
        check_prompt(q, k, v, max_length)
        out = self(q, k, v, mask=Causal(), **arrays)
        *batch, T, K, _ = k.shape
        empty = jax.eval_shape(lambda: state_for(self, q, k, v, max_length))
        blocks = Blocks.of(k, v, None, self.selection_block)
        runs = Runs.of(blocks, T, self.compression_stride, arrays)
        known = empty.k.shape[-2]

        def put(x):
            x = x[:, :known]
            x = jnp.pad(x, [(0, 0), (0, known - x.shape[1])] + [(0, 0)] * (x.ndim - 2))
            return x.reshape(*batch, K, *x.shape[1:])

        fill = lambda keys, like: _cache.fill(*keys, like.k.shape[-2])
        of_branches = self._branches(k, v, arrays)
        apart = tuple(map(fill, of_branches, empty.apart)) if self.separate else None
        made = map(put, (runs.k, runs.v, runs.poison))
        state = Compressed(fill((k, v), empty.cache), *made, apart)
        return vary(state, k, v, arrays), out  # as it does after a step under shard_map

    def step(self, state, q, k, v, *, gate, **arrays):
        check_state(state, Compressed, q)
        self._checked(q, k, v, Causal(), None, gate, arrays)
        _cache.check_one_token(q)
        self._check_kept(state)
        last, cache = state.cache.length, _cache.append(state.cache, k, v)
        state = state.after(cache, self.compression_stride, arrays)
        if self.separate:
            pairs = zip(state.apart, self._branches(k, v, arrays))
            apart = tuple(_cache.append(old, *new) for old, new in pairs)
            state = dataclasses.replace(state, apart=apart)
        *batch, K, _, _ = cache.k.shape
        runs = state.runs(self.compression_stride, self.compression_block)
        fine, ring = state.apart or (cache, cache)
        blocks = Blocks.cached(fine, self.selection_block)
        at = jnp.broadcast_to(last, (math.prod(batch) * K, 1))
        far = self._far.attend(wide(q), K, blocks, runs, at)
        near = self._newest(wide(q), ring, last)
        out = _cache.unless_forgotten(cache, mixed(gate, *far, near))
        return state, out.astype(jnp.result_type(q))

    def _newest(self, q, ring: _cache.Cache, last):
        """The window's branch of the token at `last`, from a cache of all keys or of the newest."""
        # in a short text there are slots that are still empty; a ring is read whole
        size = min(self.window, ring.k.shape[-2])
        start = jnp.maximum(last + 1 - size, 0)
        cut = lambda x: wide(lax.dynamic_slice_in_dim(x, start, size, q.ndim - 2))
        k, v = cut(ring.k) + cut(ring.poison)[..., None], cut(ring.v)
        seen = Padding(keys=start + jnp.arange(size) <= last)
        token_first = lambda x: jnp.swapaxes(x, -3, -2)
        return dense_attention(q, token_first(k), token_first(v), mask=seen)

    def _check_kept(self, state: Compressed):
        """Raise ValueError for a state made for other blocks, runs or branches."""
        size, runs = state.cache.k.shape[-2], state.poison.shape[-1]
        check_kept(size, -(-size // self.selection_block) * self.selection_block)
        check_kept(runs, run_count(size, self.compression_block, self.compression_stride), "runs")
        check_kept(0 if state.apart is None else 2, 2 * self.separate, "branches apart")
        if self.separate:
            _cache.check_size(state.apart[1], min(self.window, size))

    @classmethod
    def examples(cls):
        small = {"compression_block": 4, "compression_stride": 2, "selection_block": 4}
        few = {**small, "selected": 3, "local": 1, "window": 3}
        return cls(**few), cls(), cls(**few, separate=True)
