"""What a process frees it keeps."""

import subprocess
import sys

FAULTS = """
import resource
from experiments.memory import keep_freed_memory
keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
b"x" * 2**26
before = faults()
b"x" * 2**26
print(faults() - before)
"""


def test_memory_that_was_freed_is_used_again_without_asking_the_kernel():
    said = subprocess.check_output([sys.executable, "-c", FAULTS], text=True)
    assert int(said) < 100  # of 16,384 pages
