"""Data parallelism: each device holds the whole state and its share of a batch's rows."""

import dataclasses
from typing import Self

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from experiments.errors import DeviceError


def devices() -> list[jax.Device]:
    """JAX's devices. Raises DeviceError if it can start none."""
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter of a plugin that is not installed
        why = (str(error).splitlines() or ["no such platform is installed"])[0][:200]
        asked = f"JAX_PLATFORMS={jax.config.jax_platforms}"
        what = "expected a platform that JAX can start here; unset it, or name one that is there"
        raise DeviceError(f"{asked}: {what} ({why})") from None


@dataclasses.dataclass(frozen=True)
class Devices:
    """How the arrays of a run are placed on devices; XLA adds the communication.

    A step computes the same numbers on any number of devices, except for the order of its sums.
    """

    whole: NamedSharding  # of a state, on each
    rows: NamedSharding  # of a batch, a share on each
    stacked: NamedSharding  # of several, a share of each batch

    @classmethod
    def dividing(cls, *sizes: int) -> Self:
        """On the largest number of devices that divides all these numbers of rows."""
        fits = lambda n: all(size % n == 0 for size in sizes)
        number = max(n for n in range(1, jax.device_count() + 1) if fits(n))
        mesh = jax.make_mesh((number,), ("rows",), (AxisType.Auto,), devices=jax.devices()[:number])
        parts = (), ("rows",), (None, "rows")
        return cls(*(NamedSharding(mesh, PartitionSpec(*names)) for names in parts))

    def hold(self, state: PyTree) -> PyTree:
        return jax.device_put(state, self.whole)

    def split(self, batch: PyTree) -> PyTree:
        return jax.device_put(batch, self.rows)

    def split_each(self, batches: PyTree) -> PyTree:
        return jax.device_put(batches, self.stacked)
