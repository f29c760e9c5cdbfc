"""attn: attention variants as pure functions, with a small frozen record beside each.

`import attn` needs jax, numpy and jaxtyping only; Flax modules live in `attn.nn`.
"""

from attn import masks as masks
from attn import positions as positions
from attn.biases import Alibi as Alibi
from attn.biases import ArrayBias as ArrayBias
from attn.biases import Bias as Bias
from attn.biases import Relative as Relative
from attn.dense.dot_product import Softmax as Softmax
from attn.dense.dot_product import dot_product_attention as dot_product_attention
from attn.masks import FULL as FULL
from attn.masks import Array as Array
from attn.masks import Axial as Axial
from attn.masks import Blocks as Blocks
from attn.masks import Causal as Causal
from attn.masks import Dilated as Dilated
from attn.masks import Fixed as Fixed
from attn.masks import Global as Global
from attn.masks import Mask as Mask
from attn.masks import Padding as Padding
from attn.masks import Prefix as Prefix
from attn.masks import Random as Random
from attn.masks import Segments as Segments
from attn.masks import Strided as Strided
from attn.masks import Window as Window
from attn.mechanism import Mechanism as Mechanism

MECHANISMS: dict[str, type[Mechanism]] = {
    "softmax": Softmax,
}
