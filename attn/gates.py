"""Gates: how a per-token input of a mechanism is projected from x, initialised and activated.

`Mechanism.gates` returns these by name. A gate is

    scale * activation(W x + b)            W one matrix, or two of a low rank

and a `StepDecay` is a gate times a rate that each head learns. The arrays are float32, and so is
all arithmetic on narrower input: a decay is raised to powers as high as the sequence is long.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._axes import aligned
from attn._wide import wide

Initializer = Callable[..., Array]  # (key, shape, dtype), as those of jax.nn.initializers


@dataclasses.dataclass(frozen=True)
class Named:
    """A function of jax.nn by name, `Named("sigmoid")`, or what such a function returns for
    `settings`, `Named("initializers.normal", (0.02,))`: comparable and picklable, unlike functions
    that jax has wrapped or returned."""

    name: str
    settings: tuple | None = None

    def __call__(self, *args) -> Array:
        function = functools.reduce(getattr, self.name.split("."), jax.nn)
        function = function if self.settings is None else function(*self.settings)
        return function(*args)


FULL_SCALE = Named("initializers.lecun_normal", ())
ZEROS = jax.nn.initializers.zeros


def identity(x: Array) -> Array:
    return x


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense:
    """W x with one matrix."""

    kernel: Initializer = FULL_SCALE

    def init(self, key: Array, width: int, size: int) -> dict[str, Array]:
        # 0 for the projection, 1 for the bias (of a Gate), 2 for the rates: all draws differ
        return {"kernel": self.kernel(jax.random.fold_in(key, 0), (width, size), jnp.float32)}

    def __call__(self, x: Float[Array, "*B W"], *, kernel: Array) -> Float[Array, "*B size"]:
        return x @ kernel


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowRank:
    """W_up between(W_down x), with `rank` channels in the middle."""

    rank: int
    between: Callable[[Array], Array] = identity
    down: Initializer = FULL_SCALE
    up: Initializer = FULL_SCALE

    def init(self, key: Array, width: int, size: int) -> dict[str, Array]:
        down, up = jax.random.split(jax.random.fold_in(key, 0))
        return {
            "down": self.down(down, (width, self.rank), jnp.float32),
            "up": self.up(up, (self.rank, size), jnp.float32),
        }

    def __call__(self, x: Float[Array, "*B W"], *, down, up) -> Float[Array, "*B size"]:
        return self.between(x @ down) @ up


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gate:
    """scale * activation(project(x) + b), of `shape` after the token axes; `bias` initialises b,
    None leaves it out."""

    shape: tuple[int, ...]
    activation: Callable[[Array], Array] = identity
    scale: float = 1.0
    project: Dense | LowRank = Dense()
    bias: Initializer | None = ZEROS

    def init(self, key: Array, width: int) -> dict[str, Array]:
        """The learned arrays for an x of `width` numbers a token."""
        arrays = self.project.init(key, width, math.prod(self.shape))
        if self.bias is not None:
            bias = self.bias(jax.random.fold_in(key, 1), self.shape, jnp.float32)
            arrays["bias"] = bias.reshape(-1)
        return arrays

    def __call__(self, x: Float[Array, "*B W"], *, bias=None, **arrays) -> Float[Array, "..."]:
        x = wide(x)
        y = self.project(x, **{name: array.astype(x.dtype) for name, array in arrays.items()})
        y = y if bias is None else jnp.add(*aligned(y, bias.astype(x.dtype)))
        return self.scale * self.activation(y.reshape(*x.shape[:-1], *self.shape))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepDecay:
    """-exp(a_log) step(x): a log decay from the size of the token's `step` (Dao & Gu 2024,
    arXiv:2405.21060). Each head, the first axis, learns a rate exp(a_log), initialised uniformly in
    `rates`, the lower end excluded."""

    step: Gate
    rates: tuple[float, float] = (1.0, 16.0)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.step.shape

    def init(self, key: Array, width: int) -> dict[str, Array]:
        low, high = self.rates
        # high - u, as a u of 0 is drawn sometimes and a rate of 0 has no logarithm
        key_of_rates = jax.random.fold_in(key, 2)
        u = jax.random.uniform(key_of_rates, self.shape[:1], jnp.float32, 0, high - low)
        return {**self.step.init(key, width), "a_log": jnp.log(high - u)}

    def __call__(self, x: Float[Array, "*B W"], *, a_log, **arrays) -> Float[Array, "..."]:
        step = self.step(x, **arrays)
        rate = jnp.exp(a_log.astype(step.dtype))
        rate, step = aligned(rate.reshape(-1, *(1,) * (len(self.shape) - 1)), step)
        return -rate * step


def time_step(shape: tuple[int, ...], project: Dense | LowRank = Dense()) -> Gate:
    """softplus(project(x) + b), with b such that steps start log-uniform in [0.001, 0.1] (Gu &
    Dao 2023, arXiv:2312.00752)."""
    return Gate(shape=shape, activation=Named("softplus"), project=project, bias=_time_steps)


def _time_steps(key, shape, dtype) -> Array:
    log_step = jax.random.uniform(key, shape, dtype, math.log(0.001), math.log(0.1))
    step = jnp.exp(log_step)
    return step + jnp.log(-jnp.expm1(-step))  # softplus of this is step


def write_strength(num_heads: int, *, negative_eigenvalues: bool = False) -> Gate:
    """sigmoid(W x) for each head: how far the delta rule moves the stored value towards the new
    one; up to 2, past it, with `negative_eigenvalues` (Grazzi et al. 2024, arXiv:2411.12537)."""
    scale = 2.0 if negative_eigenvalues else 1.0
    return Gate(shape=(num_heads,), activation=Named("sigmoid"), scale=scale, bias=None)


def minus_exp(x: Array) -> Array:
    """-exp(x); beyond e^60 a decay is to 0, and infinite it would have a gradient of 0 * inf."""
    return -jnp.exp(jnp.minimum(x, 60))


@dataclasses.dataclass(frozen=True)
class Uniform:
    """An initializer, uniform within +-bound."""

    bound: float

    def __call__(self, key: Array, shape: tuple[int, ...], dtype) -> Array:
        return jax.random.uniform(key, shape, dtype, -self.bound, self.bound)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ramp:
    """An initializer of a bias that grows from `low` to `high` over all channels, linearly or as
    the power `bend`, plus `zigzag` times s |s| with s from -1 to 1 over the channels of each head:
    RWKV's for its gates."""

    low: float
    high: float
    bend: float = 1.0
    zigzag: float = 0.0

    def __call__(self, key: Array, shape: tuple[int, int], dtype) -> Float[Array, "N H"]:
        s = jnp.linspace(-1, 1, shape[-1], dtype=dtype)[None]
        ramp = jnp.linspace(0, 1, math.prod(shape), dtype=dtype) ** self.bend
        ramp = self.low + (self.high - self.low) * ramp
        return ramp.reshape(shape) + self.zigzag * s * jnp.abs(s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fading:
    """1 - (c / C)^power - less in channel c of C: RWKV's initial share of the previous token in
    what a projection reads, from the previous token alone to almost the current token alone."""

    power: float
    less: float = 0.0

    def __call__(self, key: Array, shape: tuple[int], dtype) -> Float[Array, " C"]:
        return 1 - (jnp.arange(*shape, dtype=dtype) / shape[0]) ** self.power - self.less
