"""From multi-head to grouped-query weights (Ainslie et al. 2023, arXiv:2305.13245)."""

from jaxtyping import Array, Float

from attn._arrays import check_floats
from attn._settings import check_count


def pool_heads(
    kernel: Float[Array, "*L KH"], *, num_heads: int, groups: int
) -> Float[Array, "*L GH"]:
    """The kernel of K key or value heads with each group of K / G neighbours replaced by its mean,
    from which training continues as a grouped-query model (Ainslie et al. 2023, arXiv:2305.13245).

    Raises ValueError unless `groups` divides `num_heads` and `num_heads` the kernel's width,
    TypeError for a kernel that is not an array of floats.
    """
    check_floats(kernel=kernel)
    check_count("num_heads", num_heads)
    check_count("groups", groups)
    width = kernel.shape[-1]
    if width % num_heads:
        raise ValueError(
            f"num_heads: expected a divisor of kernel's width {width}, got {num_heads}"
        )
    if num_heads % groups:
        raise ValueError(f"groups: expected a divisor of num_heads {num_heads}, got {groups}")
    H = width // num_heads
    pooled = kernel.reshape(*kernel.shape[:-1], groups, num_heads // groups, H).mean(-2)
    return pooled.reshape(*kernel.shape[:-1], groups * H)
