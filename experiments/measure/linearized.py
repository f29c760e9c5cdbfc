"""Every linearized variant beside `linear`, exact softmax and what others run, causal."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from attn import MECHANISMS, Causal, Mechanism, Softmax
from experiments.measure import cost, fla_peers, turns
from experiments.measure.attention import labels, peer
from experiments.measure.flops import count
from experiments.measure.machine import on_cpu, on_gpu
from experiments.measure.options import Options
from experiments.measure.turns import (
    MODES,
    OURS,
    Contender,
    Group,
    Ready,
    Row,
    Unavailable,
)
from experiments.measure.verdict import Verdict, worst

Judge = Callable[[Sequence[np.ndarray]], Verdict]


@dataclasses.dataclass(frozen=True)
class Linearized:
    """`variants` are keys of MECHANISMS; a variant is judged up to `judged` tokens."""

    title: str = "linearized variants, causal"
    note: str = (
        "`attn` is `linear` (elu + 1); the others are our variants by their keys in MECHANISMS, "
        "with their default settings, and peers, on a GPU `fla x`, fla's kernel of x. "
        "Gradients are those of q, k, v and of each gate. "
        "A variant is held against its own token loop in float64, beyond 16,384 tokens it is not."
    )
    ours: str = "linear"
    variants: tuple[str, ...] = (
        "performer", "retention", "mamba2", "gla", "delta_net", "gated_delta_net", "kda", "softmax",
    )  # fmt: skip
    against: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"token scan": 8192, "fla": 16384}
    )
    lengths: tuple[int, ...] = (512, 4096)
    judged: int = 16384
    modes: tuple[str, ...] = MODES

    def rows(self, options: Options) -> Iterator[list[Row]]:
        for shape in turns.shapes(options, 2, self.lengths):
            inputs = shape.inputs()
            keys = dict.fromkeys((self.ours, *self.variants))
            judges = {key: self.judge(MECHANISMS[key](), shape, inputs[0]) for key in keys}
            for mode in self.modes:
                contenders = {
                    OURS if key == self.ours else key: self.variant(
                        MECHANISMS[key](), judges[key], shape, inputs, mode
                    )
                    for key in keys
                }
                for name in options.peers(self.against):
                    prepare = functools.partial(
                        peer, name, self.against[name], Causal(), inputs, mode
                    )
                    contenders[fla_peers.contender(name)] = Contender(prepare, judges[self.ours])
                if "fla" in options.peers(self.against) and on_gpu():
                    contenders |= self.kernels(judges, shape, inputs, mode)
                yield turns.measure(Group(labels(shape, mode), contenders), options)

    def variant(
        self, mechanism: Mechanism, judge: Judge | None, shape: cost.Shape, inputs, mode: str
    ) -> Contender:
        attend, arrays = cost.attention(mechanism, shape, Causal())
        work = count(attend, *inputs[0][:3], arrays).flops
        return Contender(
            lambda: turns.compiled_with_gates(attend, inputs, mode, arrays),
            judge,
            ours=True,
            work=work * (1 if mode == MODES[0] else 3),
        )

    def kernels(
        self, judges: dict[str, Judge | None], shape: cost.Shape, inputs, mode: str
    ) -> dict[str, Contender]:
        """fla's of our variants, on their arrays, held against their definitions."""
        return {
            f"fla {key}": Contender(
                functools.partial(self.kernel, key, shape, inputs, mode), judges[key]
            )
            for key in self.variants
            if key in fla_peers.KERNELS
        }

    def kernel(self, key: str, shape: cost.Shape, inputs, mode: str) -> Ready:
        if shape.T > self.against["fla"]:
            raise Unavailable(f"not beyond T = {self.against['fla']:,}, for its memory and time")
        arrays = cost.arrays(MECHANISMS[key](), shape)
        return fla_peers.kernels(key, arrays, inputs, mode)

    def judge(self, mechanism: Mechanism, shape: cost.Shape, inputs: tuple) -> Judge | None:
        """Looks at the last batch row, all heads, against the token loop, which runs once."""
        if shape.T > self.judged or isinstance(mechanism, Softmax):
            return None

        arrays = cost.arrays(mechanism, shape)

        @functools.cache
        def exact() -> list[np.ndarray]:
            with jax.enable_x64(True), on_cpu():
                return truth(mechanism, inputs, arrays)

        def look(results: Sequence[np.ndarray]) -> Verdict:
            got = [np.asarray(x[-1], np.float64) for x in results[:4]]
            return worst(got, exact(), shape.dtype)

        return look


def truth(mechanism: Mechanism, inputs: tuple, arrays: dict) -> list[np.ndarray]:
    """The output, and the gradients of q, k and v, of the last batch row by its definition token
    after token, in the dtype of the caller's widest float."""
    wide = lambda x: jnp.asarray(np.asarray(x, np.float64))
    gates = mechanism.gates(num_heads=1, num_kv_heads=1, head_dim=1)
    more = {name: wide(x[-1:] if name in gates else x) for name, x in arrays.items()}
    loop = lambda q, k, v: mechanism.loop(q, k, v, **more)
    qkvg = (wide(x[-1:].astype(jnp.float32)) for x in inputs)
    return [np.asarray(x[0]) for x in jax.jit(cost.forward_backward(loop))(*qkvg)]
