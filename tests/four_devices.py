"""Programs on four devices, which a process has on a CPU only if it is told before jax starts."""

import os
import subprocess
import sys

TOLD = {
    "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}


def run_on_four_devices(program: str, *arguments: str) -> None:
    """Raises CalledProcessError if the program ends with another code than 0."""
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, env=os.environ | TOLD)
