"""For which platform a call will be compiled, which decides what runs it and how."""

import jax


def platform() -> str:
    """Of `jax.default_device`, where one is set, else of this process: "cpu", "gpu" or "tpu"."""
    device = jax.config.jax_default_device
    if isinstance(device, str):
        device = jax.local_devices(backend=device)[0]
    return jax.default_backend() if device is None else device.platform
