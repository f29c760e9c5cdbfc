"""Every sparse and compressed variant, over lengths at which what they claim can be seen."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from attn import Mechanism
from attn.testing.cases import base_mask
from experiments.measure import cost, turns
from experiments.measure.attention import PRODUCTS, labels
from experiments.measure.machine import on_cpu
from experiments.measure.options import Options
from experiments.measure.turns import MODES, OURS, Contender, Group, Row
from experiments.measure.verdict import Verdict, worst


@dataclasses.dataclass(frozen=True)
class Sparse:
    """`variants` give each name its settings at T tokens, the first of them `attn`; `claims` are
    how their papers say that it grows with T, `longest` how far a variant goes if not all the way.
    A variant is judged up to `judged` tokens."""

    title: str
    variants: Mapping[str, Callable[[int], Mechanism]]
    claims: Mapping[str, str]
    lengths: tuple[int, ...]
    longest: Mapping[str, int] = dataclasses.field(default_factory=dict)
    against: Mapping[str, int] = dataclasses.field(default_factory=dict)
    judged: int = 2048
    modes: tuple[str, ...] = MODES

    @property
    def ours(self) -> str:
        return next(iter(self.variants))

    @property
    def note(self) -> str:
        T = self.lengths[0]
        settings = "; ".join(f"{name}: {one(T)!r}" for name, one in self.variants.items())
        claims = ", ".join(f"{name} {p}" for name, p in self.claims.items())
        return (
            f"`{OURS}` is {self.ours}. Claimed: {claims}. At T = {T:,}: "
            f"{settings}. A variant is held against its own dense definition in float64, beyond "
            f"{self.judged:,} tokens it is not. Work is that of the scores in visited blocks, "
            "where there are blocks: a rate that is the same at all T says that time is "
            "proportional to it."
        )

    def rows(self, options: Options) -> Iterator[list[Row]]:
        every = itertools.product(turns.shapes(options, 1, self.lengths), self.modes)
        for shape, mode in every:
            inputs = shape.inputs()
            contenders = {
                OURS if n == 0 else name: self.contender(one(shape.T), shape, inputs, mode)
                for n, (name, one) in enumerate(self.variants.items())
                if shape.T <= self.longest.get(name, shape.T)
            }
            yield turns.measure(Group(labels(shape, mode), contenders), options)

    def contender(self, mechanism: Mechanism, shape: cost.Shape, inputs, mode: str) -> Contender:
        mask = base_mask(mechanism)
        attend, arrays = cost.attention(mechanism, shape, mask)
        judge = functools.partial(_judge, mechanism, shape, inputs[0], arrays, mask)
        T, N, H = shape.T, shape.N, shape.H
        work = float(mechanism.flops(T, T, N, shape.K, H, H))
        return Contender(
            lambda: turns.compiled_with_gates(attend, inputs, mode, arrays),
            judge if shape.T <= self.judged else None,
            ours=True,
            work=work * shape.B * PRODUCTS[mode] / PRODUCTS[MODES[0]],
        )


def _judge(mechanism, shape, inputs, arrays, mask, results: Sequence[np.ndarray]) -> Verdict:
    """The output and the gradients of q, k and v against the dense definition."""
    with jax.enable_x64(True), on_cpu():
        wide = lambda x: jnp.asarray(np.asarray(x, np.float64))
        q, k, v, g = (wide(x.astype(jnp.float32)) for x in inputs)
        more = {name: wide(x) for name, x in arrays.items()}
        define = lambda q, k, v: mechanism.reference(q, k, v, mask=mask, **more)
        exact = jax.jit(cost.forward_backward(define))(q, k, v, g)
        exact = [np.asarray(x[-1]) for x in exact]
    got = [np.asarray(x[-1], np.float64) for x in results[:4]]
    return worst(got, exact, shape.dtype)
