"""Flax (NNX) modules around the primitives; they are used with plain JAX transforms."""

from attn.nn.attention import Attention as Attention
from attn.nn.config import EncoderConfig as EncoderConfig
from attn.nn.config import transformer_base as transformer_base
from attn.nn.convert import with_kv_heads as with_kv_heads
from attn.nn.decoder import Decoder as Decoder
from attn.nn.decoder import DecoderState as DecoderState
from attn.nn.dropout import dropout as dropout
from attn.nn.encoder import Encoder as Encoder
from attn.nn.functional import functional as functional
from attn.nn.functional import parameter_count as parameter_count
from attn.nn.sampling import sample as sample
