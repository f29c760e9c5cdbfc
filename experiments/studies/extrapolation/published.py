"""The published orders, best first, of encodings on rows longer than those trained on."""

ORDERS = {
    # perplexity on WikiText-103, figure 1
    "Press et al. 2021": ("alibi", "t5", "rotary", "sinusoidal"),
    # mean reciprocal rank over tasks of reasoning and arithmetic; APE is sinusoidal there
    "Kazemnejad et al. 2023": ("none", "t5", "alibi", "rotary", "sinusoidal"),
}
