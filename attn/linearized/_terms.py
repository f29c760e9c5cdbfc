"""What the engine works on: tokens, what a variant makes of them, states, and what queries read."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from attn._core import isolate
from attn._tokens import to_heads
from attn._wide import wide_dtype


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Terms:
    """What tokens bring to the recurrence of `_family.py`; heads may be N, the query heads, or K.
    Keys are k exp(log_weight), kept apart so that neither part overflows."""

    q: Float[Array, "*B T N M"]
    k: Float[Array, "*B S K M"]
    log_decay: Float[Array, "*B S K #M"] | None = None  # at most 0; one a head or one a channel
    erase: Float[Array, "*B S N M"] | None = None  # reads the stored value that a token erases
    remove: Float[Array, "*B S N M"] | None = None  # the key it is erased under, by default k
    log_weight: Float[Array, "*B S K"] | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The state after past tokens, float32 or wider: kv = sum_j k_j v_j^T and, if normalised, k =
    sum_j k_j, both decayed and times exp(-top).

    `top` is the largest log-weight so far, `run` the document the sums belong to, `poison` NaN if a
    visible token of it was not finite (it is left out of the sums: 0 * NaN would reach the
    gradients of documents that cannot see it), else 0.
    """

    kv: Float[Array, "*B K M D"]
    k: Float[Array, "*B K M"]
    top: Float[Array, "*B K"]
    run: Int[Array, "*B"]
    poison: Float[Array, "*B K"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tokens:
    """A stretch of queries and keys, equally many once they are in order: `seen` is False for keys
    that are hidden, `run` is the document."""

    q: Float[Array, "*B C N H"]
    k: Float[Array, "*B S K H"]
    v: Float[Array, "*B S K D"]
    gates: dict[str, Array]
    seen: Any
    run: Any


def low(dtype) -> float:
    """The log-weight of a weight of 0. Finite: -inf - -inf would be nan."""
    return float(jnp.finfo(dtype).min) / 4


def heads_of(terms: Terms) -> int:
    """How many states there are: one for each head of the keys or, if more, of the gates."""
    given = (terms.k, terms.log_decay, terms.erase, terms.remove)
    return max(x.shape[-2] for x in given if x is not None)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The properties of a variant that the shapes of its terms show."""

    states: int
    features: int
    decay: int  # gates of a state: none, one for it or one for each of its features
    erases: bool
    removes: bool
    weighs: bool

    @property
    def ordered(self) -> bool:
        """Whether the order of the tokens matters."""
        return self.decay > 0 or self.erases


def sizes(form, q, k, arrays: dict) -> Sizes:
    """The `Sizes` from one token: q [1, N, H], k [1, K, H] and gates alike (or their shapes)."""
    found = []

    def look(q, k, arrays):
        t = form.terms(q, k, **arrays)
        decay = 0 if t.log_decay is None else t.log_decay.shape[-1]
        more = (x is not None for x in (t.erase, t.remove, t.log_weight))
        found.append(Sizes(heads_of(t), t.k.shape[-1], decay, *more))
        return t.k

    jax.eval_shape(look, q, k, arrays)
    return found[0]


def empty_state(batch, size: Sizes, value_dim: int, dtype) -> State:
    """The state before any token."""
    dtype = wide_dtype(dtype)
    K, M = size.states, size.features
    return State(
        jnp.zeros((*batch, K, M, value_dim), dtype),
        jnp.zeros((*batch, K, M), dtype),
        jnp.full((*batch, K), low(dtype), dtype),
        jnp.zeros(batch, jnp.int32),
        jnp.zeros((*batch, K), dtype),
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Read:
    """What queries read, heads first: out = sums / weight + poison."""

    sums: Float[Array, "B K G C D"]
    weight: Float[Array, "B K G C"] | None  # of a normalised variant
    poison: Float[Array, "B K G C"]
    floor: float = dataclasses.field(metadata={"static": True})

    def out(self) -> Float[Array, "B C N D"]:
        x = self.sums if self.weight is None else divide(self.sums, self.weight, self.floor)
        B, K, G, C, D = x.shape
        x = x + lax.stop_gradient(self.poison)[..., None]
        return jnp.swapaxes(x.reshape(B, K * G, C, D), 1, 2)

    def pull(self, out, d_out, mute) -> tuple[Array, Array | None]:
        """The gradients of sums and weight, given that of `out`. In rows that are `mute` [B, C, N],
        as they hold what is not finite, unused numbers add nothing."""
        heads_first = lambda x: jnp.swapaxes(x, 1, 2).reshape(*self.sums.shape[:-1], *x.shape[3:])
        out, d_out, mute = map(heads_first, (out, d_out, mute))
        if self.weight is None:
            return d_out, None
        used, own = divisor(self.weight, self.floor)
        share = jnp.where(own, 1 / used, 0)
        d_weight = jnp.where(mute[..., None] & (d_out == 0), 0, d_out * out).sum(-1)
        return divide(d_out, self.weight, self.floor), -d_weight * share


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def divide(numerator, denominator, floor=0.0):
    """numerator / `divisor`."""
    return numerator / divisor(denominator, floor)[0][..., None]


@divide.defjvp
def _divide_jvp(floor, primals, tangents):
    """(dn - out dd) / d, without d^2: for a query far from all keys' features, d of 1e-20 of the
    nearest, it is 0 in float32 and made the gradient infinite."""
    (numerator, d), (dn, dd) = primals, tangents
    out = divide(numerator, d, floor)
    used, own = divisor(d, floor)
    return out, (dn - out * jnp.where(own, dd, 0)[..., None]) / used[..., None]


def divisor(d, floor: float):
    """What stands for the normaliser d, and where it is d itself: at least `floor`, or without one
    1 in place of 0, for a query that meets no key gets 0. NaN stays."""
    floor = float(floor)  # JAX takes no int beyond 32 bits, and a float64 of NumPy's widens d
    own = ~(d <= floor) if floor else d != 0
    return jnp.where(own, d, floor or 1.0), own


def beside(seen, x, n: int):
    """seen [*B, L], or [L], beside x [*B, L, ...], with n batch axes."""
    before, after = n + 1 - seen.ndim, x.ndim - n - 1
    return seen.reshape((1,) * before + seen.shape + (1,) * after)


def isolated_terms(form, learned, q, k, gates: dict[str, Array], n: int):
    """The terms, with non-finite inputs as 0, of tokens with n axes before heads; the poison of
    queries; and the poisons of keys and of each gate, whose heads may differ."""
    (q, q_poison), (k, k_poison) = isolate(q), isolate(k)
    gates, gates_poison = isolate_gates(gates, n + 1)
    terms = form.terms(q, k, **gates, **learned)
    if form.squares:
        (fq, q_over), (fk, k_over) = isolate(terms.q), isolate(terms.k)
        terms = dataclasses.replace(terms, q=fq, k=fk)
        k_poison = to_heads(k_poison, k_over.shape[-1])
        q_poison, k_poison = q_poison + q_over, k_poison + k_over
    return terms, q_poison, [k_poison, *gates_poison]


def isolate_gates(gates: dict[str, Array], n: int) -> tuple[dict, list[Float[Array, "*L K"]]]:
    """`isolate` of gates, whose first n axes are [*L, K]; a channel may follow. A `log_decay` of
    -inf is a valid decay to 0."""
    clean, poison = {}, []
    for name, x in gates.items():
        fine = jnp.isfinite(x) | ((x == -jnp.inf) & (name == "log_decay"))
        fine = fine.all(tuple(range(n, x.ndim)))
        clean[name] = jnp.where(fine.reshape(fine.shape + (1,) * (x.ndim - n)), x, 0)
        poison.append(jnp.where(fine, 0, jnp.nan).astype(x.dtype))
    return clean, poison
