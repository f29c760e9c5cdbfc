"""What an attention layer's mechanism is called with: q, k, v by head, its gates and its arrays."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from attn._arrays import check_width
from attn._axes import aligned
from attn._requests import turned_too_far
from attn._rotary import check_positions
from attn._wide import wide
from attn.masks import Causal
from attn.mechanism import Mechanism
from attn.nn.attention_rules import check_causal, check_context, check_learned, check_names
from attn.nn.gates import Gates
from attn.nn.keys import fold
from attn.nn.norm import RMSNorm
from attn.nn.rows import of_rows
from attn.nn.short_conv import ShortConv
from attn.nn.token_shift import token_shift
from attn.positions import Rotary

# its variance depends on the input width alone: fusing does not change the draw's scale
KERNEL = jax.nn.initializers.lecun_normal()


class Projections(nnx.Module):
    """The input side of `Attention`, which says what each argument means; `heads` are the numbers
    of query and key heads, and their width. In turn: token shift, one product, short convolution,
    norm and rotation of each head of q and k, a share of the first layer's values for v."""

    def __init__(
        self,
        width: int,
        *,
        heads: tuple[int, int, int],
        mechanism: Mechanism,
        max_length: int,
        qk_norm: bool,
        bias: bool,
        rotary: Rotary,
        xpos: bool,
        dtype,
        key: Array,
    ):
        N, K, H = self.heads = heads
        self.mechanism, self.dtype = mechanism, jnp.dtype(dtype)
        self.rotary, self.xpos_centre = rotary, max_length / 2 if xpos else None
        columns = (N + K if mechanism.shared_qk else N + 2 * K) * H
        self.qkv = nnx.Param(KERNEL(fold(key, "qkv"), (width, columns), jnp.float32))
        zeros = lambda size: nnx.Param(jnp.zeros(size, jnp.float32))
        self.bias = nnx.Dict(qkv=zeros(columns), out=zeros(width)) if bias else None
        part = H // mechanism.parts
        self.q_norm = RMSNorm(part) if qk_norm else None
        self.k_norm = RMSNorm(part) if qk_norm and not mechanism.shared_qk else self.q_norm
        taps = mechanism.short_conv
        how = dict(bias=mechanism.conv_bias, key=fold(key, "short_conv"))
        self.short_conv = ShortConv(columns, taps, **how) if taps else None
        self.token_shift = token_shift(mechanism, width, key=fold(key, "token_shift"))
        blending = mechanism.blending(num_kv_heads=K, head_dim=H)
        blend = lambda: Gates(width, {"v": blending}, key=fold(key, "blend"))
        self.blend = None if blending is None else blend()

        sizes = dict(num_heads=N, num_kv_heads=K, head_dim=H)
        learned = mechanism.init(
            fold(key, "mechanism"), value_dim=H, max_length=max_length, **sizes
        )
        gates = mechanism.gates(**sizes)
        check_names(mechanism, learned, gates)
        check_learned(mechanism, learned)
        self.learned = nnx.Dict({name: nnx.Param(x) for name, x in learned.items()})
        self.gates = Gates(width, gates, key=fold(key, "gates"))

    def _project(self, x, context, positions, mask, first_values=None):
        """(q, k, v, the mechanism's other arrays by name) of the tokens x, k and v those of the
        context if there is one."""
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
            q = self._qkv(x, self._columns[0])
            k, v = self._kv(context)
        q, k, v = self._heads(q, k, v, positions)
        v = self._blended(v, first_values, x if context is None else context, before)
        return q, k, v, {**self._learned(), **gates}

    def _project_next(self, x, conv, before, positions, first_values):
        """(past, q, k, v, the mechanism's other arrays) of one more token x, from the past of those
        before it: the last inputs of the convolution, and the last token."""
        qkv = self._qkv_shifted(x, before)
        if self.short_conv is not None:
            conv, qkv = self.short_conv.step(conv, qkv)
        q, k, v = self._heads(*(qkv[..., columns] for columns in self._columns), positions)
        v = self._blended(v, first_values, x, before)
        past = conv, None if self.token_shift is None else x
        return past, q, k, v, {**self._learned(), **self._gates(x, before, positions)}

    def _past(self, x):
        """The past of the token after a prompt: see `_project_next`."""
        conv = last = None
        if self.short_conv is not None:
            latest = x[..., -self.mechanism.short_conv :, :]
            # only the first of the latest may lack the token before it, and `last` drops that
            qkv = self._qkv_shifted(latest, self._before(latest, Causal()))
            conv = self.short_conv.last(qkv)
        if self.token_shift is not None:
            last = self.token_shift.last(x)
        return conv, last

    def _before(self, x, mask) -> Float[Array, "*B T W"] | None:
        """The token before each, if there is a token shift."""
        return None if self.token_shift is None else self.token_shift.before(x, mask)

    def _read(self, name, x, before):
        """The input of the projection `name` for the tokens x."""
        return x if before is None else self.token_shift(name, x, before)

    def _qkv_shifted(self, x, before) -> Float[Array, "*B T C"]:
        """`_qkv`, each of q, k and v from its own mixture of tokens."""
        if before is None:
            return self._qkv(x)
        columns = dict(zip("qkv", self._columns))
        if self.mechanism.shared_qk:
            del columns["k"]
        reads = [(self._read(name, x, before), place) for name, place in columns.items()]
        return jnp.concatenate([self._qkv(*read) for read in reads], -1)

    def _qkv(self, x, columns=slice(None)) -> Float[Array, "*B T C"]:
        """Some columns of x's product with the kernel, or all."""
        y = self._times(x, self.qkv[:, columns])
        return y if self.bias is None else self._plus(y, self.bias.qkv[columns])

    def _times(self, x, kernel):
        return of_rows(lambda x: x @ kernel.astype(self.dtype), x.astype(self.dtype))

    def _plus(self, y, bias):
        return jnp.add(*aligned(y, bias.astype(self.dtype)))

    def _kv(self, context):
        """k and v of a context, by one product."""
        _, of_k, of_v = self._columns
        return jnp.split(self._qkv(context, slice(of_k.start, of_v.stop)), 2, axis=-1)

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

    def _by_head(self, x, heads, norm):
        """x with an axis of heads, each of whose parts is normalised."""
        parts, H = self.mechanism.parts, self.heads[2]
        x = x.reshape(*x.shape[:-1], heads * parts, H // parts)
        x = x if norm is None else norm(x)
        return x.reshape(*x.shape[:-2], heads, H)

    def _rotated(self, q, k, positions):
        """q and k with each part of a head rotated separately."""
        if positions is None:
            return q, k
        parts, H = self.mechanism.parts, self.heads[2]
        if wrong := turned_too_far(self.mechanism, self.rotary.width(H // parts)):
            raise ValueError(f"rotary: {wrong}")
        apart = lambda x: x.reshape(*x.shape[:-2], x.shape[-2] * parts, H // parts)
        turned = self.rotary(apart(q), apart(k), positions, xpos_centre=self.xpos_centre)
        return [y.reshape(x.shape) for x, y in zip((q, k), turned)]

    def _blended(self, v, first_values, x, before) -> Float[Array, "*B T K H"]:
        """The values v of the tokens x, blended with those of the first layer."""
        if first_values is None:
            return v
        if self.blend is None:
            what = f"expected None with {self.mechanism.name}, which takes no share of them"
            raise ValueError(f"first_values: {what}, got {list(jnp.shape(first_values))}")
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

    def _learned(self) -> dict[str, Array]:
        """The mechanism's learned arrays."""
        return {name: x[...] for name, x in self.learned.items()}
