"""python -m experiments.studies.tpu.compiler MECHANISM SETTINGS

Compiles one mechanism for TPUs that need not be there, forward and with backward, and prints what
XLA says of the programs, as JSON. Of several chips each has its rows of the batch. A process for
each mechanism: an error inside of XLA's compiler for TPUs aborts it. SETTINGS are
`measure.Settings` as JSON.
"""

import json
import re
import sys
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attn import MECHANISMS
from experiments.measure import cost
from experiments.measure.turns import MODES
from experiments.studies.complexity.layer import mask_of

KERNEL = "tpu_custom_call"  # as Mosaic's programs are called in a compiled text
MOVES = r"(all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\("


def needs(name: str, topology: str, shape: cost.Shape) -> dict[str, Any]:
    """{mode: {bytes of a chip's temporaries, seconds of compilation, whether a kernel runs it, what
    is moved between chips}}."""
    mechanism = MECHANISMS[name]()
    chips = devices(topology)
    mesh = Mesh(np.array(chips), ("rows",))

    def place(x, *axes):
        there = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there)

    q, k, v, g = (place(x, "rows") for x in jax.eval_shape(lambda: shape.qkvg(0)))
    gates = mechanism.gate_shapes(num_heads=shape.N, num_kv_heads=shape.K, head_dim=shape.H)
    more = jax.eval_shape(lambda: cost.arrays(mechanism, shape))
    more = {name: place(x, "rows") if name in gates else place(x) for name, x in more.items()}
    attend = cost.attend(mechanism, mask_of(mechanism, causal=True))
    both = cost.forward_backward(attend)
    with jax.default_device(chips[0]):  # by which `attn` knows for what it is compiled
        programs = cost.build(attend, q, k, v, more), cost.build(both, q, k, v, more, g)
    return dict(zip(MODES, map(_told, programs), strict=True))


def devices(topology: str) -> list[jax.Device]:
    """The chips of "v5e:2x2", say, all on one host."""
    grid = map(int, topology.partition(":")[2].split("x"))
    bounds = (*grid, 1)
    found = topologies.get_topology_desc(
        platform="tpu", topology_name=topology, chips_per_host_bounds=bounds
    )
    return found.devices


def _told(program: cost.Program) -> dict[str, Any]:
    text = program.call.as_text()
    return {
        "temporaries": program.temporary_bytes,
        "seconds": program.compile_seconds,
        "kernel": KERNEL in text,
        "moved": sorted(set(re.findall(MOVES, text))),
    }


if __name__ == "__main__":
    settings = json.loads(sys.argv[2])
    print(json.dumps(needs(sys.argv[1], settings["topology"], cost.Shape(**settings["shape"]))))
