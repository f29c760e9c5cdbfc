"""What a process frees it keeps."""

import os
import subprocess
import sys

import pytest

from experiments import limits

FAULTS = """
import resource
import threading
from experiments.memory import keep_freed_memory
keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def again():
    {use}
    before = faults()
    {use}
    print(faults() - before)
{run}
"""
UNTOLD = {name: x for name, x in os.environ.items() if not name.startswith("MALLOC_")}
HERE, THERE = "again()", "thread = threading.Thread(target=again); thread.start(); thread.join()"
LARGE = 'b"x" * 2**27'
FOUR = 'a, b, c, d = [b"x" * n for n in 4 * [2**24 + 1]]; del a, b, c, d'  # more than a heap has


@pytest.mark.parametrize(
    ("run", "use"), [(HERE, LARGE), (HERE, FOUR), (THERE, LARGE), (THERE, FOUR)]
)
def test_memory_that_was_freed_is_used_again_without_asking_the_kernel(run: str, use: str):
    script = FAULTS.format(run=run, use=use)
    said = subprocess.check_output([sys.executable, "-c", script], text=True, env=UNTOLD)
    assert int(said) < 100  # of 16,384 pages


TIMED = """
import resource
import statistics
from experiments.quantities import in_turns
in_turns({{}}, rounds=1, seconds=1.0)
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def again():
    before = faults()
    {use}
    return faults() - before
again()
print(statistics.median_low(again() for _ in range(9)))
"""


@pytest.mark.slow
def test_steps_are_timed_with_the_memory_that_they_are_trained_with():
    script = TIMED.format(use=LARGE)
    said = subprocess.check_output([sys.executable, "-c", script], text=True, env=UNTOLD)
    assert int(said) < 100


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        # a job's group without a limit, inside of a step's with one
        ("0::/job/step", {"job/memory.max": "2000", "job/step/memory.max": "max"}, 2000),
        ("0::/", {"memory.max": "3000"}, 3000),  # a container that sees its own group alone
        ("4:memory:/job", {"memory/memory.limit_in_bytes": "4000"}, 4000),  # mounted as the root
        ("4:memory:/", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}, limits.machine()),
        ("1:cpu:/job", {"cpu/job/memory.max": "5000"}, limits.machine()),
        (None, {}, limits.machine()),  # macOS
    ],
)
def test_memory_is_what_the_control_groups_allow(groups, files, limit, tmp_path):
    contents = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in (contents | ({"proc/self/cgroup": groups} if groups else {})).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert limits.allowed(tmp_path) == limit


IN_CALLER = """
import resource
import statistics
import jax
from experiments.memory import keep_freed_memory, run_in_caller
{before}
run_in_caller()
keep_freed_memory()
large = jax.jit(lambda n: jax.numpy.cumsum(jax.numpy.arange(2**25) % n).sum()).lower(3).compile()
large(3).block_until_ready()
print(large(3).is_ready())
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def again():
    before = faults()
    large(3).block_until_ready()
    return faults() - before
# a small block that stays may come to lie in a large one, which then is allocated once more
print(statistics.median_low(again() for _ in range(9)))
print(jax.device_count())
"""


@pytest.mark.parametrize(
    ("before", "at_once"), [("", "True"), ("jax.devices()", "False")], ids=["fresh", "started"]
)
def test_programs_run_in_their_caller_and_keep_memory_unless_jax_has_started(before, at_once):
    script = IN_CALLER.format(before=before)
    environment = UNTOLD | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    said = subprocess.check_output([sys.executable, "-c", script], text=True, env=environment)
    ready, faults, devices = said.split()
    assert (ready, devices) == (at_once, "1")
    assert before or int(faults) < 1000  # of 131,072 pages


ON_TWO = """
import resource
import jax
from experiments.devices import Devices
from experiments.memory import keep_freed_memory, run_in_caller
run_in_caller()
keep_freed_memory()
devices = Devices.dividing(2)
ones = devices.split(jax.numpy.ones(2, int))
large = jax.jit(lambda n: jax.numpy.cumsum(jax.numpy.arange(2**23) % n[:, None], 1).sum())
large = large.lower(ones).compile()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def again():
    before = faults()
    large(ones).block_until_ready()
    return faults() - before
print(jax.device_count(), min(again() for _ in range(8)))  # at first more run at a time
"""


@pytest.mark.parametrize(
    "told",
    [
        {"JAX_NUM_CPU_DEVICES": "2"},
        {
            "JAX_NUM_CPU_DEVICES": "-1",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        },
    ],
    ids=["jax", "xla"],
)
def test_programs_of_several_devices_keep_memory_too(told):
    # JAX runs them in threads of its own all the same
    command = [sys.executable, "-c", ON_TWO]
    environment = UNTOLD | {"JAX_PLATFORMS": "cpu"} | told
    devices, faults = subprocess.check_output(command, text=True, env=environment).split()
    assert devices == "2"
    assert int(faults) < 1000  # of 32,768 pages
