"""python -m experiments.studies.tpu.compiler MECHANISM SETTINGS

Compiles one mechanism for a TPU that need not be there, forward and with backward, and prints what
XLA says of the programs, as JSON. A process for each: an error inside of XLA's compiler for TPUs
aborts it. SETTINGS are `measure.Settings` as JSON.
"""

import json
import sys
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from attn import MECHANISMS
from experiments.measure import cost
from experiments.studies.complexity.layer import mask_of

KERNEL = "tpu_custom_call"  # as Mosaic's programs are called in lowered text


def needs(name: str, topology: str, shape: cost.Shape) -> dict[str, Any]:
    """{mode: {bytes of temporaries, seconds of compilation, whether a kernel runs it}}."""
    mechanism = MECHANISMS[name]()
    chip = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]
    there = SingleDeviceSharding(chip)
    place = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there)
    q, k, v, g = jax.tree.map(place, jax.eval_shape(lambda: shape.qkvg(0)))
    more = jax.tree.map(place, jax.eval_shape(lambda: cost.arrays(mechanism, shape)))
    attend = cost.attend(mechanism, mask_of(mechanism, causal=True))
    both = cost.forward_backward(attend)
    with jax.default_device(chip):  # by which `attn` knows for what it is compiled
        programs = {
            "forward": cost.build(attend, q, k, v, more),
            "forward + backward": cost.build(both, q, k, v, more, g),
        }
    return {mode: _told(program) for mode, program in programs.items()}


def _told(program: cost.Program) -> dict[str, Any]:
    return {
        "temporaries": program.temporary_bytes,
        "seconds": program.compile_seconds,
        "kernel": KERNEL in program.call.as_text(),
    }


if __name__ == "__main__":
    settings = json.loads(sys.argv[2])
    print(json.dumps(needs(sys.argv[1], settings["topology"], cost.Shape(**settings["shape"]))))
