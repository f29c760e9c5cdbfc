"""Nothing that is read is ever run: no pickle, no eval, no unsafe YAML, no unchecked archive."""

import ast
import pathlib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = ("attn", "experiments", "configs", "scripts", "benchmarks")
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
CALLS = {"eval", "exec", "compile", "__import__", "extractall", "unpack_archive", "system", "popen"}
YAML = {"load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all"}
# a config is a Python file that its reader was given to run; a job of a cluster reads what this
# process pickled, as submitit reads its own
MEANT = {("experiments/config_file.py", "runpy"), ("experiments/slurm.py", "pickle")}
# numpy.load reads pickles when it is told to, and believes headers: experiments.arrays does not
LOADS = {"np.load", "numpy.load", "np.lib.format.read_array", "np.lib.format.open_memmap"}
METHODS = {"compile"}  # of a lowered computation, or of a pattern


def sources() -> list[pathlib.Path]:
    files = [p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.py"))]
    return files + [p for p in (ROOT / "scripts").iterdir() if _is_python(p)]


def _is_python(path: pathlib.Path) -> bool:
    return path.is_file() and "python" in path.read_text().partition("\n")[0]


def unsafe(tree: ast.AST) -> Iterator[str]:
    """What in a source runs what it reads, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = {getattr(node, "module", None), *(a.name for a in node.names)} - {None}
            yield from sorted({m.partition(".")[0] for m in modules} & (MODULES | {"runpy"}))
        if not isinstance(node, ast.Call):
            continue
        method = isinstance(node.func, ast.Attribute)
        name = node.func.attr if method else getattr(node.func, "id", "")
        of = ast.unparse(node.func.value) if method else ""
        if name in CALLS and not (method and name in METHODS):
            yield name
        if name in YAML and of == "yaml":
            yield f"yaml.{name}"
        if f"{of}.{name}" in LOADS:
            yield f"{of}.{name}"
        for keyword in node.keywords:
            value = getattr(keyword.value, "value", True)
            if keyword.arg in ("allow_pickle", "shell") and value is not False:
                yield keyword.arg


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_that_is_read_is_run(path: pathlib.Path):
    name = str(path.relative_to(ROOT))
    found = {(name, what) for what in unsafe(ast.parse(path.read_text()))}
    assert found <= MEANT, found - MEANT


def test_what_is_meant_is_still_there():
    for name, what in MEANT:
        assert what in set(unsafe(ast.parse((ROOT / name).read_text())))


PLANTED = {
    "import pickle": "pickle",
    "from joblib import load": "joblib",
    "def f():\n    import cloudpickle.fast": "cloudpickle",
    "eval('1')": "eval",
    "exec(text)": "exec",
    "compile(text, 'f', 'exec')": "compile",
    "__import__(name)": "__import__",
    "import runpy": "runpy",
    "tarfile.open(p).extractall(d)": "extractall",
    "shutil.unpack_archive(p)": "unpack_archive",
    "yaml.load(text)": "yaml.load",
    "np.load(p)": "np.load",
    "read(p, allow_pickle=True)": "allow_pickle",
    "read(p, allow_pickle=yes)": "allow_pickle",
    "subprocess.run(c, shell=True)": "shell",
    "os.system(c)": "system",
}


@pytest.mark.parametrize("text", PLANTED)
def test_each_of_them_would_be_found(text: str):
    assert set(unsafe(ast.parse(text))) == {PLANTED[text]}


@pytest.mark.parametrize(
    "text",
    ["re.compile(p)", "read(p, allow_pickle=False)", "json.load(f)", "ast.literal_eval(t)"],
)
def test_what_only_looks_like_one_is_not(text: str):
    assert not set(unsafe(ast.parse(text)))
