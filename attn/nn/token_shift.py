"""Token shift: a projection reads a mixture of a token and the one before it."""

import functools

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from attn._axes import aligned
from attn._wide import wide
from attn.gates import ZEROS, Initializer, LowRank, Named, Uniform
from attn.masks import Mask
from attn.mechanism import Mechanism
from attn.nn.earlier import back, documents, latest, shown
from attn.nn.keys import fold
from attn.nn.rows import of_rows


class TokenShift(nnx.Module):
    """x_t + (x_{t-1} - x_t) mu for each named projection, with a share mu of its own for each
    channel (RWKV-7, Peng et al. 2025, arXiv:2503.14456).

    x_{t-1} is 0 before the first token of a document and where `Padding` hides it. Each mu is
    initialised by `starts[name]`. Arithmetic is float32, the mixture in x's dtype.
    """

    def __init__(self, width: int, starts: dict[str, Initializer], *, key: Array):
        mu = lambda name: starts[name](fold(key, "mu", name), (width,), jnp.float32)
        self.mu = nnx.Dict({name: nnx.Param(mu(name)) for name in starts})

    def before(self, x: Float[Array, "*B T W"], mask: Mask) -> Float[Array, "*B T W"]:
        """The token before each. Raises NotImplementedError for a mask that holds arrays other than
        `Padding` and `Segments` joined by `&`."""
        padding, segments = documents(mask, x, who="a token shift", off="token_shift=False")
        return back(shown(x, padding), 1, segments)

    def last(self, x: Float[Array, "*B T W"]) -> Float[Array, "*B 1 W"]:
        """The last token of a prompt, which is the one before the next."""
        return latest(x, 1)

    def __call__(
        self, name: str, x: Float[Array, "*B T W"], before: Float[Array, "*B T W"]
    ) -> Float[Array, "*B T W"]:
        """The input of projection `name`: x itself if it is not shifted."""
        if name not in self.mu:
            return x
        y, before = wide(x), wide(before)
        return _mixed(y, before, self.share(name, y, before)).astype(x.dtype)

    def share(
        self, name: str, x: Float[Array, "*B T W"], before: Float[Array, "*B T W"]
    ) -> Float[Array, "*#L W"]:
        """The share mu of the token before that projection `name` reads, in each channel."""
        return self.mu[name][...].astype(x.dtype)


class DataDependentShift(TokenShift):
    """`TokenShift` with shares that depend on the token: mu + W_up tanh(W_down y) per projection,
    y = x_t + (x_{t-1} - x_t) mu_x (RWKV-6's ddlerp, Peng et al. 2024, arXiv:2404.05892).

    mu_x is initialised by `starts["shares"]`. As in the authors' code, W_down starts at 0, so that
    all shares start at mu.
    """

    def __init__(self, width: int, starts: dict[str, Initializer], *, rank: int, key: Array):
        named = {name: start for name, start in starts.items() if name != "shares"}
        super().__init__(width, named, key=key)
        self.mu_x = nnx.Param(starts["shares"](fold(key, "mu", "shares"), (width,), jnp.float32))
        self.low_rank = LowRank(rank=rank, between=Named("tanh"), down=ZEROS, up=Uniform(0.01))
        drawn = {name: self.low_rank.init(fold(key, name), width, width) for name in named}
        parameters = lambda arrays: nnx.Dict({name: nnx.Param(x) for name, x in arrays.items()})
        self.more = nnx.Dict({name: parameters(arrays) for name, arrays in drawn.items()})

    def share(self, name, x, before):
        y = _mixed(x, before, self.mu_x[...].astype(x.dtype))
        kernels = {side: w[...].astype(x.dtype) for side, w in self.more[name].items()}
        more = of_rows(functools.partial(self.low_rank, **kernels), y)
        return jnp.add(*aligned(super().share(name, x, before), more))


def token_shift(mechanism: Mechanism, width: int, *, key: Array) -> TokenShift | None:
    """The layer that the mechanism asks for by its `shifts`, None for none."""
    if not mechanism.shifts:
        return None
    if not mechanism.shift_rank:
        return TokenShift(width, mechanism.shifts, key=key)
    return DataDependentShift(width, mechanism.shifts, rank=mechanism.shift_rank, key=key)


def _mixed(x, before, share) -> Float[Array, "*B T W"]:
    x, before, share = aligned(x, before, share)
    return x + (before - x) * share
