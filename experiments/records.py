"""The files of a run for people to read: environment, metrics, results with a seal over them."""

import datetime
import importlib.metadata
import json
import os
import platform
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments import disk
from experiments.limits import machine
from experiments.manifest import digest
from experiments.provenance import git_commit
from experiments.words import plural

UNLIKE = "not bit-identical to a run"
# of JAX: by which numbers are drawn, and how precisely they are computed
SETTINGS = (
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_random_seed_offset",
    "jax_enable_x64",
    "jax_default_matmul_precision",
)
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "pydantic")


def environment(command: str = "") -> dict[str, Any]:
    """Versions, hardware, git commit, time and the command."""
    return {
        "command": command,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "git": git_commit(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "settings": settings(),
        "hardware": hardware(),
    }


def write_environment(path: Path, command: str, **more: dict[str, str]) -> None:
    """Writes the environment of this session, with those of the sessions that it continues under
    "earlier"; `more` is of the run: its `sources.sources`, and its data by what defines them."""
    before = read_object(path) or {}
    earlier = before.pop("earlier", [])
    earlier = [*earlier, before] if before and isinstance(earlier, list) else []
    disk.write_json(path, environment(command) | more | {"earlier": earlier})


def read_environment(path: Path) -> dict[str, Any]:
    """What `write_environment` left; {} if it is not there or not as it was left."""
    found = read_object(path) or {}
    kinds = {"command": str, "started": str, "hardware": dict, "earlier": list}
    return found if all(isinstance(found.get(k, kind()), kind) for k, kind in kinds.items()) else {}


def other_hardware(path: Path) -> str:
    """The warning for a run that continues on another kind of device, or on another number of
    devices or CPU cores, "" for any other. Sums are split by them, so a step agrees except for
    rounding, which training amplifies."""
    now, before = hardware(), read_environment(path).get("hardware", {})
    if before.get("device") not in (None, now["device"]):
        return f"on {now['device']}, {before['device']} before: {UNLIKE} on one alone"
    counted = {"devices": "device"} | ({"cores_used": "core"} if now["platform"] == "cpu" else {})
    changed = [(n, what) for n, what in counted.items() if before.get(n) not in (None, now[n])]
    told = [f"{plural(now[n], what)}, {before[n]} before" for n, what in changed]
    return f"on {', on '.join(told)}: {UNLIKE} on as many" if told else ""


def other_settings(path: Path) -> str:
    """The warning for a run that continues with other settings of JAX, "" for any other."""
    before = read_environment(path).get("settings")
    before = before if isinstance(before, dict) else {}  # not in the first records
    changed = [(n, x) for n, x in settings().items() if n in before and before[n] != x]
    told = ", ".join(f"{name}={x} (was {before[name]})" for name, x in changed)
    return f"with {told}: not what a run with the same all along comes to" if told else ""


def settings() -> dict[str, Any]:
    import jax

    return {name: getattr(jax.config, name, None) for name in SETTINGS}


def hardware() -> dict[str, Any]:
    import jax

    from experiments.devices import devices

    device = devices()[0]
    return {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "cores_used": len(cores()),
        "memory_gb": round(machine() / 2**30, 1),
        "platform": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
    }


def cores() -> list[int]:
    """The CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def version(package: str) -> str:
    """The installed version, "" for none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None if it cannot be read."""
    try:
        found = json.loads(disk.no_pipe(path).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def sealed(result: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The result of a configuration, with a hash of both, so that one that is another's or was
    changed afterwards shows."""
    body = result | {"config": digest(config)}
    return body | {"sha256": digest(body)}


def is_sealed(result: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether the result is as it was sealed, for this configuration."""
    body = {k: v for k, v in result.items() if k != "sha256"}
    return (result["config"], result["sha256"]) == (digest(config), digest(body))


def is_number(x: Any) -> bool:
    """Whether x is finite and fits in a float: JSON written by hand may have other numbers."""
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < 1e300


def is_result(value: Any, config: dict[str, Any]) -> bool:
    """Whether it is a whole result.json of this configuration: one that is damaged, edited or
    another's is made again, never averaged."""
    try:
        scores = [value[split]["accuracy"] for split in ("validation", "test")]
        numbers = [*scores, value["parameters"], value["steps_per_second"]]
        return all(map(is_number, numbers)) and is_sealed(value, config)
    except (KeyError, TypeError, RecursionError):
        return False


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    """A result or a row without times and the seal over them: what two equal runs agree on."""
    return {k: v for k, v in values.items() if "second" not in k and k != "sha256"}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; a last line that was cut off is left out."""
    if not path.exists():
        return []
    rows = []
    for line in disk.no_pipe(path).read_bytes().splitlines(keepends=True):
        try:
            rows.append(json.loads(line) if line.endswith(b"\n") else None)
        except (ValueError, RecursionError):
            rows.append(None)
    step = lambda row: row.get("step") if isinstance(row, dict) else None
    return [row for row in rows if isinstance(step(row), int) and 0 < step(row) < 2**31]


def repair_metrics(path: Path, step: int) -> int:
    """Keeps only whole lines of strictly increasing steps up to `step`, whatever a kill left; their
    number."""
    rows: list[dict[str, Any]] = []
    for row in read_metrics(path):
        if (rows[-1]["step"] if rows else 0) < row["step"] <= step:
            rows.append(row)
    disk.write_text(path, "".join(_line(row) for row in rows))
    return len(rows)


def append_metrics(path: Path, rows: Iterable[dict[str, Any]], *, sync: bool) -> None:
    """Appends a line per row; with `sync` all of the file is on the disk afterwards."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(_line(row) for row in rows))
        file.flush()
        if sync:
            os.fsync(file.fileno())


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row) + "\n"
