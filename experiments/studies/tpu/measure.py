"""Every mechanism, compiled for a TPU one after another, each in a process of its own."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from attn import MECHANISMS
from experiments.errors import ConfigError
from experiments.measure.cost import Shape
from experiments.stdout import tell

LIBRARY = "TPU_LIBRARY_PATH"
HOW = "pip install --no-deps --target=DIR 'libtpu==0.0.42.*'"  # the one of jax 0.10
MINUTES = 15.0  # for the two programs of a mechanism
LONG = Shape(B=2, T=16384, N=4, K=4, H=64, dtype="bfloat16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The chips of `topology`, and a shape of which T x T matrices would fill it."""

    topology: str = "v5e:1x1"
    shape: Shape = LONG
    mechanisms: tuple[str, ...] = tuple(MECHANISMS)


def has_compiler() -> bool:
    path = os.environ.get(LIBRARY)
    return importlib.util.find_spec("libtpu") is not None if path is None else Path(path).is_file()


def measure(settings: Settings) -> dict[str, Any]:
    """{mechanism: what `compiler.needs` finds, or {"error": why there is no program}}. Raises
    ConfigError where there is no compiler for TPUs."""
    if not has_compiler():
        told = f"expected the path of libtpu.so, got {os.environ.get(LIBRARY)!r}"
        raise ConfigError([f"{LIBRARY}: {told}; {HOW}, then DIR/libtpu/libtpu.so"])
    found = {}
    for name in settings.mechanisms:
        found[name] = alone(name, settings)
        tell(f"{name}: {found[name]}")
    return found


def alone(name: str, settings: Settings) -> dict[str, Any]:
    """What the compiler's process prints, or how it ended."""
    command = [sys.executable, "-m", "experiments.studies.tpu.compiler", name]
    command.append(json.dumps(dataclasses.asdict(settings)))
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",  # it looks for no TPU to run on
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nor needs one to itself
        "JAX_TRACEBACK_FILTERING": "off",  # it ends with the line that says what was wrong
    }
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60 * MINUTES
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not compiled in {MINUTES:.0f} minutes"}
    if ended.returncode == 0:
        return json.loads(ended.stdout.splitlines()[-1])
    lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
    aborted = [line for line in lines if "Check failed" in line]
    return {"error": (aborted[:1] or lines[-1:])[0][:300]}
