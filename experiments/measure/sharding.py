"""Attention over two CPU devices, in a process of its own: their number is set before JAX starts.

`python -m experiments.measure.sharding` reads options as JSON and prints rows as JSON.
"""

import dataclasses
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from attn import Causal, Softmax
from experiments.measure import cost, oracle, turns
from experiments.measure.attention import labels, needed, runs
from experiments.measure.options import Options
from experiments.measure.torch_peers import sdpa
from experiments.measure.turns import MODES, OURS, Contender, Group, Ready, Row, Unavailable
from experiments.measure.verdict import judge
from experiments.provenance import ROOT

DEVICES, MINUTES = 2, 30
SPECS = {OURS: PartitionSpec("x"), "attn by heads": PartitionSpec(None, None, "x")}


@dataclasses.dataclass(frozen=True)
class Sharding:
    title: str = "causal softmax over two CPU devices"
    ours: str = "softmax"
    note: str = (
        "`shard_map` over the batch (attn) and over the heads, each device a core, against torch "
        "and against one device with all cores, in a process of their own."
    )
    against: dict[str, int] = dataclasses.field(default_factory=lambda: {"torch": 2**20})

    def rows(self, options: Options) -> Iterator[list[Row]]:
        count = f"--xla_force_host_platform_device_count={DEVICES}"
        flags = f"{os.environ.get('XLA_FLAGS', '')} {count}".strip()
        with tempfile.TemporaryFile("w+") as printed:
            try:
                code = subprocess.run(
                    [sys.executable, "-m", __name__],
                    env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
                    input=json.dumps(dataclasses.asdict(options)),
                    stdout=printed,
                    text=True,
                    cwd=ROOT,
                    timeout=60 * MINUTES,
                ).returncode
                failed = f"exit code {code}, see above" if code else ""
            except subprocess.TimeoutExpired:
                failed = f"not finished after {MINUTES} minutes"
            printed.seek(0)
            # what was measured before it ended, but for a line that it was writing
            found = [json.loads(line) for line in printed if line.endswith("\n")]
        yield from found
        if failed:
            shape = cost.Shape(2, 0, 4, 4, 64)
            row = labels(shape, MODES[0]) | {"contender": OURS, "why": f"failed: {failed}"}
            yield [row | {"mark": "", "error": None}]


def _groups(options: Options) -> Iterator[Group]:
    for shape, mode in itertools.product(turns.shapes(options, 2, (2048, 4096)), MODES):
        inputs = shape.inputs()
        contender = lambda prepare, ours: Contender(
            functools.partial(prepare, inputs=inputs, mode=mode),
            judge(oracle.Softmax(Causal()), inputs[0], shape.dtype),
            ours,
            needed(shape, Causal(), mode),
        )
        contenders = {
            name: contender(functools.partial(_sharded, shape, spec), True)
            for name, spec in SPECS.items()
        }
        contenders["attn on one device"] = contender(functools.partial(_alone, shape), True)
        if "torch" in options.peers(["torch"]):
            contenders["torch"] = contender(functools.partial(sdpa, Causal()), False)
        yield Group(labels(shape, mode), contenders)


def _alone(shape: cost.Shape, inputs: list[tuple], mode: str) -> Ready:
    attend = lambda q, k, v, _: Softmax()(q, k, v, mask=Causal())
    return turns.compiled(attend, inputs, mode, **runs(shape, mask=Causal()))


def _sharded(shape: cost.Shape, spec: PartitionSpec, inputs: list[tuple], mode: str) -> Ready:
    parts = {"x": shape.B} if spec == SPECS[OURS] else {"x": shape.K}
    if parts["x"] % DEVICES:
        raise Unavailable(f"{parts['x']} do not divide into {DEVICES}")
    mesh = jax.make_mesh((DEVICES,), ("x",), axis_types=(AxisType.Auto,))
    placed = jax.device_put(inputs, NamedSharding(mesh, spec))
    attend = jax.shard_map(
        lambda q, k, v: Softmax()(q, k, v, mask=Causal()), mesh=mesh, in_specs=spec, out_specs=spec
    )
    return turns.compiled(lambda q, k, v, _: attend(q, k, v), placed, mode)


def main() -> None:
    given = json.loads(sys.stdin.read())
    lists = {k: tuple(map(tuple, v)) if k == "heads" else v for k, v in given.items()}
    options = Options(**lists)
    for group in _groups(options):
        print(json.dumps(turns.measure(group, options)), flush=True)


if __name__ == "__main__":
    main()
