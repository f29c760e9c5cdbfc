"""Norms: how a layer normalises the outputs of a mechanism's heads."""

import dataclasses

from attn._settings import check_flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadNorm:
    """times * scale * y / sqrt(mean(y^2) + 1e-6) of each head's output y, or of all heads of a
    token side by side if `together` (Zhang & Sennrich 2019, arXiv:1910.07467).

    `centred` makes it a group norm (Wu & He 2018, arXiv:1803.08494), times * (scale * (y - mean) /
    sqrt(var + 1e-5 H) + shift) of each head of width H, with a scale and a shift for each of its
    channels: RWKV's, whose epsilon is 64e-5 for heads of 64. The learned scale starts at `start`.
    """

    times: float = 1.0
    together: bool = False
    centred: bool = False
    start: float = 1.0

    def __post_init__(self):
        check_flags(self)
        if self.together and self.centred:
            raise ValueError("together: expected False with centred=True, a norm of each head")
