"""What a mask, a bias or an option adds to plain causal attention of the same shape."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn import Alibi, ArrayBias, Causal, Padding, Segments, dot_product_attention
from attn.positions import alibi_slopes
from experiments.measure import cost, turns
from experiments.measure.attention import labels, needed, runs
from experiments.measure.options import Options
from experiments.measure.oracle import Softmax
from experiments.measure.turns import MODES, Contender, Group, Ready, Row
from experiments.measure.verdict import judge

PLAIN = "plain"
RATE = 0.1


@dataclasses.dataclass(frozen=True)
class Variant:
    """Keyword arguments of `dot_product_attention`: `arrays` are given to the compiled function,
    `fixed` are part of it."""

    arrays: dict[str, Any]
    fixed: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def everything(self) -> dict[str, Any]:
        return self.arrays | self.fixed


def variants(shape: cost.Shape) -> dict[str, Callable[[], Variant]]:
    """name -> what makes it, since some are large."""
    B, T, N = shape.B, shape.T, shape.N
    lengths = jnp.asarray([T - b * T // (2 * B) for b in range(B)])
    documents = jnp.asarray(np.sort(np.random.default_rng(0).integers(0, 4, (B, T)), 1))
    normal = functools.partial(jax.random.normal, jax.random.key(7))
    causal = {"mask": Causal()}
    return {
        PLAIN: lambda: Variant(causal),
        "padding": lambda: Variant({"mask": Causal() & Padding(lengths)}),
        "segments": lambda: Variant({"mask": Causal() & Segments(documents, documents)}),
        "ALiBi": lambda: Variant(causal | {"bias": Alibi(jnp.asarray(alibi_slopes(N)))}),
        "array bias": lambda: Variant(causal | {"bias": ArrayBias(normal((1, N, T, T)))}),
        "sinks": lambda: Variant(causal | {"sinks": normal((N,))}),
        "logit cap": lambda: Variant(causal, {"logit_cap": 5.0}),
        "dropout": lambda: Variant(
            causal | {"dropout_key": jax.random.key(8)}, {"dropout_rate": RATE}
        ),
    }


def definition(variant: Variant, shape: cost.Shape, inputs: tuple) -> Softmax:
    """The variant in float64."""
    options = variant.everything
    bias, sinks = options.get("bias"), options.get("sinks")
    last = lambda x, n: np.asarray(x).reshape(-1, shape.N, *x.shape[-2:])[-1, n]
    return Softmax(
        options["mask"],
        bias=None if bias is None else lambda n, i, j: last(bias.at(i, j), n),
        cap=options.get("logit_cap"),
        sinks=None if sinks is None else np.asarray(sinks),
        kept=_kept(options, inputs) if "dropout_key" in options else None,
    )


def _kept(options: dict[str, Any], inputs: tuple) -> Callable:
    # the words that decide what is dropped are not public: only this check looks at them
    from attn._dropout import as_dropout

    dropout = as_dropout(options["dropout_rate"], options["dropout_key"], *inputs[:2])
    row = jax.jit(lambda n: dropout.of_scores(jnp.ones((1, 1, 1, 1)))[-1, n])
    whole = functools.cache(lambda n: np.asarray(row(n), np.float64))
    return lambda n, i, j: whole(n)[i, j]


@dataclasses.dataclass(frozen=True)
class Masking:
    title: str = "masks, biases and options on causal softmax"
    ours: str = "softmax"
    note: str = (
        "All ours. Gradients are those of q, k and v. `x plain` is the ratio of minimum times to "
        "plain causal attention, in the same turns (in the summary under each name); at most 1.3 "
        "is aimed at. Padding hides up to a quarter of the keys of one row, segments are four "
        "documents of random length a row."
    )
    modes: tuple[str, ...] = MODES
    against: dict[str, int] = dataclasses.field(default_factory=dict)

    def rows(self, options: Options) -> Iterator[list[Row]]:
        every = itertools.product(turns.shapes(options, 2, (2048, 4096)), self.modes)
        for shape, mode in every:
            inputs = shape.inputs()
            contenders = {
                name: Contender(
                    functools.partial(_prepare, make, shape, inputs, mode),
                    functools.partial(_judge, make, shape, inputs[0]),
                    ours=True,
                    work=needed(shape, make().arrays["mask"], mode),
                )
                for name, make in variants(shape).items()
            }
            yield turns.measure(Group(labels(shape, mode), contenders), options)


def _prepare(make: Callable, shape: cost.Shape, inputs: list[tuple], mode: str) -> Ready:
    variant = make()
    attend = lambda q, k, v, arrays: dot_product_attention(q, k, v, **arrays, **variant.fixed)
    facts = runs(shape, **variant.everything)
    return turns.compiled(attend, inputs, mode, variant.arrays, **facts)


def _judge(make: Callable, shape: cost.Shape, inputs: tuple, results):
    return judge(definition(make(), shape, inputs), inputs, shape.dtype)(results)
