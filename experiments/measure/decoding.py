"""Decoding: one token against a full cache, held against the speed of a copy."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np

from attn import Causal
from experiments.measure import cost, machine, oracle, turns
from experiments.measure.attention import labels
from experiments.measure.caches import PEERS, STEPS, Tokens, attn_cache, in_jax
from experiments.measure.options import Options
from experiments.measure.turns import OURS, Contender, Group, Ready, Row, Unavailable
from experiments.measure.verdict import judge


@dataclasses.dataclass(frozen=True)
class Decoding:
    """`copy` is the machine copying 128 MB, in turns with the others."""

    title: str = "decoding a token against a cache"
    ours: str = "softmax"
    note: str = (
        f"Milliseconds a token, of {STEPS} in a row that update the cache in place. `% of copy` is "
        "the bytes of keys and values that a token must read per second, against the bytes that a "
        "copy on all cores reads and writes per second, in the same turns. Targets: 5x faster than "
        "jax.nn, 70% of copy, multi-query 4x faster than multi-head."
    )
    lengths: tuple[int, ...] = (8192,)
    batch: int = 4  # with 8 heads of 64 the cache is 134 MB, past every cache of the machine
    heads: tuple[tuple[int, int], ...] = ((8, 8), (8, 2), (8, 1))
    against: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(PEERS, 2**20))

    def rows(self, options: Options) -> Iterator[list[Row]]:
        every = itertools.product(
            options.dtypes or ("float32",), options.widths or (64,),
            options.lengths or self.lengths, options.heads or self.heads,
        )  # fmt: skip
        for dtype, width, L, (N, K) in every:
            shape = cost.Shape(self.batch, L, N, K, width, dtype)
            rows = turns.measure(self.group(shape, options), options)
            copied = next(r["bytes_per_second"] for r in rows if r["contender"] == "copy")
            for row in rows:
                if row.get("bytes_per_second") and row["contender"] != "copy":
                    row["copy_share"] = row["bytes_per_second"] / copied
            yield rows

    def group(self, shape: cost.Shape, options: Options) -> Group:
        # a state serves every third round, the check and the warm-up
        tokens = Tokens(shape, STEPS * (options.rounds // cost.ROTATED + 3))
        moved = 2 * shape.B * shape.K * shape.T * shape.H * jnp.dtype(shape.dtype).itemsize
        verdict = functools.cache(functools.partial(_judge, tokens))

        def contender(make: Callable[[Tokens], Ready], ours: bool = False) -> Contender:
            prepare = functools.partial(_prepare, make, tokens)
            return Contender(prepare, lambda x: verdict()(x), ours, moved=moved, per=STEPS)

        copy = machine.copy()
        others = {name: contender(PEERS[name]) for name in options.peers(self.against)}
        contenders = {OURS: contender(lambda t: in_jax(t, attn_cache), ours=True), **others}
        contenders["copy"] = Contender(lambda: Ready(copy, None), None, moved=copy.bytes)
        return Group(labels(shape, "decode"), contenders)


def _prepare(make: Callable[[Tokens], Ready], tokens: Tokens) -> Ready:
    if tokens.prompt < 1:
        raise Unavailable(f"{tokens.room} tokens do not fit a cache of {tokens.shape.T}")
    return make(tokens)


def _judge(tokens: Tokens) -> Callable:
    (_, k, v), (q, new_k, new_v) = tokens.make(0)
    join = lambda *x: np.concatenate([np.asarray(y) for y in x], 1)
    inputs = q, join(k, new_k), join(v, new_v), q  # no gradient is looked at
    definition = oracle.Softmax(Causal(offset=tokens.prompt))
    return judge(definition, inputs, tokens.shape.dtype)
