"""Longformer's window with global tokens (Beltagy et al. 2020, arXiv:2004.05150): O(T w) time."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attn._arrays import check_floats
from attn._axes import aligned
from attn._core import dense_attention
from attn._dropout import dropout_of
from attn._explicit import auto_inside
from attn._inputs import check_qkv
from attn._places import Places
from attn._settings import check_count
from attn.biases import Bias
from attn.masks import FULL, Global, Mask, Window
from attn.sparse._parts import attend_parts
from attn.sparse._patterned import Patterned
from attn.sparse._reorder import Part

NAMES = ("global_q", "global_k", "global_v")


def global_window_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    window: int,
    positions: tuple[int, ...] = (0,),
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    global_q: Float[Array, "*B T N H"] | None = None,
    global_k: Float[Array, "*B S K H"] | None = None,
    global_v: Float[Array, "*B S K D"] | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(q k^T / sqrt(H) + bias) v over keys at most `window` away, and `positions` that see
    all and are seen by all.

    Longformer (Beltagy et al. 2020, arXiv:2004.05150), whose window of w is w / 2 on each side. If
    global_q, global_k and global_v are given, the queries at `positions` are those of global_q and
    attend to global_k and global_v. O(T (window + positions)) time, O(T) memory. Takes any mask and
    bias; positions past the end of the sequence are ignored. Raises ValueError for a negative
    window or position, and for some of the global arrays without the others or of other shapes.
    """
    given = dict(zip(NAMES, (global_q, global_k, global_v)))
    given = {name: x for name, x in given.items() if x is not None}
    record = GlobalWindow(window=window, positions=positions, separate=bool(given))
    return record(q, k, v, mask=mask, bias=bias, **given)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlobalWindow(Patterned):
    """Softmax over a window and global tokens, both ways (Longformer, Beltagy et al. 2020);
    `separate` projections for the attention of global tokens, which the paper always has."""

    window: int = 256
    positions: tuple[int, ...] = (0,)
    separate: bool = False

    def __post_init__(self):
        super().__post_init__()
        check_count("window", self.window, least=0)
        object.__setattr__(self, "positions", Global(self.positions).positions)

    def gates(self, *, num_heads, num_kv_heads, head_dim):
        shapes = (num_heads, head_dim), (num_kv_heads, head_dim), (num_kv_heads, head_dim)
        return dict(zip(NAMES, shapes)) if self.separate else {}

    @property
    def gates_like(self):
        return {"global_q": "q", "global_k": "k"} if self.separate else {}

    def patterns(self, T, S):
        return (Window(self.window, self.window) | Global(self.positions),)

    def pieces(self, T, S):
        near, rows, columns = self._near_and_columns(T, S)
        # the keys that global tokens see besides these
        others = Places.of(np.setdiff1d(np.arange(S), columns.array()))
        if len(rows) and len(others):
            near = (*near, Part(~Window(self.window, self.window), queries=rows, keys=others))
        return (near,)

    def _near_and_columns(self, T, S):
        """The window with the global tokens as keys, and the places of global queries and keys."""
        near = Window(self.window, self.window)
        there = lambda L: Places.of([p for p in self.positions if p < L])
        rows, columns = there(T), there(S)
        seen = (Part(near), Part(~near, keys=columns)) if len(columns) else (Part(near),)
        return seen, rows, columns

    @auto_inside
    def __call__(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None, **given) -> Array:
        if not self.separate and not given:
            return super().__call__(q, k, v, mask=mask, bias=bias, dropout_key=dropout_key)
        asked = self._checked(q, k, v, mask, bias, given)
        mask, bias = check_qkv(q, k, v, mask, bias)
        options = {"dropout": dropout_of(self, dropout_key, q, k), "block": self.block}
        parts, rows, _ = self._near_and_columns(q.shape[-3], k.shape[-3])
        out = attend_parts((parts,), q, k, v, mask, bias, **options)
        if not len(rows):
            return out
        everything = ((Part(FULL, queries=rows),),)
        return self._by_row(attend_parts(everything, *asked, mask, bias, **options), out)

    def reference(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None, **given):
        if not self.separate and not given:
            return super().reference(q, k, v, mask=mask, bias=bias, dropout_key=dropout_key)
        asked = self._checked(q, k, v, mask, bias, given)
        mask, bias = check_qkv(q, k, v, mask, bias)
        options = {"bias": bias, "dropout": dropout_of(self, dropout_key, q, k)}
        (pattern,) = self.patterns(q.shape[-3], k.shape[-3])
        out = dense_attention(q, k, v, mask=mask & pattern, **options)
        return self._by_row(dense_attention(*asked, mask=mask, **options), out)

    def _by_row(self, asked, out):
        """`asked` in the rows of global tokens, `out` in all others."""
        row = np.isin(np.arange(out.shape[-3]), self.positions)[:, None, None]
        return jnp.where(*aligned(row, asked, out))

    def _checked(self, q, k, v, mask, bias, given):
        """The global arrays in order. Raises ValueError unless all are there, shaped as q, k, v."""
        if set(given) != set(NAMES if self.separate else ()):
            wanted = ", ".join(NAMES) if self.separate else "none, without `separate`"
            raise ValueError(f"{self.name}: expected the arrays {wanted}, got {sorted(given)}")
        arrays = tuple(given[name] for name in NAMES)
        check_floats(**given)
        for name, x, like in zip(NAMES, arrays, (q, k, v)):
            if x.shape != like.shape:
                raise ValueError(f"{name}: expected {list(like.shape)}, got {list(x.shape)}")
        arrays = tuple(x.astype(q.dtype) for x in arrays)
        check_qkv(*arrays, mask, bias)
        return arrays

    def weights(self, q, k, *, mask=FULL, bias=None, **given):
        if self.separate or given:
            raise NotImplementedError(f"{self.name} with separate projections has no one matrix")
        return super().weights(q, k, mask=mask, bias=bias)

    def init_state(self, batch, **sizes):
        self._check_decodes()
        return super().init_state(batch, **sizes)

    def prefill(self, q, k, v, **options):
        self._check_decodes()
        return super().prefill(q, k, v, **options)

    def step(self, state, q, k, v, **options):
        self._check_decodes()
        return super().step(state, q, k, v, **options)

    def _check_decodes(self):
        if self.separate:
            raise NotImplementedError(
                f"{self.name} with separate projections does not decode token by token: a global "
                "token asks of all, and is an encoder's"
            )

    @classmethod
    def examples(cls):
        return cls(window=2, positions=(0, 7), block=8), cls(window=0, positions=(18, 40))
