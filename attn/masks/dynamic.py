"""Dynamic terms: they hold arrays, with batch axes, and are evaluated on visited indices only."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array as JaxArray
from jaxtyping import Bool, Int

from attn._axes import aligned, conjunction
from attn._integers import check_fits
from attn.masks.fields import fits
from attn.masks.language import Mask, term
from attn.masks.record import array_field


@term
class Padding(Mask):
    """Keys at or past `lengths` are hidden; or, in boolean form, keys where `keys` is False are
    hidden and queries where `queries` is False see nothing."""

    lengths: Int[JaxArray, "*B"] | None = array_field(0, default=None)
    keys: Bool[JaxArray, "*B S"] | None = array_field(1, default=None, kw_only=True)
    queries: Bool[JaxArray, "*B T"] | None = array_field(1, default=None, kw_only=True)

    def __post_init__(self):
        if self.lengths is None and self.keys is None and self.queries is None:
            raise ValueError("Padding: expected lengths, keys or queries, got none of them")
        _as_array(self, "lengths", np.integer)
        _as_array(self, "keys", np.bool_)
        _as_array(self, "queries", np.bool_)

    def _meet(self, other):
        """The shorter lengths; the keys and queries that both masks show."""
        if not type(self) is type(other) is Padding:  # a mask that inherits from it sees others
            return None
        if not all(_alike(self, other, field) for field in dataclasses.fields(self)):
            return None  # each is checked by itself
        join = lambda f, a, b: b if a is None else a if b is None else f(a, b)
        shorter = lambda a, b: jnp.minimum(*aligned(a, b))
        return Padding(
            join(shorter, self.lengths, other.lengths),
            keys=join(conjunction, self.keys, other.keys),
            queries=join(conjunction, self.queries, other.queries),
        )

    def _check(self, batch, T, S):
        fits("Padding.lengths", self.lengths, batch, ())
        fits("Padding.keys", self.keys, batch, (S,))
        fits("Padding.queries", self.queries, batch, (T,))

    def sees(self, i, j):
        seen = []
        if self.lengths is not None:
            lengths = self.lengths.reshape(self.lengths.shape + (1,) * j.ndim)
            seen.append(jnp.less(*aligned(j, lengths)))
        if self.keys is not None:
            seen.append(_look(self.keys, j))
        if self.queries is not None:
            seen.append(_look(self.queries, i))
        return conjunction(*seen)

    def seen_keys(self, S: int) -> Bool[JaxArray, "*B S"]:
        """Which of S keys are not padding."""
        seen = [jnp.ones(S, bool)]
        if self.lengths is not None:
            keys = jnp.arange(S, dtype=self.lengths.dtype)
            seen.append(jnp.less(*aligned(keys, self.lengths[..., None])))
        if self.keys is not None:
            seen.append(self.keys)
        return conjunction(*seen)

    def seen_queries(self, T: int) -> Bool[JaxArray, "*B T"]:
        """Which of T queries may see anything."""
        return jnp.ones(T, bool) if self.queries is None else self.queries


def _alike(one: Padding, other: Padding, field: dataclasses.Field) -> bool:
    """Whether their arrays, where both have one, can be joined: same length, same batch axes or
    none."""
    a, b, rank = getattr(one, field.name), getattr(other, field.name), field.metadata["rank"]
    if a is None or b is None:
        return True
    lead, others = (x.shape[: x.ndim - rank] for x in (a, b))
    if lead and others and len(lead) != len(others):
        return False
    alike = all(n == m or 1 in (n, m) for n, m in zip(lead, others))
    return alike and a.shape[len(lead) :] == b.shape[len(others) :]


@term
class Segments(Mask):
    """query_ids[i] == key_ids[j]: packed documents see only themselves. Without `key_ids` the keys
    are of the queries' documents, token by token (the same array given twice means that too).

    All tokens with one id are one document, even if not adjacent, to attention, sums, states of
    linear attention and the taps of convolutions; only recurrent layers (`attn.nn.LSTM`,
    `attn.nn.GRU`) restart at each change of id.
    """

    query_ids: Int[JaxArray, "*B T"] = array_field(1)
    key_ids: Int[JaxArray, "*B S"] | None = array_field(1, default=None)

    def __post_init__(self):
        if self.query_ids is None:
            raise ValueError("Segments.query_ids: expected integers [..., length], got None")
        if self.key_ids is self.query_ids:
            object.__setattr__(self, "key_ids", None)
        _as_array(self, "query_ids", np.integer)
        _as_array(self, "key_ids", np.integer)

    @property
    def ids(self) -> tuple[Int[JaxArray, "*B T"], Int[JaxArray, "*B S"]]:
        """Those of the queries and those of the keys."""
        return self.query_ids, self.query_ids if self.key_ids is None else self.key_ids

    def _check(self, batch, T, S):
        if self.key_ids is None and T != S:
            raise ValueError(
                f"Segments.key_ids: expected those of {S} keys, got none for {T} queries"
            )
        for name, ids, length in zip(("query_ids", "key_ids"), self.ids, (T, S)):
            fits(f"Segments.{name}", ids, batch, (length,))

    def sees(self, i, j):
        queries, keys = self.ids
        inside = _inside(i, queries.shape[-1]) & _inside(j, keys.shape[-1])
        return conjunction(jnp.equal(*aligned(_look(queries, i), _look(keys, j))), inside)


@term
class Array(Mask):
    """Any boolean array [*B, T, S], True where seen; outside it nothing is seen.

    Against batched q the batch axes must be there (1 broadcasts): a bare [T, S] or [B, S] is
    ambiguous when B == T and is refused.
    """

    seen: Bool[JaxArray, "*B T S"] = array_field(2)

    def __post_init__(self):
        _as_array(self, "seen", np.bool_)
        if self.seen is None or self.seen.ndim < 2:
            got = None if self.seen is None else list(self.seen.shape)
            raise ValueError(f"Array: expected a boolean array [..., T, S], got {got}")

    def _check(self, batch, T, S):
        x = self.seen
        if x.ndim != len(batch) + 2:
            advice = (
                "a mask is the same for all heads: call once for each, or give a bias that is -inf "
                "where a head sees nothing"
                if x.ndim > len(batch) + 2
                else "write Array(m[None]) for one mask over the batch, Padding(keys=m) for [B, S]"
            )
            raise ValueError(
                f"Array: expected {len(batch) + 2} axes {[*batch, T, S]}, got {list(x.shape)}; "
                + advice
            )
        fits("Array", x, batch, (T, S))

    def sees(self, i, j):
        T, S = self.seen.shape[-2:]
        if T == 0 or S == 0:
            shape = (*self.seen.shape[:-2], *np.broadcast_shapes(i.shape, j.shape))
            return jnp.zeros(shape, bool)
        seen = self.seen[..., jnp.clip(i, 0, T - 1), jnp.clip(j, 0, S - 1)]
        return conjunction(seen, _inside(i, T), _inside(j, S))


def _as_array(term, name, kind):
    value = getattr(term, name)
    if value is None:
        return
    if not isinstance(value, jax.Array):
        try:
            value = np.asarray(value)
        except ValueError:  # NumPy's words name neither the mask nor the field
            what = f"{type(term).__name__}.{name}: expected rows of one length"
            raise ValueError(f"{what}, got some of others; pad them") from None
    if not jnp.issubdtype(value.dtype, kind):
        want = "booleans" if kind is np.bool_ else "integers"
        hint = "; write Padding(keys=...)" if name == "lengths" and value.dtype == np.bool_ else ""
        raise TypeError(f"{type(term).__name__}.{name}: expected {want}, got {value.dtype}{hint}")
    if value.ndim == 0 and term.__dataclass_fields__[name].metadata["rank"]:
        what = "expected an array [..., length]"
        raise ValueError(f"{type(term).__name__}.{name}: {what}, got {value}")
    # with x64 they are compared in 64 bits
    held = jax.dtypes.canonicalize_dtype(np.int64)
    check_fits(f"{type(term).__name__}.{name}", value, held)
    if value.dtype not in (np.bool_, np.int32, np.int64):  # short and unsigned ones meet indices
        value = jnp.asarray(value, np.int32 if np.can_cast(value.dtype, np.int32) else held)
    object.__setattr__(term, name, jnp.asarray(value))


def _inside(index, size):
    return (index >= 0) & (index < size)


def _look(x, index):
    """x[..., index]; False or 0 outside."""
    size = x.shape[-1]
    if size == 0:
        return jnp.zeros(x.shape[:-1] + index.shape, x.dtype)
    got = jnp.take(x, jnp.clip(index, 0, size - 1), axis=-1)
    inside, got = aligned(_inside(index, size), got)
    return jnp.where(inside, got, jnp.zeros((), x.dtype))
