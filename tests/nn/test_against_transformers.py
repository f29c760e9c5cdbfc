"""Layers of Hugging Face's transformers and ours with the same weights: the same outputs, and those
of causal ones token after token."""

import importlib
from types import SimpleNamespace as Config

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn.masks import Causal, Padding
from attn.nn import Attention
from attn.positions import Rotary, alibi_slopes, t5_bucket

B, T, W, N, H = 2, 8, 20, 2, 6
X = np.random.default_rng(7).normal(size=(B, T, W)).astype(np.float32)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed (an optional extra)")


def model(name):
    pytest.importorskip("transformers")
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def weights_of(torch, peer):
    """What a layer holds, none of it as it starts: ones and zeros would hide much."""
    torch.manual_seed(0)
    with torch.no_grad():
        for param in peer.parameters():
            param.normal_(0.0, 0.4)
    peer.eval()
    return {name: x.detach().numpy() for name, x in peer.named_parameters()}


def output(torch, peer, *args, **kwargs):
    with torch.no_grad():
        out = peer(torch.tensor(X), *args, **kwargs)
    return (out[0] if isinstance(out, tuple) else out).numpy()


def layer(mechanism, **kwargs):
    sizes = dict(num_heads=N, num_kv_heads=N, head_dim=H, max_length=T) | kwargs
    return Attention(W, mechanism=mechanism, key=jax.random.key(0), **sizes)


def put(param, x):
    x = jnp.asarray(x)
    assert param.shape == x.shape
    param[...] = x


def columns(state, *names):
    """Kernels side by side, [inputs, outputs]."""
    return np.concatenate([state[f"{name}.weight"] for name in names]).T


def check(ours, want, turned=False):
    """Of a causal layer: all at once, and after a prompt of all but the last token."""
    x = jnp.asarray(X)
    at = lambda *span: {"positions": jnp.arange(*span)} if turned else {}
    got = ours(x, mask=Causal(), **at(T))
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
    state, first = ours.prefill(x[:, :-1], max_length=T, **at(T - 1))
    last = ours.step(state, x[:, -1:], **at(T - 1, T))[1]
    np.testing.assert_allclose(jnp.concatenate([first, last], 1), want, rtol=2e-4, atol=2e-5)


def future(torch):
    return torch.full((T, T), -torch.inf).triu(1)[None, None]


def turns(torch, width):
    """Rotary positions as all of these layers take them: (cosines, sines) [1, T, width]."""
    angles = np.arange(T)[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)
    angles = torch.tensor(np.concatenate([angles, angles], -1)[None], dtype=torch.float32)
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("interleaved", [False, True])
def test_latent_is_deepseek_v3s(interleaved, torch):
    """Its queries not compressed. Our rotated channels come first; its gain is part of `key_up` and
    `value_up`; channels that it takes in pairs of neighbours are taken apart."""
    R, rest, D, rank = 4, 6, 10, 16
    config = Config(
        **dict(hidden_size=W, num_attention_heads=N, num_key_value_heads=N, q_lora_rank=None),
        **dict(qk_rope_head_dim=R, qk_nope_head_dim=rest, v_head_dim=D, kv_lora_rank=rank),
        **dict(attention_dropout=0.0, attention_bias=False, rope_interleave=interleaved),
        **dict(rope_parameters={"rope_type": "default"}, _attn_implementation="eager"),
    )
    peer = model("deepseek_v3").DeepseekV3Attention(config, 0)
    state = weights_of(torch, peer)
    want = output(torch, peer, turns(torch, R), future(torch))

    turned = np.r_[0:R:2, 1:R:2] if interleaved else np.arange(R)
    q = state["q_proj.weight"].reshape(N, rest + R, W)
    q = np.concatenate([q[:, rest:][:, turned], q[:, :rest]], 1).reshape(-1, W)
    kv = state["kv_a_proj_with_mqa.weight"]
    up = (state["kv_b_proj.weight"] * state["kv_a_layernorm.weight"]).reshape(N, rest + D, rank)
    sizes = dict(num_kv_heads=1, head_dim=R + rest, rotary=Rotary(fraction=R / (R + rest)))
    ours = layer(attn.Latent(decoupled=R), **sizes)
    put(ours.qkv, np.concatenate([q, kv[rank:][turned], kv[:rank]]).T)
    put(ours.learned.key_up, up[:, :rest].swapaxes(1, 2))
    put(ours.learned.value_up, up[:, rest:].swapaxes(1, 2))
    put(ours.out, columns(state, "o_proj"))
    check(ours, want, turned=True)


def put_delta_rule(ours, state):
    """What both layers with a gated delta rule have; the last tap is that of the token itself."""
    put(ours.short_conv.kernel, state["conv1d.weight"][:, 0, ::-1].T)
    put(ours.gates.projections.log_decay.a_log, state["A_log"].reshape(N))
    put(ours.gates.projections.log_decay.bias, state["dt_bias"])


def test_kda_is_kimi_linears(torch):
    config = Config(
        **dict(hidden_size=W, linear_head_dim=H, linear_num_heads=N, linear_conv_kernel_dim=4),
        **dict(hidden_act="silu", rms_norm_eps=1e-6, layer_types=["linear_attention"]),
    )
    peer = model("kimi_linear").KimiLinearDeltaAttention(config, 0)
    state = weights_of(torch, peer)
    state |= {name.removeprefix("forget_gate."): x for name, x in state.items()}
    ours = layer(attn.KDA(chunk=4))
    put(ours.qkv, columns(state, "q_proj", "k_proj", "v_proj"))
    put_delta_rule(ours, state)
    gates = ours.gates.projections
    put(gates.log_decay.down, columns(state, "f_a_proj"))
    put(gates.log_decay.up, columns(state, "f_b_proj"))
    put(gates.beta.kernel, columns(state, "b_proj"))
    gate = ours.out_gate.projections.output_gate
    put(gate.down, columns(state, "g_a_proj"))
    put(gate.up, columns(state, "g_b_proj"))
    put(gate.bias, np.zeros(N * H))
    put(ours.head_norm.scale, state["o_norm.weight"])
    put(ours.out, columns(state, "o_proj"))
    check(ours, output(torch, peer))


def test_gated_delta_net_is_qwen3_nexts(torch):
    config = Config(
        **dict(hidden_size=W, linear_num_value_heads=N, linear_num_key_heads=N),
        **dict(linear_key_head_dim=H, linear_value_head_dim=H, linear_conv_kernel_dim=4),
        **dict(hidden_act="silu", rms_norm_eps=1e-6, layer_types=["linear_attention"]),
    )
    peer = model("qwen3_next").Qwen3NextGatedDeltaNet(config, 0)
    state = weights_of(torch, peer)
    ours = layer(attn.GatedDeltaNet(chunk=4))
    # q, k, v and gate of a head beside each other, and its write strength beside its time step
    q, k, v, z = state["in_proj_qkvz.weight"].reshape(N, 4, H, W).swapaxes(0, 1).reshape(4, -1, W)
    strength, step = state["in_proj_ba.weight"].reshape(N, 2, W).swapaxes(0, 1)
    put(ours.qkv, np.concatenate([q, k, v]).T)
    put(ours.out_gate, z.T)
    put_delta_rule(ours, state)
    put(ours.gates.projections.log_decay.kernel, step.T)
    put(ours.gates.projections.beta.kernel, strength.T)
    put(ours.head_norm.scale, state["norm.weight"])
    put(ours.out, columns(state, "out_proj"))
    check(ours, output(torch, peer))


def test_mamba2_is_theirs(torch):
    config = Config(
        **dict(hidden_size=W, num_heads=N, head_dim=H, state_size=H, n_groups=N, expand=N * H / W),
        **dict(conv_kernel=4, use_conv_bias=True, use_bias=False, hidden_act="silu", chunk_size=4),
        **dict(time_step_rank=1, time_step_limit=(0.0, float("inf")), layer_norm_epsilon=1e-6),
        **dict(time_step_min=1e-3, time_step_max=0.1, time_step_floor=1e-4),
        **dict(layer_types=["mamba"]),
    )
    peer = model("mamba2").Mamba2Mixer(config, 0)
    state = weights_of(torch, peer)
    peer.norm.group_size = N * H  # of one group, whatever those of B and C
    gate, v, b, c, step = np.split(state["in_proj.weight"], np.arange(1, 5) * N * H)
    backwards = lambda x: np.concatenate(np.split(x, 3)[::-1])  # theirs: values, keys, queries
    ours = layer(attn.Mamba2(chunk=4))
    put(ours.qkv, np.concatenate([c, b, v]).T)
    put(ours.short_conv.kernel, backwards(state["conv1d.weight"])[:, 0, ::-1].T)
    put(ours.short_conv.bias, backwards(state["conv1d.bias"]))
    put(ours.gates.projections.dt.kernel, step.T)
    put(ours.gates.projections.dt.bias, state["dt_bias"])
    put(ours.learned.a_log, state["A_log"])
    put(ours.learned.d, state["D"])
    put(ours.out_gate, gate.T)
    put(ours.head_norm.scale, state["norm.weight"])
    put(ours.out, columns(state, "out_proj"))
    check(ours, output(torch, peer))


def test_differential_is_diffllamas(torch):
    """Its pairs are the heads h and h + N; layer 2's lambda starts at 0.8 - 0.6 exp(-0.6)."""
    config = Config(
        **dict(hidden_size=W, num_attention_heads=2 * N, num_key_value_heads=2 * N, head_dim=H),
        **dict(attention_dropout=0.0, attention_bias=False, lambda_std_dev=0.1, rms_norm_eps=1e-6),
        _attn_implementation="eager",
    )
    peer = model("diffllama").DiffLlamaAttention(config, 2)
    state = weights_of(torch, peer)
    want = output(torch, peer, turns(torch, H), future(torch))
    sizes = dict(head_dim=2 * H, rotary=Rotary())
    ours = layer(attn.Differential(lambda_init=0.8 - 0.6 * np.exp(-0.6)), **sizes)
    paired = lambda x: x.reshape(2, N, H, W).swapaxes(0, 1).reshape(-1, W)
    names = ("q_proj", "k_proj", "v_proj")
    put(ours.qkv, np.concatenate([paired(state[f"{name}.weight"]) for name in names]).T)
    for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
        put(ours.learned[name], state[name])
    put(ours.head_norm.scale, np.ones(2 * H))
    put(ours.out, columns(state, "o_proj"))
    check(ours, want, turned=True)


def test_nystrom_is_theirs(torch):
    """For one row and one head: theirs starts all from one norm."""
    config = Config(
        **dict(hidden_size=W, num_attention_heads=1, num_landmarks=4, segment_means_seq_len=T),
        **dict(conv_kernel_size=3, inv_coeff_init_option=False, attention_probs_dropout_prob=0.0),
    )
    peer = model("nystromformer").NystromformerSelfAttention(config)
    state = weights_of(torch, peer)
    sizes = dict(num_heads=1, num_kv_heads=1, head_dim=W, bias=True)
    ours = layer(attn.Nystrom(landmarks=4, conv_kernel=3), **sizes)
    names = ("query", "key", "value")
    put(ours.qkv, columns(state, *names))
    put(ours.bias.qkv, np.concatenate([state[f"{name}.bias"] for name in names]))
    put(ours.learned.conv, state["conv.weight"][:, 0, :, 0])
    put(ours.out, np.eye(W))
    got = ours(jnp.asarray(X[:1]))
    np.testing.assert_allclose(got, output(torch, peer)[:1], rtol=2e-3, atol=2e-4)


def test_global_window_is_longformers(torch):
    """Its tokens 0 and 5 are global and have projections of their own; row 1 has 7 tokens."""
    config = Config(
        **dict(hidden_size=W, num_attention_heads=N, attention_window=[4]),
        attention_probs_dropout_prob=0.0,
    )
    peer = model("longformer").LongformerSelfAttention(config, 0)
    state = weights_of(torch, peer)
    kind = torch.zeros(B, T)
    kind[:, [0, 5]], kind[1, 7:] = 10_000.0, -10_000.0
    said = dict(is_index_masked=kind < 0, is_index_global_attn=kind > 0, is_global_attn=True)
    want = output(torch, peer, attention_mask=kind, **said)

    mechanism = attn.GlobalWindow(window=2, positions=(0, 5), separate=True)
    ours = layer(mechanism, head_dim=W // N, bias=True)
    names = ("query", "key", "value")
    put(ours.qkv, columns(state, *names))
    put(ours.bias.qkv, np.concatenate([state[f"{name}.bias"] for name in names]))
    for name in names:
        own = ours.gates.projections[f"global_{name[0]}"]
        put(own.kernel, columns(state, f"{name}_global"))
        put(own.bias, state[f"{name}_global.bias"])
    put(ours.out, np.eye(W))
    got = ours(jnp.asarray(X), mask=Padding(jnp.array([8, 7])))
    real = np.arange(T) < np.array([8, 7])[:, None]
    np.testing.assert_allclose(np.asarray(got)[real], want[real], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("rounds", "chunk"), [(1, 2), (3, 4)])
def test_reformer_is_theirs(rounds, chunk, torch, monkeypatch):
    """With all tokens in one bucket, as theirs see across buckets. Theirs in float64: a token that
    sees itself alone has a score of -1e5, which rounds the shares of rounds in float32."""
    config = Config(
        **dict(hidden_size=W, num_attention_heads=N, attention_head_size=W // N, is_decoder=True),
        **dict(lsh_attn_chunk_length=chunk, num_hashes=rounds, num_buckets=2, hash_seed=None),
        **dict(lsh_num_chunks_before=1, lsh_num_chunks_after=0, max_position_embeddings=T),
        lsh_attention_probs_dropout_prob=0.0,
    )
    peer = model("reformer").LSHSelfAttention(config)
    state = weights_of(torch, peer)
    with torch.no_grad():
        monkeypatch.setattr(torch, "randn", torch.zeros)  # its rotations
        want = peer.double()(torch.tensor(X, dtype=torch.float64))[0].numpy()

    mechanism = attn.Reformer(buckets=2, rounds=rounds, chunk=chunk, shared_qk=True)
    ours = layer(mechanism, head_dim=W // N)
    put(ours.qkv, columns(state, "query_key", "value"))
    put(ours.learned.rotations, np.zeros((N, rounds, W // N, 1)))
    put(ours.out, np.eye(W))
    check(ours, want)


SINKS = np.random.default_rng(4).normal(size=2 * N).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "mechanism", "learned", "how"),
    [
        ("gpt_oss", attn.Softmax(sinks="learned"), {"sinks": jnp.asarray(SINKS)}, {}),
        ("gemma2", attn.Softmax(logit_cap=1.5), {}, {"softcap": 1.5}),
    ],
)
def test_softmax_with_sinks_or_a_cap_is_theirs(name, mechanism, learned, how, torch):
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=(B, T, n, H)).astype(np.float32) for n in (2 * N, N, N))
    module = Config(num_key_value_groups=2, training=False, sinks=torch.tensor(SINKS))
    given = [torch.tensor(x.swapaxes(1, 2)) for x in (q, k, v)]
    attend = model(name).eager_attention_forward
    want = attend(module, *given, future(torch), scaling=H**-0.5, **how)[0].numpy()
    got = mechanism(*map(jnp.asarray, (q, k, v)), mask=Causal(), **learned)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def test_positions_are_t5s_and_blooms(torch):
    buckets = model("t5").T5Attention._relative_position_bucket
    apart = np.arange(-3000, 3001)
    for size, far, both in ((32, 128, True), (32, 128, False), (16, 20, True), (64, 1000, False)):
        said = dict(num_buckets=size, max_distance=far, bidirectional=both)
        got = t5_bucket(np.zeros_like(apart), apart, **said)
        np.testing.assert_array_equal(got, buckets(torch.tensor(apart), **said).numpy())
    for heads in (1, 6, 8, 31):
        want = model("bloom")._get_alibi_slopes(heads, "cpu").numpy().ravel()
        np.testing.assert_allclose(alibi_slopes(heads), want, rtol=1e-6)
