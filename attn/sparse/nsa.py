"""NSA (Yuan et al. 2025, arXiv:2502.11089): compressed, selected and near keys, mixed by gates."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn import _cache
from attn._blockwise import blockwise
from attn._core import (
    attend_materialized,
    check_count,
    check_qkv,
    dense_attention,
    dense_scores,
    isolate,
    masked_softmax,
    refuse_rest,
    scaled,
    scores,
    wide,
)
from attn.gates import Gate
from attn.masks import FULL, Causal, Mask, Padding, Window
from attn.mechanism import Mechanism
from attn.sparse._select import (
    BUDGET,
    Blocks,
    best,
    by_chunks,
    by_group,
    by_query,
    chunk_size,
    last_seen,
    narrow,
)
from attn.sparse._sorted import least_queries

HONOURS = (Causal, Padding)


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
) -> Float[Array, "*B T N D"]:
    """g_1 attend(compressed) + g_2 attend(selected) + g_3 attend(window), g the token's `gate`.

    Native sparse attention (Yuan et al. 2025, arXiv:2502.11089); each is softmax(q k^T / sqrt(H)) v
    over keys up to the query. Compressed: one key and value for each run of l = compression_block
    tokens, every compression_stride of them, by gelu((x + position) up) down. Selected: the
    `selected` blocks that carry the largest compressed weights, summed over the query heads of a
    key head, which share them; the first `initial` and the last `local` blocks are always among
    them. Window: the last `window` tokens. Query i stands at token i + offset of `Causal` and
    takes its gate; past the last token there is none and the output is 0. A run with a padded token
    has no compressed key. The branches share k and v, where the paper projects them apart.

    O(T (selected selection_block + window) + T S / compression_stride) time, O(T + S) memory.
    Raises NotImplementedError without Causal, on masks but Causal and Padding or on a bias,
    ValueError for settings and arrays that do not fit.
    """
    settings = {"compression_block": compression_block, "compression_stride": compression_stride}
    settings |= {"selection_block": selection_block, "selected": selected, "initial": initial}
    arrays = {"key_position": key_position, "key_up": key_up, "key_down": key_down}
    arrays |= {"value_position": value_position, "value_up": value_up, "value_down": value_down}
    nsa = NSA(**settings, local=local, window=window)
    return nsa(q, k, v, mask=mask, bias=bias, gate=gate, **arrays)


def compress(x: Float[Array, "M S W"], stride: int, position, up, down) -> Float[Array, "M runs W"]:
    """gelu((x + position) up) down of each run of l tokens, every `stride`; arrays are one a key
    head, x is [batch rows x key heads, S, W]."""
    (K, length, W), (M, S, _) = position.shape, x.shape
    runs = max(0, (S - length) // stride + 1)
    if M == 0 or runs == 0:
        return jnp.zeros((M, runs, W), x.dtype)
    # a run is length / stride steps, each shared with the runs before it
    steps = x[:, : S // stride * stride].reshape(M // K, K, S // stride, stride, W)
    cut = lambda y, n: y[:, n * stride : (n + 1) * stride]
    hidden = jnp.einsum("klw,klwe->ke", position, up)[:, None]
    for n in range(length // stride):
        hidden = hidden + jnp.einsum("bkrlw,klwe->bkre", steps[:, :, n : n + runs], cut(up, n))
    return jnp.einsum("bkre,kew->bkrw", jax.nn.gelu(hidden), down).reshape(M, runs, W)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NSA(Mechanism):
    """Compressed keys, the blocks they select and a window, gated (NSA, Yuan et al. 2025).

    Query heads of one key head select together, so repeating key heads changes what is selected.
    Decodes with a cache of all keys, which it compresses again at each step.
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

    def __post_init__(self):
        for field in dataclasses.fields(self):
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

    def __call__(self, q, k, v, *, mask=FULL, bias=None, gate, **arrays):
        mask, padding, last = self._checked(q, k, v, mask, bias, gate, arrays)
        if 0 in (*v.shape[:-1], q.shape[-3]):
            return jnp.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
        gate = self._of_queries(gate, q, last)
        near = mask & Window(self.window - 1, 0)
        near = blockwise(wide(q), wide(k), wide(v), near, None, scale=None)[0]
        return self._mixed(gate, *self._far(q, k, v, padding, last, arrays), near).astype(q.dtype)

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
        sizes = {"num_kv_heads": K, "head_dim": H, "value_dim": v.shape[-1]}
        draw = lambda key: self.init(key, num_heads=N, max_length=S, **sizes)
        wanted = {name: x.shape for name, x in jax.eval_shape(draw, jax.random.key(0)).items()}
        if missing := sorted(wanted.keys() ^ arrays.keys()):
            raise ValueError(f"nsa: expected arrays {', '.join(wanted)}; see {', '.join(missing)}")
        for name, shape in (*wanted.items(), ("gate", (*batch, S, N, 3))):
            got = {"gate": gate, **arrays}[name].shape
            if got != shape:
                raise ValueError(f"{name}: expected shape {list(shape)}, got {list(got)}")
        return mask, padding, last_seen(T, S, K, causal, padding, batch)

    def _of_queries(self, gate, q, last):
        """The gate of the token at which each query stands; 0 where there is none."""
        *batch, T, _, _ = q.shape
        S = gate.shape[-3]
        at = last.reshape(*batch, -1, T)[..., 0, :, None, None]
        gate = jnp.take_along_axis(gate, jnp.clip(at, 0, S - 1), axis=-3)
        return jnp.where((at >= 0) & (at < S), gate, 0)

    def _mixed(self, gate, *branches):
        """The branches weighed by their gates [*B, T, N, 3]."""
        # what is not finite is added at the end: 0 * NaN would reach every gradient
        gate, gate_poison = isolate(wide(gate))
        clean, poison = zip(*map(isolate, branches))
        out = sum(gate[..., n, None] * x for n, x in enumerate(clean))
        return out + jax.lax.stop_gradient(sum(poison) + gate_poison)[..., None]

    def _far(self, q, k, v, padding, last, arrays):
        """The compressed and the selected branch."""
        *batch, T, N, H = q.shape
        S, K, D = *k.shape[-3:-1], v.shape[-1]
        blocks = Blocks.of(k, v, padding, self.selection_block)
        ck, cv, poison, ends, ranked = self._compressed(blocks, S, arrays)
        clean, q_poison = isolate(scaled(q, None))
        rows = by_group(clean, K), by_group(q_poison[..., None], K), last[..., None, None]

        def attend(_, rows):
            q, q_poison, last = rows
            last = last[..., 0, 0]
            seen = (ends >= 0)[:, None] & (ends[:, None] <= last[..., None])  # [M, t, runs]
            w = masked_softmax(jnp.einsum("mtgh,mch->mtgc", q, ck), seen[:, :, None])
            lost = jnp.where(seen, poison[:, None], 0).sum(-1)[..., None, None]
            lost = lost + jnp.where(seen.any(-1)[..., None, None], q_poison, 0)
            coarse = jnp.einsum("mtgc,mcd->mtgd", w, cv) + lost
            chosen = self._choose(q, ranked, seen, last, blocks.some)
            fine = blocks.attend(q, chosen, last)
            fine = fine + jnp.where((last >= 0)[..., None, None], q_poison, 0)
            return jnp.concatenate([coarse, fine], -1)

        heads, runs = math.prod(batch) * N, max(1, S // self.compression_stride)
        count = -(-S // self.selection_block)
        size = chunk_size(heads * max(3 * self.selected * max(H, D), runs), T)
        # enough for blocks to meet full tiles, where the scores of runs have room
        least = least_queries(count, self.selected)
        size = max(size, min(least, 2 * BUDGET // (heads * runs)))
        out = by_query(by_chunks(attend, rows, T, size), tuple(batch), K)
        return out[..., :D], out[..., D:]

    def _compressed(self, blocks, S, arrays):
        """Compressed keys and values [M, runs, .], their poison, the last token of each run (-1 if
        one of its tokens is hidden) and the keys in float32 by which blocks are selected."""
        flat = lambda x: x.reshape(x.shape[0], -1, *x.shape[3:])[:, :S]
        k, v, hidden, poison = map(flat, (blocks.k, blocks.v, ~blocks.seen, blocks.poison))
        keys, values = (
            [arrays[f"{x}_{name}"].astype(k.dtype) for name in ("position", "up", "down")]
            for x in ("key", "value")
        )
        d = self.compression_stride
        ck, cv = compress(k, d, *keys), compress(v, d, *values)
        ranked = ck if ck.dtype == jnp.float32 else compress(*narrow(k), d, *narrow(*keys))
        start = jnp.arange(ck.shape[1]) * d
        runs = start[:, None] + jnp.arange(self.compression_block)
        ends = jnp.where(hidden[:, runs].any(-1), -1, start + self.compression_block - 1)
        return ck, cv, poison[:, runs].sum(-1), ends, ranked

    def _choose(self, q, ranked, seen, last, some):
        """The blocks [M, t, n] selected by the queries [M, t, G, H] of each key head."""
        q, ranked = narrow(q, ranked)
        s = jnp.einsum("mtgh,mch->mtgc", q, ranked, precision="highest")
        w = masked_softmax(s, seen[:, :, None]).sum(2)
        # each step of a block carries the weights of the runs that it is a part of
        d, steps = self.compression_stride, self.compression_block // self.compression_stride
        count = some.shape[-1] * (self.selection_block // d)
        w = jnp.pad(w, [(0, 0), (0, 0), (steps - 1, count - w.shape[-1])])
        w = sum(w[..., n : n + count] for n in range(steps))
        w = w.reshape(*w.shape[:-1], some.shape[-1], self.selection_block // d).sum(-1)
        block, own = jnp.arange(some.shape[-1]), (last // self.selection_block)[..., None]
        must = (block < self.initial) | (block > own - self.local)
        return best(w, some[:, None] & (block <= own), must & (block <= own), self.selected)

    def reference(self, q, k, v, *, mask=FULL, bias=None, gate, **arrays):
        mask, padding, last = self._checked(q, k, v, mask, bias, gate, arrays)
        (*batch, T, _, _), (S, K) = q.shape, k.shape[-3:-1]
        near = dense_attention(q, k, v, mask=mask & Window(self.window - 1, 0))
        blocks = Blocks.of(k, v, padding, self.selection_block)
        ck, cv, _, ends, ranked = self._compressed(blocks, S, arrays)
        seen = (ends >= 0)[:, None] & (ends[:, None] <= last[..., None])
        chosen = self._choose(by_group(scaled(q, None), K), ranked, seen, last, blocks.some)
        among = (chosen[..., None] == jnp.arange(S) // self.selection_block).any(-2)[:, :, None]
        s, visible = dense_scores(q, k, mask, None, None, None)
        among = jnp.moveaxis(by_query(among, tuple(batch), K), -2, -3)
        among = jnp.repeat(among, s.shape[-3] // K, axis=-3)
        fine = attend_materialized(s, visible & among, v)
        ck, cv = (jnp.moveaxis(x.reshape(*batch, K, *x.shape[1:]), -3, -2) for x in (ck, cv))
        seen = seen.reshape(*batch, K, T, -1)[..., :1, :, :]
        coarse = attend_materialized(scores(scaled(q, None), ck), seen, cv)
        return self._mixed(self._of_queries(gate, q, last), coarse, fine, near)

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        arrays, length = {}, self.compression_block
        for name, width in (("key", head_dim), ("value", value_dim)):
            key, a, b, c = jax.random.split(key, 4)
            draw = lambda key, *tail: jax.random.normal(key, (num_kv_heads, *tail), jnp.float32)
            arrays[f"{name}_position"] = 0.02 * draw(a, length, width)
            # as of white noise, the hidden numbers have variance 1, and so has what comes out
            arrays[f"{name}_up"] = draw(b, length, width, width) * (length * width) ** -0.5
            arrays[f"{name}_down"] = draw(c, width, width) * (2 / width) ** 0.5
        return arrays

    def gates(self, *, num_heads, num_kv_heads, head_dim):
        return {"gate": Gate(shape=(num_heads, 3), activation=jax.nn.sigmoid)}

    def flops(self, T, S, N, K, H, D):
        runs = max(0, (S - self.compression_block) // self.compression_stride + 1)
        made = K * runs * (self.compression_block + 1) * (H * H + D * D)
        seen = runs + min(self.selected * self.selection_block, S) + min(self.window, S)
        return 2 * (made + T * N * seen * (H + D))

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        return _cache.empty(batch, num_kv_heads, head_dim, value_dim, max_length, dtype)

    def prefill(self, q, k, v, *, max_length, **arrays):
        return _cache.fill(k, v, max_length), self(q, k, v, mask=Causal(), **arrays)

    def step(self, state, q, k, v, *, gate, **arrays):
        self._checked(q, k, v, Causal(), None, gate, arrays)
        last = jnp.broadcast_to(state.length, (math.prod(k.shape[:-3]) * k.shape[-2], 1))

        def attend(q, k, v, mask):
            recent = jnp.arange(k.shape[-3]) > state.length - self.window
            near = dense_attention(q, k, v, mask=mask & Padding(keys=recent))
            return self._mixed(gate, *self._far(q, k, v, mask, last, arrays), near)

        return _cache.decode(state, attend, q, k, v)

    @classmethod
    def examples(cls):
        small = {"compression_block": 4, "compression_stride": 2, "selection_block": 4}
        return cls(**small, selected=3, local=1, window=3), cls()
