"""Mechanism: the record of an attention variant, held by configs, encoders, tests and tables."""

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

    Calling it maps q [*B, T, N, H], k [*B, S, K, H], v [*B, S, K, D] to [*B, T, N, D] in q's dtype;
    N is a multiple of K. A mask term or bias that is not in `honours` raises NotImplementedError,
    as do methods that it does not offer (`weights`, decoding). Learned arrays (of `init`) and
    per-token gates (of `gates`) are passed as keyword arguments under their names there; a variant
    with a `dropout_rate` above 0 also takes a `dropout_key`, None to drop nothing. A variant's
    record is not subclassed further.
    """

    honours: ClassVar[tuple[type[Mask] | type[Bias], ...]] = ()
    # mask terms that it needs: a mask without them is refused
    requires: ClassVar[tuple[type[Mask], ...]] = ()
    # a factor on the bounds of the numerical contract, with the reason beside it
    room: ClassVar[float] = 1.0
    # the share of weights dropped in training: a field of the variants that support it
    dropout_rate: ClassVar[float] = 0.0
    # what a layer adds, as fields of the variants whose papers have it: the taps of a causal
    # convolution with SiLU on q, k and v; an output gate, "silu" or "sigmoid" of a projection of x
    short_conv: ClassVar[int] = 0
    output_gate: ClassVar[str | None] = None
    # whether that convolution has a bias; whether that gate is applied before the norm
    conv_bias: ClassVar[bool] = False
    gates_first: ClassVar[bool] = False
    # the initial value of learned weights by which a layer adds each token's `own` share of its
    # value to each head's output, after the norm; None adds nothing
    bonus: ClassVar[float | None] = None
    # the rank of the networks by which the shares of `shifts` depend on the token, 0 for shares
    # that are the same for every token
    shift_rank: ClassVar[int] = 0
    # how many vectors a head's q and k hold side by side: a layer rotates each separately
    parts: ClassVar[int] = 1
    # how many of the first channels of q and k a layer may rotate; None: all
    turnable: ClassVar[int | None] = None
    # learned arrays that all layers of a stack share
    shared_by_layers: ClassVar[tuple[str, ...]] = ()
    # whether an output depends on its query and the keys alone: not on the query's position, nor on
    # other queries, which in a decoder are not generated yet
    crosses: ClassVar[bool] = False
    # whether it divides each query and key by its size: it would undo what a layer scales them by
    qk_norm: ClassVar[bool] = False
    # whether a layer projects one array for q and k
    shared_qk: ClassVar[bool] = False
    # whether all heads compute the same function: one alone gives what it gives among others
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
        """Operations of the matrix products of one forward pass as it runs, for batch 1 and no mask
        but what it `requires`: visited blocks count whole."""

    @property
    def linear_memory(self) -> bool:
        """Whether it promises memory linear in T and S, forward and backward."""
        return True

    @property
    def shifts(self) -> dict[str, Initializer]:
        """Token shift: which of "q", "k", "v", the `gates` and "output_gate" a layer projects from
        a mixture of each token and the previous one, with an initializer (as `attn.gates.Fading`)
        of the previous token's share in each channel. {} mixes nothing. With a `shift_rank`,
        "shares" is the mixture that the networks of the shares read."""
        return {}

    @property
    def gates_like(self) -> dict[str, str]:
        """Those of `gates` that are queries [*B, T, N, H] or keys [*B, S, K, H], as "q" or "k": a
        layer normalises and rotates them as it does q or k."""
        return {}

    def gating(self, *, num_heads: int, head_dim: int) -> Gate | None:
        """A layer's output gate, if it is not simply `output_gate` of one linear projection."""
        return None

    def blending(self, *, num_kv_heads: int, head_dim: int) -> Gate | None:
        """The per-token gate for how much of the first layer's value each value takes; None takes
        nothing."""
        return None

    @property
    def head_norm(self) -> HeadNorm | None:
        """The norm that a layer applies to the output, None for none."""
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
        """Learned arrays, float32, to be passed as keyword arguments. {} if there are none."""
        return {}

    def own(self, q, k, **arrays: Array) -> Float[Array, "*B T N"]:
        """How much of its own value a token adds to each head's output: in the recurrence or, with
        a `bonus`, in the layer after the norm, which passes its weights [N, H] as `bonus` too."""
        raise NotImplementedError(f"{self.name} adds nothing of its own value")

    def check_learned(self, q, k, v, /, **learned: Array) -> None:
        """Raise ValueError or TypeError, by name, unless `learned` is what `init` makes for the
        heads and widths of q, k and v; the length of an axis that grows with `max_length` is not
        checked."""
        check_qkv(q, k, v, FULL)
        heads = {"num_heads": q.shape[-2], "num_kv_heads": k.shape[-2]}
        widths = {"head_dim": q.shape[-1], "value_dim": v.shape[-1]}
        check_arrays(self.name, learned, learned_shapes(self, **heads, **widths))

    def gates(
        self, *, num_heads: int, num_kv_heads: int, head_dim: int
    ) -> dict[str, Gate | StepDecay | tuple[int, ...]]:
        """Per-token inputs that the layer projects from x, by name: the gate that does so, or only
        the shape after [*B, T]."""
        return {}

    def gate_shapes(self, *, num_heads, num_kv_heads, head_dim) -> dict[str, tuple[int, ...]]:
        """The shapes of `gates`, after [*B, T]."""
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
        """Decode one token, q [*B, 1, N, H] and so on: equals `__call__` with `mask=Causal()`
        there. This and `prefill` also take the `bias` of the whole sequence, where the mechanism
        honours one."""
        raise NotImplementedError(f"{self.name} does not decode token by token")

    def prefill(self, q, k, v, *, max_length: int, **learned) -> tuple[Any, Float[Array, "..."]]:
        """(state, out) after a prompt of T tokens, processed at once: `out` is that of
        `mask=Causal()`, and `step` goes on from `state` up to `max_length` tokens. Raises
        ValueError for a longer prompt, even where the state has room, and for other than T keys."""
        raise NotImplementedError(f"{self.name} does not decode token by token")

    @property
    def name(self) -> str:
        """The class name, for messages; `MECHANISMS` has the key that configs use."""
        return type(self).__name__
