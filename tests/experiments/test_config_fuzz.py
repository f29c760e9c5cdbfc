"""Whatever a configuration is, it is right or refused: exit 2, all named, no traceback."""

import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_experiment import TINY, tiny, write_config

from experiments import train
from experiments.errors import ConfigError
from experiments.validation import from_dict, to_dict

ODD = {
    "nothing": None,
    "a switch": True,
    "empty": "",
    "a word": "no such",
    "text of a number": "3",
    "a control character": "\0",
    "long": "é" * 10_000,
    "negative": -1,
    "zero": 0,
    "a fraction": 1.5,
    "nan": math.nan,
    "infinite": math.inf,
    "beyond 64 bits": 10**30,
    "a list": [1, "x", None],
    "an empty list": [],
    "a dict": {"nope": 1},
    "an object": object(),
    "bytes": b"\xff",
}


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every field and every section."""
    if path:
        yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, (*path, name))


def changed(values: dict, path: tuple[str, ...], value: Any) -> dict:
    name, *rest = path
    inner = changed(values[name], tuple(rest), value) if rest else value
    return {**values, name: inner}


FULL = to_dict(tiny())
PLACES = list(leaves(FULL))


def refusal(raw: dict) -> list[str] | None:
    """The mistakes, None if there are none; anything but a ConfigError fails the test."""
    try:
        from_dict(raw)
    except ConfigError as error:
        return list(error.problems) or pytest.fail("refused without a reason")
    return None


def test_any_odd_value_in_any_field_is_right_or_refused_by_name(capsys):
    cases = [(path, what) for path in PLACES for what in ODD]
    refused, worst = 0, (0.0, None)
    for path, what in cases:
        start = time.perf_counter()
        found = refusal(changed(FULL, path, ODD[what]))
        worst = max(worst, (time.perf_counter() - start, f"{'.'.join(path)}: {what}"))
        if found is None:
            continue
        refused += 1
        # by its own name or that of a field beside it that no longer fits
        assert any(path[0] in line or path[-1] in line for line in found), (path, what, found)
        assert all(len(line) < 500 for line in found), (path, what)
    print(f"{len(cases)} values: {refused} refused, the slowest in {worst[0]:.3f} s ({worst[1]})")
    assert refused > len(cases) / 2


def test_mistakes_in_many_fields_are_named_together():
    rng, count = random.Random(0), 0
    for _ in range(40):
        raw, chosen = FULL, []
        for path in rng.sample([p for p in PLACES if len(p) == 2 and p[1] != "name"], 6):
            if isinstance(FULL[path[0]][path[1]], dict):
                continue
            chosen.append(path)
            raw = changed(raw, path, {"nope": 1})
        section = rng.choice(["model", "train", "optimizer", "task"])
        raw = changed(raw, (section, "unheard_of"), 1)
        raw = changed(raw, ("seed",), math.nan)
        found = refusal(raw)
        for name in [*map(".".join, chosen), f"{section}.unheard_of", "seed"]:
            assert any(line.startswith(f"{name}: ") for line in found), (name, found)
            count += 1
    print(f"{count} mistakes in 40 configurations, all named at once")


def test_more_mistakes_than_anyone_reads_are_counted():
    with pytest.raises(ConfigError) as error:
        from_dict(FULL | {f"x{i}": i for i in range(1000)})
    first, *lines, last = str(error.value).splitlines()
    assert first == "1000 mistakes:"
    assert len(lines) == 100
    assert all("unknown field" in line for line in lines)
    assert last == "  and 900 more"


def texts() -> Iterator[tuple[str, bytes]]:
    """Files that are no configuration."""
    rng, good = random.Random(0), f"def get_config():\n    return {TINY!r}\n".encode()
    yield "empty", b""
    yield "blank", b"\n \n\t"
    yield "ten megabytes", b"#" * 10_000_000
    yield "a marker of another encoding", b"\xff\xfe" + good
    yield "a lone surrogate", b"x = '\xed\xa0\x80'\n" + good
    yield "deep brackets", b"x = " + b"[" * 10_000 + b"]" * 10_000
    yield "deep dicts", b"def get_config():\n    return " + b"{'a': " * 90 + b"1" + b"}" * 90
    yield "long chain", b"x = 1" + b" + 1" * 100_000
    yield "itself", b"def get_config():\n    d = {}\n    d['model'] = d\n    return d\n"
    yield (
        "an endless list",
        b"def get_config():\n    x = []\n    x.append(x)\n    return {'a': x}\n",
    )
    yield "recursion", b"def get_config():\n    return get_config()\n"
    yield "an exit", b"import sys\nsys.exit(0)\n"
    yield "a class", b"class get_config: pass\n"
    yield "nothing is returned", b"def get_config(): pass\n"
    yield "one key twice", good.replace(b"'model': {", b"'model': {'layers': 3, ")
    yield "one section twice", good.replace(b"'model':", b"'train': {}, 'model':")
    yield "ten megabytes of a value", b"def get_config():\n    return {'task': 'x' * 10_000_000}\n"
    yield "a thousand fields", b"def get_config():\n    return {str(i): i for i in range(1000)}\n"
    many = b"{str(i) + 'x': i for i in range(10_000)}"
    yield "ten thousand fields", b"def get_config():\n    return " + many
    literal = ", ".join(f"'x{i}': {i}" for i in range(10_000)).encode()
    yield "ten thousand keys", good.replace(b"return {", b"return {" + literal + b", ")
    for length in (1, 10, 100, 1000, 100_000):
        yield f"{length} random bytes", b"\0" + rng.randbytes(length)
    for _ in range(60):  # what a cut or a disturbed line leaves
        at = rng.randrange(1, len(good) - 4)
        yield f"cut at {at}", good[:at]
        yield f"a brace more at {at}", good[:at] + b"}{" + good[at:]


def test_any_file_is_refused_with_exit_2_and_no_traceback(tmp_path: Path, capsys):
    path, worst, count = tmp_path / "c.py", (0.0, ""), 0
    command([f"--config={path}", f"--workdir={tmp_path / 'run'}"])  # imports, which are not timed
    for what, content in texts():
        path.write_bytes(content)
        start = time.process_time()
        code = command([f"--config={path}", f"--workdir={tmp_path / 'run'}"])
        worst = max(worst, (time.process_time() - start, what))
        message = capsys.readouterr().err
        assert code == 2, (what, message)
        assert message.startswith("error: "), (what, message)
        assert "Traceback" not in message, what
        assert len(message) < 100_000, what
        count += 1
    assert [p.name for p in tmp_path.iterdir()] == ["c.py"]
    print(f"{count} files, all refused, the slowest in {worst[0]:.3f} s ({worst[1]})")
    assert worst[0] < 3, worst


def command(arguments: list[str]) -> int:
    return train.main(arguments)


WORDS = [
    "",
    "x",
    "None",
    "[",
    "(" * 5000,
    "{'a': {}}",
    "1e999",
    "nan",
    "9" * 5000,
    "\x00",
    "é" * 9999,
]


@pytest.mark.parametrize("word", WORDS, ids=lambda w: w[:9].encode("unicode_escape").decode())
def test_any_word_of_a_command_line_is_refused(word: str, tmp_path: Path, capsys):
    config = write_config(tmp_path / "c.py")
    names = [
        "model.layers",
        "optimizer.b1",
        "task",
        "model.attention.scale",
        "",
        ".",
        "a..b",
        "x" * 99,
    ]
    arguments = [f"--config.{name}={word}" for name in names]
    assert command([f"--config={config}", f"--workdir={tmp_path / 'run'}", *arguments]) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert "model.layers" in message
    assert "x" * 99 in message


@pytest.mark.parametrize(
    "flag", ["workdi", "w", "conf", "config_", "prog", "noprog", "configs.seed"]
)
def test_an_abbreviated_flag_is_unknown(flag: str, tmp_path: Path, capsys):
    config = write_config(tmp_path / "c.py")
    assert command([f"--config={config}", f"--workdir={tmp_path / 'run'}", f"--{flag}=1"]) == 2
    assert f"--{flag}=1: unknown flag" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
