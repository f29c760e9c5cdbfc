"""Table 2 of Long Range Arena (Tay et al. 2020, arXiv:2011.04006): batches of 32 texts by bytes on
4 x 4 TPU v3 chips; its models by our names."""

LENGTHS = (1000, 2000, 3000, 4000)
# steps a second at each length, as multiples of the Transformer's
SPEED = {
    "local": (1.1, 1.7, 3.2, 5.3),
    "linformer": (1.2, 1.9, 3.7, 5.5),
    "reformer": (0.5, 0.4, 0.7, 0.8),
    "sinkhorn": (1.1, 1.6, 2.9, 3.8),
    "synthesizer": (1.1, 1.2, 2.9, 1.4),
    "bigbird": (0.9, 0.8, 1.2, 1.1),
    "linear": (1.1, 1.9, 3.7, 5.6),
    "performer": (1.2, 1.9, 3.8, 5.7),
}
# GB a device at the longest
MEMORY = {
    "softmax": 9.48,
    "local": 1.37,
    "linformer": 0.99,
    "reformer": 2.28,
    "sinkhorn": 1.48,
    "synthesizer": 6.99,
    "bigbird": 2.88,
    "linear": 1.03,
    "performer": 1.06,
}
