"""Multi-head attention around any mechanism: project, call it, project back."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from attn._arrays import check_width
from attn._axes import aligned
from attn._rotary import check_positions
from attn._wide import wide
from attn.biases import Bias
from attn.dense.dot_product import dot_product_attention
from attn.masks import FULL, Causal, Mask
from attn.mechanism import Mechanism
from attn.nn.attention_rules import (
    check_batch,
    check_causal,
    check_context,
    check_kinds,
    check_names,
    heads_of,
)
from attn.nn.gates import Gates, output_gate
from attn.nn.keys import fold
from attn.nn.norm import RMSNorm, head_norm
from attn.nn.rows import of_rows
from attn.nn.short_conv import ShortConv
from attn.nn.token_shift import token_shift
from attn.positions import Rotary

PLAIN = Rotary()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerState:
    """A layer's state while it decodes: its mechanism's state, the last inputs of the short
    convolution, and the last token for the token shift."""

    mechanism: Any
    conv: Float[Array, "*B before C"] | None
    last: Float[Array, "*B 1 W"] | None


class Attention(nnx.Module):
    """mechanism(x W_q, c W_k, c W_v) W_o per head, with c = x unless a `context` is given
    (Vaswani et al. 2017, arXiv:1706.03762).

    W_q, W_k, W_v lie side by side in one kernel [width, (N + 2 K) H], so self-attention is one
    product; K < N is grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245), K = 1
    multi-query (Shazeer 2019, arXiv:1911.02150). `qk_norm` applies an RMSNorm with a learned scale
    to each head of q and k, before rotary (after Henry et al. 2020, arXiv:2010.04245, who use the
    L2 norm and learn one number in place of 1 / sqrt(H)); if a head holds several vectors side
    by side (the mechanism's `parts`), each is normalised and rotated separately. With `xpos`, q and
    k are also scaled about the middle of `max_length`, so that scores fall with distance (Sun et
    al. 2022, arXiv:2212.10554).

    A mechanism with `shared_qk` has one kernel for q and k (Reformer, Kitaev et al. 2020,
    arXiv:2001.04451), [width, 2 N H], K = N. `bias` adds a bias to each of these products.

    The mechanism's record asks for the rest. Its learned arrays are parameters here; its `gates`
    are projected from x, and those that are queries or keys are treated as q or k. The projections
    named in `shifts` read a mixture of each token and the one before it, by learned shares
    (`TokenShift`), which depend on the token if there is a `shift_rank`. With `short_conv`, q, k
    and v first pass through a causal convolution of that many taps and SiLU. Padding and other
    documents enter neither.
    With `blending`, each value becomes v + s (v_1 - v), if `first_values` v_1, those of the first
    layer, are given; s is a share per channel, computed from the input of v (after Zhou et al.
    2024, arXiv:2410.17897).
    `head_norm` (an `attn.norms.HeadNorm`) normalises the heads' outputs; with `bonus`, the
    mechanism's `own` share of the token's value is added to them, by weights that start at that
    number; `output_gate` then multiplies by "silu" or "sigmoid" of x W_g, or by the mechanism's own
    `gating`; with `gates_first`, before the norm. None, or 0 taps, adds nothing. Parameters are
    float32; products and the output are in `dtype`. Raises ValueError for sizes that do not fit,
    TypeError for what is not a mechanism, a rotary or a flag.
    """

    def __init__(
        self,
        width: int,
        *,
        num_heads: int,
        mechanism: Mechanism,
        max_length: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        qk_norm: bool = False,
        bias: bool = False,
        rotary: Rotary = PLAIN,
        xpos: bool = False,
        dtype=jnp.float32,
        key: Array,
    ):
        check_kinds(mechanism, rotary, qk_norm=qk_norm, bias=bias, xpos=xpos)
        N, K, H = heads_of(
            mechanism,
            width=width,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_length=max_length,
            xpos=xpos,
        )
        self.heads, self.mechanism, self.dtype = (N, K, H), mechanism, jnp.dtype(dtype)
        self.rotary, self.xpos_centre = rotary, max_length / 2 if xpos else None
        # its variance depends on the input width alone: fusing does not change the draw's scale
        kernel = jax.nn.initializers.lecun_normal()
        columns = (N + K if mechanism.shared_qk else N + 2 * K) * H
        self.qkv = nnx.Param(kernel(fold(key, "qkv"), (width, columns), jnp.float32))
        self.out = nnx.Param(kernel(fold(key, "out"), (N * H, width), jnp.float32))
        zeros = lambda size: nnx.Param(jnp.zeros(size, jnp.float32))
        self.bias = nnx.Dict(qkv=zeros(columns), out=zeros(width)) if bias else None
        part = H // mechanism.parts
        self.q_norm = RMSNorm(part) if qk_norm else None
        self.k_norm = RMSNorm(part) if qk_norm and not mechanism.shared_qk else self.q_norm
        self.head_norm = head_norm(mechanism.head_norm, N, H)
        start, taps = mechanism.bonus, mechanism.short_conv
        self.bonus = None if start is None else nnx.Param(jnp.full((N, H), start, jnp.float32))
        how = dict(bias=mechanism.conv_bias, key=fold(key, "short_conv"))
        self.short_conv = ShortConv(columns, taps, **how) if taps else None
        blending = mechanism.blending(num_kv_heads=K, head_dim=H)
        blend = lambda: Gates(width, {"v": blending}, key=fold(key, "blend"))
        self.blend = None if blending is None else blend()
        self.out_gate = output_gate(mechanism, width, N, H, key=fold(key, "out_gate"))

        sizes = dict(num_heads=N, num_kv_heads=K, head_dim=H)
        learned = mechanism.init(
            fold(key, "mechanism"), value_dim=H, max_length=max_length, **sizes
        )
        gates = mechanism.gates(**sizes)
        check_names(mechanism, learned, gates)
        self.learned = nnx.Dict({name: nnx.Param(x) for name, x in learned.items()})
        self.gates = Gates(width, gates, key=fold(key, "gates"))
        self.token_shift = token_shift(mechanism, width, key=fold(key, "token_shift"))

    def __call__(
        self,
        x: Float[Array, "*B T W"],
        *,
        context: Float[Array, "*B S W"] | None = None,
        mask: Mask = FULL,
        bias: Bias | Float[Array, "..."] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        dropout_key: Array | None = None,
        first_values: Float[Array, "*B T K H"] | None = None,
    ) -> Float[Array, "*B T W"]:
        """The layer's output in `dtype`. With `positions`, q and k are rotated by them. With
        `dropout_key`, a mechanism that has a `dropout_rate` drops weights.

        Raises ValueError for shapes that do not fit, for rotary, gates, a short convolution or a
        token shift in cross-attention, and for xPos without `Causal`; TypeError for positions that
        are not an array.
        """
        q, k, v, extra = self._project(x, context, positions, mask, first_values)
        own = self._own(q, k, v, extra)
        dropping = self._dropping(dropout_key)
        y = self.mechanism(q, k, v, mask=mask, bias=bias, **extra, **dropping)
        before = self._before(x, mask) if context is None else None
        return self._output(self._read("output_gate", x, before), y, own)

    def prefill(
        self,
        x: Float[Array, "*B T W"],
        *,
        bias: Bias | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        max_length: int,
        first_values: Float[Array, "*B T K H"] | None = None,
    ) -> tuple[LayerState, Float[Array, "*B T W"]]:
        """(state, output) of the tokens of a prompt, with `mask=Causal()`; `step` continues from
        the state up to `max_length` tokens. Raises NotImplementedError if the mechanism does not
        decode, or not with a bias."""
        q, k, v, extra = self._project(x, None, positions, Causal(), first_values)
        own, stepped = self._own(q, k, v, extra), {**extra, **self._stepped(bias)}
        state, y = self.mechanism.prefill(q, k, v, max_length=max_length, **stepped)
        latest = x[..., -max(1, self.mechanism.short_conv) :, :]
        conv = last = None
        if self.short_conv is not None:
            # only the first of the latest may lack the token before it, and `last` drops that
            qkv = self._qkv_shifted(latest, self._before(latest, Causal()))
            conv = self.short_conv.last(qkv)
        if self.token_shift is not None:
            last = self.token_shift.last(x)
        gating = self._read("output_gate", x, self._before(x, Causal()))
        return LayerState(state, conv, last), self._output(gating, y, own)

    def step(
        self,
        state: LayerState,
        x: Float[Array, "*B 1 W"],
        *,
        bias: Bias | None = None,
        positions: Int[Array, "*#B 1"] | None = None,
        first_values: Float[Array, "*B 1 K H"] | None = None,
    ) -> tuple[LayerState, Float[Array, "*B 1 W"]]:
        """(state, output) of the token after those of `state`; the output equals that of the whole
        sequence at once.

        Raises TypeError for a state that is not a layer's, ValueError for more tokens than one.
        """
        if not isinstance(state, LayerState):
            raise TypeError(f"state: expected that of `prefill`, got {type(state).__name__}")
        if x.ndim < 2 or x.shape[-2] != 1:
            raise ValueError(f"x: expected one token [*B, 1, W], got {list(x.shape)}")
        check_width(self.qkv.shape[0], x=x)
        if positions is not None:
            check_positions(positions, x.shape[:-1])
        check_batch(x, state.last, state.conv)
        before, conv = state.last, state.conv
        qkv = self._qkv_shifted(x, before)
        if self.short_conv is not None:
            conv, qkv = self.short_conv.step(conv, qkv)
        q, k, v = self._heads(*(qkv[..., columns] for columns in self._columns), positions)
        v = self._blended(v, first_values, x, before)
        extra = {**self._learned(), **self._gates(x, before, positions)}
        own, stepped = self._own(q, k, v, extra), {**extra, **self._stepped(bias)}
        mechanism, y = self.mechanism.step(state.mechanism, q, k, v, **stepped)
        last = None if self.token_shift is None else x
        gating = self._read("output_gate", x, before)
        return LayerState(mechanism, conv, last), self._output(gating, y, own)

    def values(
        self, x: Float[Array, "*B T W"], *, mask: Mask = FULL, state: LayerState | None = None
    ) -> Float[Array, "*B T K H"]:
        """The `first_values` for deeper layers, if this is the first; with a `state`, those of the
        token after it. Raises ValueError for another width or batch."""
        check_width(self.qkv.shape[0], x=x)
        if state is not None:
            check_batch(x, state.last, state.conv)
        before = self._before(x, mask) if state is None else state.last
        v = self._qkv(self._read("v", x, before), self._columns[2])
        return v.reshape(*v.shape[:-1], *self.heads[1:])

    def _learned(self) -> dict[str, Array]:
        """The mechanism's learned arrays."""
        return {name: x[...] for name, x in self.learned.items()}

    def _dropping(self, key: Array | None) -> dict[str, Array]:
        """The dropout key, for mechanisms that drop weights."""
        return {"dropout_key": key} if key is not None and self.mechanism.dropout_rate > 0 else {}

    def _stepped(self, bias: Bias | None) -> dict[str, Bias]:
        """The bias, for mechanisms that honour one."""
        if bias is not None and Bias not in self.mechanism.honours:
            raise NotImplementedError(
                f"bias: {self.mechanism.name} has no scores to add one to; in place of positions "
                "alibi and t5 use rotary, xpos, learned, sinusoidal or none"
            )
        return {} if bias is None else {"bias": bias}

    def memory(
        self, context: Float[Array, "*B S W"]
    ) -> tuple[Float[Array, "*B S K H"], Float[Array, "*B S K H"]]:
        """The keys and values of a context, projected once for any number of `recall`s. Raises
        ValueError for another width, gates, a short convolution or a token shift."""
        check_width(self.qkv.shape[0], context=context)
        check_context(self.mechanism, positions=None, gates=self._gates(context, None, None))
        (_, K, H), (_, of_k, of_v) = self.heads, self._columns
        k, v = jnp.split(self._qkv(context, slice(of_k.start, of_v.stop)), 2, axis=-1)
        return self._by_head(k, K, self.k_norm), v.reshape(*v.shape[:-1], K, H)

    def recall(
        self,
        x: Float[Array, "*B T W"],
        memory: tuple[Float[Array, "*B S K H"], Float[Array, "*B S K H"]],
        *,
        mask: Mask = FULL,
        dropout_key: Array | None = None,
    ) -> Float[Array, "*B T W"]:
        """`self(x, context=context, mask=mask)` from `self.memory(context)`."""
        check_width(self.qkv.shape[0], x=x)
        extra = {**self._learned(), **self._dropping(dropout_key)}
        return self._output(x, self.mechanism(self._q(x), *memory, mask=mask, **extra))

    def _q(self, x):
        return self._by_head(self._qkv(x, self._columns[0]), self.heads[0], self.q_norm)

    def _by_head(self, x, heads, norm):
        """x with an axis of heads, each of whose parts is normalised."""
        parts, H = self.mechanism.parts, self.heads[2]
        x = x.reshape(*x.shape[:-1], heads * parts, H // parts)
        x = x if norm is None else norm(x)
        return x.reshape(*x.shape[:-2], heads, H)

    def _own(self, q, k, v, extra) -> Float[Array, "*B T N H"] | None:
        """The bonus: the share of its token's own value that each head adds."""
        if self.bonus is None:
            return None
        q, k, v = map(wide, (q, k, v))
        arrays = {"bonus": self.bonus[...], **extra}
        arrays = {name: x.astype(q.dtype) for name, x in arrays.items()}
        groups = q.shape[-2] // k.shape[-2]
        return self.mechanism.own(q, k, **arrays)[..., None] * jnp.repeat(v, groups, axis=-2)

    def _output(self, x, y, own=None):
        """The output [*B, T, W] for the tokens x from the outputs y [*B, T, N, H] of the heads."""
        gated = lambda y: y if self.out_gate is None else y * self._gating(x).reshape(y.shape)
        y = gated(y) if self.mechanism.gates_first else y
        y = y if self.head_norm is None else self._normed(y)
        y = y if own is None else y + own.astype(y.dtype)
        y = y if self.mechanism.gates_first else gated(y)
        y = self._times(y.reshape(*y.shape[:-2], self.out.shape[0]), self.out[...])
        return y if self.bias is None else self._plus(y, self.bias.out[...])

    def _normed(self, y):
        norm = self.mechanism.head_norm
        # not -1, which jax cannot infer without rows
        x = y.reshape(*y.shape[:-2], self.out.shape[0]) if norm.together else y
        return self.head_norm(x).reshape(y.shape) * norm.times

    def _gating(self, x) -> Float[Array, "*B T NH"]:
        """The output gate of the tokens x."""
        if isinstance(self.out_gate, Gates):
            return self.out_gate(x.astype(self.dtype))["output_gate"].astype(self.dtype)
        activation = getattr(jax.nn, self.mechanism.output_gate)  # one of OUTPUT_GATES
        return activation(self._times(x, self.out_gate[...]))

    def weights(
        self,
        x: Float[Array, "*B T W"],
        *,
        context: Float[Array, "*B S W"] | None = None,
        mask: Mask = FULL,
        bias: Bias | Float[Array, "..."] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        first_values: Float[Array, "*B T K H"] | None = None,
    ) -> Float[Array, "*B N T S"]:
        """The effective attention matrix of each head for this input, before its `head_norm`; it
        does not depend on the values."""
        q, k, _, extra = self._project(x, context, positions, mask)
        return self.mechanism.weights(q, k, mask=mask, bias=bias, **extra)

    def beside_softmax(
        self,
        x: Float[Array, "*B T W"],
        *,
        mask: Mask = FULL,
        bias: Bias | Float[Array, "..."] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        first_values: Float[Array, "*B T K H"] | None = None,
    ) -> tuple[Float[Array, "*B T N H"], Float[Array, "*B T N H"]]:
        """(the mechanism's output, that of softmax attention) for the layer's q, k and v: how far
        the mechanism is from softmax."""
        q, k, v, extra = self._project(x, None, positions, mask, first_values)
        exact = dot_product_attention(q, k, v, mask=mask, bias=bias)
        return self.mechanism(q, k, v, mask=mask, bias=bias, **extra), exact

    def _project(self, x, context, positions, mask, first_values=None):
        check_width(self.qkv.shape[0], x=x, context=context)
        if positions is not None:
            check_positions(positions, x.shape[:-1])
            if self.xpos_centre is not None:
                check_causal(mask)
        before = self._before(x, mask) if context is None else None
        gates = self._gates(x, before, positions)
        if context is None:
            qkv = self._qkv_shifted(x, before)
            qkv = qkv if self.short_conv is None else self.short_conv(qkv, mask)
            q, k, v = (qkv[..., columns] for columns in self._columns)
        else:
            check_context(self.mechanism, positions=positions, gates=gates)
            of_q, of_k, of_v = self._columns
            q, kv = self._qkv(x, of_q), self._qkv(context, slice(of_k.start, of_v.stop))
            k, v = jnp.split(kv, 2, axis=-1)
        q, k, v = self._heads(q, k, v, positions)
        v = self._blended(v, first_values, x, before)
        return q, k, v, {**self._learned(), **gates}

    def _blended(self, v, first_values, x, before) -> Float[Array, "*B T K H"]:
        """The values v of the tokens x, blended with those of the first layer."""
        if self.blend is None or first_values is None:
            return v
        if first_values.shape != v.shape:
            want, got = list(v.shape), list(first_values.shape)
            raise ValueError(f"first_values: expected {want}, as the layer's own, got {got}")
        share = self.blend(x.astype(self.dtype), lambda name: self._read(name, x, before))["v"]
        own, first = wide(v), wide(first_values)
        return (own + share.astype(own.dtype) * (first - own)).astype(v.dtype)

    def _gates(self, x, before, positions):
        """The mechanism's gates; those that are queries or keys are treated as q or k."""
        read = lambda name: self._read(name, x, before)
        gates = self.gates(x.astype(self.dtype), read)
        for name, like in self.mechanism.gates_like.items():
            y, which = gates[name].astype(self.dtype), "qk".index(like)
            norm = (self.q_norm, self.k_norm)[which]
            y = y.reshape(*y.shape[:-2], self.heads[which] * self.heads[2])
            y = self._by_head(y, self.heads[which], norm)
            gates[name] = self._rotated(y, y, positions)[which]
        return gates

    def _qkv(self, x, columns=slice(None)) -> Float[Array, "*B T C"]:
        y = self._times(x, self.qkv[:, columns])
        return y if self.bias is None else self._plus(y, self.bias.qkv[columns])

    def _times(self, x, kernel):
        return of_rows(lambda x: x @ kernel.astype(self.dtype), x.astype(self.dtype))

    def _plus(self, y, bias):
        return jnp.add(*aligned(y, bias.astype(self.dtype)))

    @property
    def _columns(self) -> tuple[slice, slice, slice]:
        """The columns of q, k and v in the kernel; those of q and k may be the same."""
        (N, K, H), C = self.heads, self.qkv.shape[1]
        return slice(N * H), slice(C - 2 * K * H, C - K * H), slice(C - K * H, C)

    def _heads(self, q, k, v, positions):
        """q, k and v with an axis of heads, q and k normalised and rotated."""
        N, K, H = self.heads
        q, k = self._by_head(q, N, self.q_norm), self._by_head(k, K, self.k_norm)
        return *self._rotated(q, k, positions), v.reshape(*v.shape[:-1], K, H)

    def _rotated(self, q, k, positions):
        """q and k with each part of a head rotated separately."""
        if positions is None:
            return q, k
        parts, H = self.mechanism.parts, self.heads[2]
        apart = lambda x: x.reshape(*x.shape[:-2], x.shape[-2] * parts, H // parts)
        turned = self.rotary(apart(q), apart(k), positions, xpos_centre=self.xpos_centre)
        return [y.reshape(x.shape) for x, y in zip((q, k), turned)]

    def _qkv_shifted(self, x, before) -> Float[Array, "*B T C"]:
        """`_qkv`, each of q, k and v from its own mixture of tokens."""
        if before is None:
            return self._qkv(x)
        columns = dict(zip("qkv", self._columns))
        if self.mechanism.shared_qk:
            del columns["k"]
        reads = [(self._read(name, x, before), place) for name, place in columns.items()]
        return jnp.concatenate([self._qkv(*read) for read in reads], -1)

    def _before(self, x, mask) -> Float[Array, "*B T W"] | None:
        """The token before each, if there is a token shift."""
        return None if self.token_shift is None else self.token_shift.before(x, mask)

    def _read(self, name, x, before):
        """The input of the projection `name` for the tokens x."""
        return x if before is None else self.token_shift(name, x, before)
