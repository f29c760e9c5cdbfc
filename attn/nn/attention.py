"""Multi-head attention around any mechanism: project, call it, project back."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from attn._arrays import check_width
from attn._rotary import check_positions
from attn._wide import wide
from attn.biases import Bias
from attn.dense.dot_product import dot_product_attention
from attn.masks import FULL, Causal, Mask
from attn.mechanism import Mechanism
from attn.nn.attention_rules import (
    check_batch,
    check_context,
    check_kinds,
    check_output,
    heads_of,
)
from attn.nn.gates import Gates, output_gate
from attn.nn.keys import check_key, fold
from attn.nn.norm import head_norm
from attn.nn.projections import KERNEL, Projections
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


class Attention(Projections):
    """mechanism(x W_q, c W_k, c W_v) W_o per head, with c = x unless a `context` is given
    (Vaswani et al. 2017, arXiv:1706.03762).

    W_q, W_k, W_v lie side by side in one kernel [width, (N + 2 K) H], so self-attention is one
    product; K < N is grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245), K = 1
    multi-query (Shazeer 2019, arXiv:1911.02150). `qk_norm` applies an RMSNorm with a learned scale
    to each head of q and k, before rotary (after Henry et al. 2020, arXiv:2010.04245, who use the
    L2 norm and learn one number in place of 1 / sqrt(H)); if a head holds several vectors side
    by side (the mechanism's `parts`), each is normalised and rotated separately. With `xpos`, q and
    k are also scaled about the middle of `max_length`, so that scores fall with distance (Sun et
    al. 2022, arXiv:2212.10554). What is made of q and k after that, before their product, makes
    rotated scores depend on the positions too, not on their distance alone: feature maps (Linear,
    where RoFormer rotates the features), hidden layers (Additive), decays of channels (GLA, KDA);
    with `xpos`, norms as well (DeltaNet; Softmax(qk_norm=True) is refused, `qk_norm` here is not).

    A mechanism with `shared_qk` has one kernel for q and k (Reformer, Kitaev et al. 2020,
    arXiv:2001.04451), [width, 2 N H], K = N. `bias` adds a bias to each of these products.

    The mechanism's record asks for the rest. Its learned arrays are parameters here; its `gates`
    are projected from x, and those that are queries or keys are treated as q or k. The projections
    named in `shifts` read a mixture of each token and the one before it, by learned shares
    (`TokenShift`), which depend on the token if there is a `shift_rank`. With `short_conv`, q, k
    and v first pass through a causal convolution of that many taps and SiLU; 0 leaves out both,
    where fla's layers keep SiLU: 1 does, with a weight for each channel. Padding and other
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
        check_key(key)
        heads = heads_of(
            mechanism,
            width=width,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_length=max_length,
            rotary=rotary,
            xpos=xpos,
        )
        super().__init__(
            width,
            heads=heads,
            mechanism=mechanism,
            max_length=max_length,
            qk_norm=qk_norm,
            bias=bias,
            rotary=rotary,
            xpos=xpos,
            dtype=dtype,
            key=key,
        )
        N, _, H = heads
        self.out = nnx.Param(KERNEL(fold(key, "out"), (N * H, width), jnp.float32))
        self.head_norm = head_norm(mechanism.head_norm, N, H)
        start = mechanism.bonus
        self.bonus = None if start is None else nnx.Param(jnp.full((N, H), start, jnp.float32))
        self.out_gate = output_gate(mechanism, width, N, H, key=fold(key, "out_gate"))

    def __call__(
        self,
        x: Float[Array, "*B T W"],
        *,
        context: Float[Array, "*B S W"] | None = None,
        mask: Mask = FULL,
        bias: Bias | Float[Array, "..."] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        dropout_key: Array | None = None,
        first_values: Float[Array, "*B S K H"] | None = None,
    ) -> Float[Array, "*B T W"]:
        """The layer's output in `dtype`. With `positions`, q and k are rotated by them. With
        `dropout_key`, a mechanism that has a `dropout_rate` drops weights.

        Raises ValueError for shapes that do not fit, for rotary, gates, a short convolution, a
        bonus or a token shift in cross-attention, for xPos without `Causal`, and for first values
        without `blending`; TypeError for positions that are not an array.
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
        past = self._past(x)
        gating = self._read("output_gate", x, self._before(x, Causal()))
        return LayerState(state, *past), self._output(gating, y, own)

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
        past, q, k, v, extra = self._project_next(
            x, state.conv, state.last, positions, first_values
        )
        own, stepped = self._own(q, k, v, extra), {**extra, **self._stepped(bias)}
        mechanism, y = self.mechanism.step(state.mechanism, q, k, v, **stepped)
        gating = self._read("output_gate", x, state.last)
        return LayerState(mechanism, *past), self._output(gating, y, own)

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

    def memory(
        self, context: Float[Array, "*B S W"]
    ) -> tuple[Float[Array, "*B S K H"], Float[Array, "*B S K H"]]:
        """The keys and values of a context, projected once for any number of `recall`s. Raises
        ValueError for another width, gates, a short convolution, a bonus or a token shift."""
        check_width(self.qkv.shape[0], context=context)
        check_context(self.mechanism, positions=None, gates=self._gates(context, None, None))
        (_, K, H), (k, v) = self.heads, self._kv(context)
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
        q = self._by_head(self._qkv(x, self._columns[0]), self.heads[0], self.q_norm)
        extra = {**self._learned(), **self._dropping(dropout_key)}
        return self._output(x, self.mechanism(q, *memory, mask=mask, **extra))

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
        N, _, H = self.heads
        check_output(self.mechanism, y, (*x.shape[:-1], N, H), self.dtype)
        gated = lambda y: y if self.out_gate is None else y * self._gating(x).reshape(y.shape)
        y = gated(y) if self.mechanism.gates_first else y
        y = y if self.head_norm is None else self._normed(y)
        y = y if own is None else y + own.astype(y.dtype)
        y = y if self.mechanism.gates_first else gated(y)
        y = self._times(y.reshape(*y.shape[:-2], self.out.shape[0]), self.out[...])
        return y if self.bias is None else self._plus(y, self.bias.out[...])

    def _normed(self, y):
        """The outputs y of the heads, normalised together or each by itself."""
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
