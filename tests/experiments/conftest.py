"""What tests of whole runs share."""

from pathlib import Path

import jax
import pytest
from tiny_experiment import tiny

from experiments import train


@pytest.fixture(scope="session")
def _cache(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="module")
def compiled_once(_cache: str):
    """Every session of a run compiles the same two steps, which takes most of its time."""
    wanted = {
        "jax_compilation_cache_dir": _cache,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, compiled_once) -> Path:
    """A run that nothing interrupted."""
    workdir = tmp_path_factory.mktemp("whole")
    train.run(tiny(), workdir, progress=False)
    return workdir
