"""Mechanism: the record beside every variant, which configs, encoders, tests and tables hold."""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
from jaxtyping import Array, Float

from attn._arrays import check_arrays, learned_shapes
from attn._inputs import check_qkv
from attn.biases import Bias
from attn.gates import Gate, Initializer, StepDecay
from attn.masks import FULL, Mask
from attn.norms import HeadNorm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism(abc.ABC):
    """One attention variant with its settings: hashable, comparable, made of plain values.

    Calling it maps q [*B, T, N, H], k [*B, S, K, H], v [*B, S, K, D] to [*B, T, N, D] in q's
    dtype; N is a multiple of K. What is not in `honours` (a mask term, a bias) is refused with
    NotImplementedError, as is what it does not offer (`weights`, decoding). Learned arrays (`init`)
    and per-token gates (`gates`) come back as keyword arguments under the names they were given
    out; a variant with a `dropout_rate` above 0 takes a `dropout_key` too, None for none. Subclass
    it once per variant, never deeper.
    """

    honours: ClassVar[tuple[type[Mask] | type[Bias], ...]] = ()
    # mask terms without which it is not defined, and refused
    requires: ClassVar[tuple[type[Mask], ...]] = ()
    # how much more room than the contract of numbers it needs, with the reason beside it
    room: ClassVar[float] = 1.0
    # the share of weights dropped while training: a field of the variants that can
    dropout_rate: ClassVar[float] = 0.0
    # what the layer adds where the paper has it, fields of the variants that do: taps of a causal
    # convolution with SiLU on q, k and v; "silu" or "sigmoid" of a projection of x on the output
    short_conv: ClassVar[int] = 0
    output_gate: ClassVar[str | None] = None
    # whether that convolution has a bias, and the gate comes before the norm
    conv_bias: ClassVar[bool] = False
    gates_first: ClassVar[bool] = False
    # a layer adds a token's `own` share of its value to each head's output, after the norm, by
    # learned weights that start at this number; None adds nothing
    bonus: ClassVar[float | None] = None
    # the rank of the networks by which the shares of `shifts` follow the token, 0 for shares that
    # are the same for every token
    shift_rank: ClassVar[int] = 0
    # how many vectors a head's q and k hold side by side: a layer rotates each by itself
    parts: ClassVar[int] = 1
    # learned arrays that all layers of a stack have in common
    shared_by_layers: ClassVar[tuple[str, ...]] = ()
    # whether an output depends on its query and the keys alone: not on where the query stands, nor
    # on other queries, which in a decoder would be tokens that are not written yet
    crosses: ClassVar[bool] = False
    # whether a layer projects one array for q and k
    shared_qk: ClassVar[bool] = False
    # whether every head does the same: one alone gives what it gives beside the others
    heads_alike: ClassVar[bool] = True
    # whether the query heads of one key head choose keys together
    shares_selection: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(
        self,
        q: Float[Array, "*B T N H"],
        k: Float[Array, "*B S K H"],
        v: Float[Array, "*B S K D"],
        *,
        mask: Mask = FULL,
        bias: Bias | Float[Array, "..."] | None = None,
        **learned: Array,
    ) -> Float[Array, "*B T N D"]:
        """The attention output. Every variant takes `mask` and `bias`, if only to refuse them."""

    @abc.abstractmethod
    def reference(self, q, k, v, *, mask: Mask = FULL, bias=None, **learned):
        """The definition, O(T S), in any float dtype: what `__call__` must equal."""

    @classmethod
    @abc.abstractmethod
    def examples(cls) -> tuple["Mechanism", ...]:
        """Small settings that together reach every branch."""

    @abc.abstractmethod
    def flops(self, T: int, S: int, N: int, K: int, H: int, D: int) -> int:
        """Operations of the matrix products of one forward pass as it runs, batch 1: visited blocks
        count whole. Without any mask but what it `requires`."""

    @property
    def linear_memory(self) -> bool:
        """Whether it promises memory linear in T and S, forward and backward."""
        return True

    @property
    def shifts(self) -> dict[str, Initializer]:
        """What the layer projects from a mixture of a token and the one before it, of "q", "k",
        "v", the names of `gates` and "output_gate": how the share of the token before starts in
        each channel, as `attn.gates.Fading` does. {} mixes nothing. With a `shift_rank`, "shares"
        is what the networks of the shares read."""
        return {}

    @property
    def gates_like(self) -> dict[str, str]:
        """Those of `gates` that are queries [*B, T, N, H] or keys [*B, S, K, H], by "q" or "k": a
        layer normalises and rotates them as it does that one."""
        return {}

    def gating(self, *, num_heads: int, head_dim: int) -> Gate | None:
        """The output gate of a layer, if it is made otherwise than `output_gate` of one product."""
        return None

    def blending(self, *, num_kv_heads: int, head_dim: int) -> Gate | None:
        """How much of the first layer's value each value takes, by a gate of the token; None takes
        nothing."""
        return None

    @property
    def head_norm(self) -> HeadNorm | None:
        """The norm that a layer puts on the output, None for none."""
        return None

    def init(
        self,
        key: jax.Array,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int,
        max_length: int,
    ) -> dict[str, Array]:
        """Learned arrays, float32, passed back as keyword arrays. {} if there are none."""
        return {}

    def own(self, q, k, **arrays: Array) -> Float[Array, "*B T N"]:
        """How much of its own value a token adds to each head's output, in the recurrence or, with
        a `bonus`, in the layer after the norm, which gives its weights [N, H] as `bonus` too."""
        raise NotImplementedError(f"{self.name} adds nothing of its own value")

    def check_learned(self, q, k, v, /, **learned: Array) -> None:
        """Raise ValueError or TypeError, by name, unless `learned` is what `init` makes for the
        heads and widths of q, k and v; how far an axis of `max_length` must reach is not asked."""
        check_qkv(q, k, v, FULL)
        heads = {"num_heads": q.shape[-2], "num_kv_heads": k.shape[-2]}
        widths = {"head_dim": q.shape[-1], "value_dim": v.shape[-1]}
        check_arrays(self.name, learned, learned_shapes(self, **heads, **widths))

    def gates(
        self, *, num_heads: int, num_kv_heads: int, head_dim: int
    ) -> dict[str, Gate | StepDecay | tuple[int, ...]]:
        """Per-token inputs that the layer projects from x, by name: how, or their bare shapes after
        [*B, T]."""
        return {}

    def gate_shapes(self, *, num_heads, num_kv_heads, head_dim) -> dict[str, tuple[int, ...]]:
        """The shapes alone of `gates`."""
        gates = self.gates(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
        return {name: tuple(getattr(gate, "shape", gate)) for name, gate in gates.items()}

    def weights(self, q, k, *, mask: Mask = FULL, bias=None, **learned) -> Float[Array, "*B N T S"]:
        """The effective matrix W of each head, `out = W v`, by the same maths as `__call__`."""
        raise NotImplementedError(f"{self.name} has no T x S matrix to show")

    def init_state(
        self,
        batch: tuple[int, ...],
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int,
        max_length: int,
        dtype: Any = "float32",
    ) -> Any:
        """The empty state of token-by-token causal decoding, a pytree of arrays."""
        raise NotImplementedError(f"{self.name} does not decode token by token")

    def step(self, state: Any, q, k, v, **learned) -> tuple[Any, Float[Array, "*B 1 N D"]]:
        """One token, q [*B, 1, N, H] and so on: equals `__call__` with `mask=Causal()` there. This
        and `prefill` take a `bias` too, that of the whole, where the mechanism honours one."""
        raise NotImplementedError(f"{self.name} does not decode token by token")

    def prefill(self, q, k, v, *, max_length: int, **learned) -> tuple[Any, Float[Array, "..."]]:
        """(state, out) after the T tokens of a prompt at once: `out` is that of `mask=Causal()`,
        and `step` goes on from `state` up to `max_length` tokens. ValueError for more than that in
        the prompt, also where a state would not be full, and for other than T keys."""
        raise NotImplementedError(f"{self.name} does not decode token by token")

    @property
    def name(self) -> str:
        """The class name, for messages; `MECHANISMS` has the key that configs use."""
        return type(self).__name__
