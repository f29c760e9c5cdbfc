"""Shared by all tests: results are compared at full matrix precision on every backend, and
programs are compiled quickly."""

import contextlib
import gc
import itertools
import time
from pathlib import Path

import jax
import pytest
from jax._src import compiler, pjit
from jax._src.interpreters import pxla
from tiers import turn

from experiments.provenance import ROOT, commit_of
from experiments.quick import older_generator

BEGAN = time.monotonic()
LATE = "not begun in the minutes that --minutes gives"


def pytest_addoption(parser):
    told = "begin no slow test later; these come last, laws before others: CI has an hour"
    parser.addoption("--minutes", type=float, help=told)


def is_slow(item) -> bool:
    return any(item.get_closest_marker(name) for name in ("slow", "thorough"))


def pytest_collection_modifyitems(config, items):
    if config.getoption("minutes") is not None:
        commit = commit_of(ROOT)[:40]  # without what differs: two workers look one after the other
        items.sort(key=lambda item: place(item, commit))


def place(item, commit):
    slow, file = is_slow(item), item.path.name
    laws = file == "test_laws.py"
    return slow, not laws, turn(file, commit) if slow and not laws else b""


def pytest_runtest_setup(item):
    minutes = item.config.getoption("minutes")
    if minutes is not None and is_slow(item) and time.monotonic() - BEGAN > 60 * minutes:
        pytest.skip(LATE)


def pytest_terminal_summary(terminalreporter):
    left = [x for x in terminalreporter.stats.get("skipped", ()) if LATE in str(x.longrepr)]
    if left:
        terminalreporter.write_line(f"{len(left)} slow tests {LATE}: this machine is a slow one")


@pytest.fixture(autouse=True, scope="session")
def _full_precision():
    with jax.default_matmul_precision("highest"):
        yield


@contextlib.contextmanager
def quickly():
    """Few optimisations, and XLA's older code generator for CPUs, which compiles three times
    as fast. (jax has no setting for the generator, XLA's flag is per process.)"""
    if jax.default_backend() != "cpu":
        yield
        return
    options, older = compiler.get_compile_options, older_generator()

    def quick(*args, env_options_overrides=None, **others):
        overrides = {**older, **(env_options_overrides or {})}
        return options(*args, env_options_overrides=overrides, **others)

    before = jax.config.read("jax_disable_most_optimizations")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "get_compile_options", quick)
        jax.config.update("jax_disable_most_optimizations", True)
        try:
            yield
        finally:
            jax.config.update("jax_disable_most_optimizations", before)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Modules draw arrays while they are imported."""
    with quickly():
        return (yield)


@pytest.fixture(autouse=True)
def _compiled_quickly(request):
    """The suite compiles for most of its time, and most tests are about arithmetic. Tests about
    what a compiler may do to NaN, to bits or to memory are marked `optimised` and compiled as a
    user's program is, as all are on an accelerator."""
    if request.node.get_closest_marker("optimised"):
        yield
        return
    with quickly():
        yield


@pytest.fixture
def replaced(monkeypatch):
    """replaced(engine, ...) is `monkeypatch.setattr(...)` of what the jitted `engine` reads while
    it is traced: what was traced before is forgotten, and what is traced now afterwards."""
    engines = []

    def replace(engine, *args):
        engines.append(engine)
        monkeypatch.setattr(*args)
        engine.clear_cache()

    yield replace
    for engine in engines:
        engine.clear_cache()


TESTS = itertools.count()
LOWERED = ((pxla, "_cached_lowering_to_hlo"), (pjit, "_pjit_lower"))  # as jax 0.10 calls them
MAPS = Path("/proc/self/maps")
MANY = 30_000  # of the 65,530 mappings of memory that Linux grants a process


@pytest.fixture(autouse=True)
def _kept_light():
    yield
    done = next(TESTS)
    if done % 50 == 0:
        forget_texts()
    if done % 25 == 0 and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY:
        jax.clear_caches()  # each program takes some: a worker of CI died for want of them


def forget_texts():
    """jax keeps the text of each program beside what it compiled it to, each in a context of its
    own, and each context that lives makes the next dearer: after 560 tests, to lower a program took
    three times as long, in a process of 4 GB. Nobody asks for the text again. (jax.clear_caches
    would have all of jax.numpy compiled again.) Nor need Python look through all that is left for
    garbage, over and over: jax.checking_leaks has it do so at each trace."""
    for module, name in LOWERED:
        if cache := getattr(module, name, None):
            cache.cache_clear()
    gc.collect()
    gc.freeze()
