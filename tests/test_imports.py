"""Who may import whom, read from the source; and that `import attn` stays light."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FAMILIES = ("dense", "linearized", "sparse", "compressed")
CORE = {
    "_arrays",
    "_axes",
    "_integers",
    "_settings",
    "_wide",
    "masks",
    "positions",
    "biases",
    "_inputs",
    "_core",
    "_merge",
    "_cache",
    "_cached",
    "_prompt",
    "_dropout",
    "_tiles",
    "_short",
    "_strips",
    "_gathered",
    "_loops",
    "_once",
    "_turns",
    "_platform",
    "_forms",
    "_places",
    "_tokens",
    "_trigonometry",
    "_chunks",
    "_rotary",
    "_running",
    "_decay",
}
CORE |= {"_varying", "_shards", "_explicit", "_blockwise", "kernels"}
CORE |= {"mechanism", "gates", "norms", "_requests"}


def modules_imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files(folder):
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", files("attn"), ids=lambda p: str(p.relative_to(ROOT)))
def test_layers_import_downwards(path):
    place = path.relative_to(ROOT / "attn").parts[0].removesuffix(".py")
    for module in modules_imported(path):
        parts = module.split(".")
        assert parts[0] not in ("optax", "orbax", "matplotlib", "experiments", "configs"), module
        assert parts[0] != "flax" or place == "nn", f"flax belongs in attn/nn: {module}"
        assert not module.startswith(("jax._src", "jax.core")), module
        if parts[0] != "attn" or len(parts) < 2 or place == "__init__":
            continue
        if place in CORE:
            assert parts[1] in CORE, module
        if place in FAMILIES:
            assert parts[1] in CORE | {place}, f"families do not import each other: {module}"


@pytest.mark.parametrize("family", FAMILIES)
def test_variants_never_import_each_other(family):
    shared = {"feature_maps"}  # and what is private
    for path in files(f"attn/{family}"):
        for module in modules_imported(path):
            parts = module.split(".")
            if parts[:2] == ["attn", family] and len(parts) > 2:
                private = parts[2].startswith("_")
                assert private or parts[2] in shared, f"{path.name}: {module}"


@pytest.mark.slow  # traces every mechanism
def test_import_attn_is_light_and_primitives_need_no_flax():
    program = """
import sys
for name in ("flax", "optax", "orbax", "ml_collections", "pydantic", "matplotlib", "sklearn"):
    sys.modules[name] = None
import attn
import jax
for kind in attn.MECHANISMS.values():
    m = kind.examples()[0]
    q, k, v, learned = attn.testing.inputs(m)
    mask = attn.Causal() if attn.Causal in m.requires else attn.FULL
    out = jax.eval_shape(lambda q: m(q, k, v, mask=mask, **learned), q)
    assert out.shape == (*q.shape[:-1], v.shape[-1])
print("light")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "light", run.stderr


def test_records_start_no_backend():
    program = """
import attn
from jax._src import xla_bridge
started = [kind.__name__ for kind in attn.MECHANISMS.values() if kind() and xla_bridge._backends]
print(started)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr or f"JAX starts from {run.stdout} on"
