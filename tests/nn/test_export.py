"""An encoder in a file and back: equal, and every file that is not one is a clear error."""

import dataclasses
import errno
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toy_mechanism import SOFTMAX, Toy, build, config, run

import attn
from attn.gates import Uniform
from attn.nn import LSTM, MIXERS, Decoder, export
from attn.positions import Rotary

safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 6)), jnp.int32)
YARN = Rotary(scaling="yarn", factor=4.0, original_length=100)
FORMS = [
    dict(layers=2, scan=True, bias=True, positions="t5", mechanism=SOFTMAX),
    dict(layers=2, tied=True, positions="rotary", rotary=YARN, mechanism=SOFTMAX),
    dict(layers=2, mechanism=(LSTM(), attn.BlockSparse()), embedding_norm=True, pooling="cls"),
]


def saved(tmp_path, **changes):
    encoder = build(**changes)
    export.save(tmp_path / "encoder.safetensors", encoder)
    return encoder, tmp_path / "encoder.safetensors"


@pytest.mark.parametrize("form", FORMS, ids=lambda f: "-".join(f))
def test_what_is_loaded_is_what_was_saved(tmp_path, form):
    encoder, path = saved(tmp_path, **form)
    other = export.load(path)
    assert other.config == encoder.config
    jax.tree.map(np.testing.assert_array_equal, nnx.state(other), nnx.state(encoder))
    assert nnx.graphdef(other) == nnx.graphdef(encoder)
    np.testing.assert_array_equal(run(other, TOKENS), run(encoder, TOKENS))
    assert os.listdir(tmp_path) == [path.name]


def test_arrays_that_layers_share_are_shared_again(tmp_path):
    sharing = attn.Linformer(features=3, sharing="layer")
    _, path = saved(tmp_path, layers=2, mechanism=sharing)
    first, second = (block.attention.learned for block in export.load(path).stack.blocks)
    assert all(first[name] is second[name] for name in sharing.shared_by_layers)


def test_a_learned_number_keeps_its_shape(tmp_path, monkeypatch):
    class Sharp(Toy):
        def init(self, key, **sizes):
            return {**super().init(key, **sizes), "depth": jnp.float32(2)}

    monkeypatch.setitem(attn.MECHANISMS, "sharp", Sharp)
    _, path = saved(tmp_path, mechanism=Sharp())
    (block,) = export.load(path).stack.blocks
    assert block.attention.learned["depth"][...].shape == ()


def test_every_setting_of_every_mechanism_has_a_text():
    for kind in (*attn.MECHANISMS.values(), *MIXERS.values()):
        for mechanism in kind.examples():
            text = json.dumps(export._plain(mechanism), allow_nan=False)
            assert export._value(json.loads(text)) == mechanism


def test_a_file_that_is_cut_off_or_foreign_is_one_clear_error(tmp_path):
    from safetensors.numpy import save

    _, path = saved(tmp_path)
    whole, one = path.read_bytes(), {"x": np.ones(3)}
    foreign = [b"", b"PK\x03\x04", os.urandom(99), save(one), save(one, {"format": "pt"})]
    deep = "[" * 100_000
    for text in ("[]", "{}", deep, "none", '{"widht": 3}', '{"mechanism": {"mechanism": "soft"}}'):
        foreign.append(save(one, {"format": export.FORMAT, "config": text}))
    for data in (*(whole[:n] for n in (7, 8, 100, len(whole) - 1)), whole + b"0", *foreign):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"encoder.safetensors: expected a file of attn.nn.ex"):
            export.load(path)
    with pytest.raises(FileNotFoundError):
        export.load(tmp_path / "nothing")


def test_every_array_that_is_wrong_is_named(tmp_path):
    from safetensors.numpy import load, save

    _, path = saved(tmp_path)
    data = path.read_bytes()
    head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    arrays = load(data)
    del arrays["norm.scale"]
    arrays["more"] = np.ones(2)
    arrays["norm.bias"] = arrays["norm.bias"].astype(np.float16)
    arrays["embedding.tokens"] = arrays["embedding.tokens"][1:]
    path.write_bytes(save(arrays, head))
    with pytest.raises(ValueError, match="not as its config says") as error:
        export.load(path)
    assert str(error.value).split("\n")[1:] == [
        "embedding.tokens: expected float32[11, 12], got float32[10, 12]",
        "more: expected no such array, got float64[2]",
        "norm.bias: expected float32[12], got float16[12]",
        "norm.scale: expected float32[12], got none",
    ]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    _, path = saved(tmp_path)
    before = path.read_bytes()

    def killed(*_):
        raise KeyboardInterrupt

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, killed)
            with pytest.raises(KeyboardInterrupt):
                export.save(path, build(seed=1))
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == [path.name]

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"\[Errno 28\] No space left on device: '.*'$") as raised:
        export.save(path, build(seed=1))
    assert raised.value.filename == str(path)
    assert path.read_bytes() == before


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nested(Toy):
    start: Uniform = dataclasses.field(default_factory=lambda: Uniform(0.5))


def test_what_is_no_parameter_or_has_no_name_is_refused(tmp_path):
    path = tmp_path / "x"
    decoder = Decoder(config(head="token", pooling="none"), key=jax.random.key(0))
    with pytest.raises(TypeError, match="encoder: expected an Encoder, got Decoder"):
        export.save(path, decoder)
    encoder = build()
    encoder.noise = nnx.RngKey(jax.random.key(0))
    encoder.count = nnx.Variable(3)
    encoder.norm.scale.set_value(jnp.ones(12, jnp.bfloat16))
    with pytest.raises(ValueError, match="encoder: not as its config says") as error:
        export.save(path, encoder)
    lines = str(error.value).split("\n")[1:]
    assert [line.partition(":")[0] for line in lines] == ["count", "noise", "norm.scale"]
    assert "got key<fry>[]" in lines[1]
    with pytest.raises(ValueError, match="mechanism: Toy has no name in a table of attn"):
        export.save(path, build(mechanism=Toy()))
    with pytest.raises(ValueError, match="mechanism: Uniform has no name in a table of attn"):
        export.save(path, build(mechanism=Nested()))
    assert not path.exists()
