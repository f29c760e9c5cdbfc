"""How learned arrays start, each as its paper or its authors' code has it: NumPy draws them anew.

Where a paper gives no start, or one for its own sizes, scores begin with unit variance: the comment
in `init` says so.
"""

import functools

import jax
import numpy as np
import pytest

from attn import MECHANISMS, Luong

DRAWS, DECILES = 256, np.linspace(0.1, 0.9, 9)
N, K, H, D, L = 4, 2, 16, 24, 20
SIZES = dict(num_heads=N, num_kv_heads=K, head_dim=H, value_dim=D, max_length=L)


def normal(deviation):
    return lambda rng, shape: deviation * rng.normal(size=shape)


def uniform(most):
    return lambda rng, shape: rng.uniform(-most, most, shape)


def unit_vectors(rng, shape):
    x = rng.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def log_of_1_to_16(rng, shape):
    return np.log(rng.uniform(1, 16, shape))


def lecun(fan_in):
    return normal(fan_in**-0.5)


def in_channels(x):
    return np.reshape(x, (N, H))


# for each mechanism, what a record of it draws, or the very numbers
STARTS = {
    "softmax": lambda m: {"sinks": np.zeros(N), "temperature": np.ones(N)},
    "additive": lambda m: {
        "query_projection": lecun(H),
        "key_projection": lecun(H),
        "score_vector": lecun(m.hidden or H),
    },
    "luong": lambda m: {
        "score_projection": lecun(H),
        "query_projection": lecun(H),
        "key_projection": lecun(H),
        "score_vector": lecun(H),
        "position_projection": lecun(H),
        "position_vector": lecun(H),
    },
    "differential": lambda m: {f"lambda_{x}": normal(0.1) for x in ("q1", "k1", "q2", "k2")},
    "talking_heads": lambda m: {"logit_mixing": lecun(N), "weight_mixing": lecun(N)},
    "latent": lambda m: dict.fromkeys(("key_up", "value_up"), lecun(H - m.decoupled + D)),
    "synthesizer": lambda m: {
        "w1": lecun(H),
        "b1": np.zeros((N, m.hidden or H)),
        "w2": lecun(m.hidden or H),
        "b2": np.zeros((N, L)),
        "logits": normal(1),
    },
    "hedgehog": lambda m: {
        "query_map": np.stack([np.eye(H, m.features or H)] * N),
        "key_map": np.stack([np.eye(H, m.features or H)] * K),
    },
    "rfa": lambda m: {"sigma": np.ones((K, H))},
    "mamba2": lambda m: {"a_log": log_of_1_to_16, "d": np.ones(N)},
    "hgrn2": lambda m: {"lower_bounds": np.zeros((K, m.layers, H))},
    "rwkv6": lambda m: {"bonus": in_channels(0.1 * np.resize([0, 1, -1], N * H))},
    "rwkv7": lambda m: {
        "k_k": in_channels(0.71 - 0.1 * (np.arange(N * H) / (N * H - 1) - 0.5)),
        "k_a": np.full((N, H), 1.02),
    },
    "reformer": lambda m: {"rotations": normal(1)},
    "routing": lambda m: {"centroids": unit_vectors},
    "sinkhorn": lambda m: {"sorting": lecun(H)},
    "nsa": lambda m: {
        "key_position": normal(0.02),
        "key_up": lecun(m.compression_block * H),
        "key_down": lecun(H / 2),
        "value_position": normal(0.02),
        "value_up": lecun(m.compression_block * D),
        "value_down": lecun(D / 2),
    },
    "linformer": lambda m: dict.fromkeys(
        ("key_projection", "value_projection"), normal(m.features**-0.5)
    ),
    "nystrom": lambda m: {"conv": uniform(m.conv_kernel**-0.5)},
    "pooled": lambda m: {"key_kernel": lecun(m.stride * H), "value_kernel": lecun(m.stride * D)},
    "poolingformer": lambda m: {
        "query_projection": lecun(D),
        "key_projection": lecun(D),
        "value_projection": lecun(D),
        "key_pool": lecun(H),
        "value_pool": lecun(D),
    },
    "set": lambda m: {"inducing_points": normal(1), "key_map": lecun(D)},
    "luna": lambda m: {"packed": normal(1)},
    "abc": lambda m: {"control": lecun(H)},
}

# settings that no example has, with arrays of their own
FURTHER = {"luong": (Luong(score="general"),)}

LEARNED = [
    pytest.param(name, record, id=f"{name}-{n}")
    for name, kind in MECHANISMS.items()
    for n, record in enumerate((*kind.examples(), *FURTHER.get(name, ())))
    if jax.eval_shape(functools.partial(record.init, **SIZES), jax.random.key(0))
]


@pytest.mark.parametrize(("name", "record"), LEARNED)
def test_learned_arrays_start_as_published(name, record):
    starts = STARTS[name](record)
    made = jax.vmap(functools.partial(record.init, **SIZES))(
        jax.random.split(jax.random.key(0), DRAWS)
    )
    sums = []
    for array, x in made.items():
        x, start = np.asarray(x), starts[array]
        if not callable(start):
            np.testing.assert_allclose(x, np.broadcast_to(start, x.shape), atol=1e-6, err_msg=array)
            continue
        expected = start(np.random.default_rng(0), (10_000, x.shape[-1]))
        off = np.subtract(*(np.quantile(y, DECILES) for y in (x, expected))) / expected.std()
        assert np.abs(off).max() < 0.15, (array, off)
        x = (x - expected.mean()) / expected.std()
        sums.append(x.reshape(DRAWS, -1).sum(1) / np.sqrt(x[0].size))
    # of numbers drawn apart, in one array and in all of them: two heads alike would give a 2
    if sums:
        assert np.abs(np.cov(sums) - np.eye(len(sums))).max() < 0.4, np.cov(sums)
