"""For which platform a call will be compiled, which decides what runs it and how."""

import jax


def platform() -> str:
    """Of `jax.default_device`, where one is set, else of this process: "cpu", "gpu" or "tpu"."""
    chosen = _chosen()
    return jax.default_backend() if chosen is None else chosen.platform


def device() -> jax.Device:
    """`jax.default_device`, where one is set, else the first of this process."""
    chosen = _chosen()
    return jax.local_devices()[0] if chosen is None else chosen


def device_count() -> int:
    """How many devices a program may be for: all of that platform."""
    chosen = _chosen()
    return jax.device_count() if chosen is None else len(chosen.client.devices())


def _chosen() -> jax.Device | None:
    given = jax.config.jax_default_device
    return jax.local_devices(backend=given)[0] if isinstance(given, str) else given
