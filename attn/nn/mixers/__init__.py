"""Token mixers that are not attention, for an encoder's layers: what attention is compared with."""

from attn.nn.mixers.average import Average as Average
from attn.nn.mixers.base import Mixer as Mixer
from attn.nn.mixers.base import MixerLayer as MixerLayer
from attn.nn.mixers.convolution import Conv as Conv
from attn.nn.mixers.convolution import DepthwiseConv as DepthwiseConv
from attn.nn.mixers.fourier import FNet as FNet
from attn.nn.mixers.recurrent import GRU as GRU
from attn.nn.mixers.recurrent import LSTM as LSTM

MIXERS: dict[str, type[Mixer]] = {
    "lstm": LSTM,
    "gru": GRU,
    "conv": Conv,
    "depthwise_conv": DepthwiseConv,
    "fnet": FNet,
    "average": Average,
}
