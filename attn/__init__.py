"""attn: attention variants as pure functions, with a small frozen record beside each.

`import attn` needs jax, numpy and jaxtyping only; Flax modules live in `attn.nn`.
"""

from attn import biases as biases
from attn import masks as masks
from attn import positions as positions
from attn import testing as testing
from attn._core import dense_attention as dense_attention
from attn._core import dense_weights as dense_weights
from attn._decay import Decay as Decay
from attn._inputs import check_qkv as check_qkv
from attn.biases import Alibi as Alibi
from attn.biases import ArrayBias as ArrayBias
from attn.biases import Bias as Bias
from attn.biases import Relative as Relative
from attn.compressed.abc import ABC as ABC
from attn.compressed.abc import abc_attention as abc_attention
from attn.compressed.linformer import Linformer as Linformer
from attn.compressed.linformer import linformer_attention as linformer_attention
from attn.compressed.luna import Luna as Luna
from attn.compressed.luna import luna_attention as luna_attention
from attn.compressed.nystrom import Nystrom as Nystrom
from attn.compressed.nystrom import nystrom_attention as nystrom_attention
from attn.compressed.pooled import Pooled as Pooled
from attn.compressed.pooled import pooled_attention as pooled_attention
from attn.compressed.poolingformer import Poolingformer as Poolingformer
from attn.compressed.poolingformer import poolingformer_attention as poolingformer_attention
from attn.compressed.set import Set as Set
from attn.compressed.set import set_attention as set_attention
from attn.dense.additive import Additive as Additive
from attn.dense.additive import additive_attention as additive_attention
from attn.dense.differential import Differential as Differential
from attn.dense.differential import differential_attention as differential_attention
from attn.dense.dot_product import Softmax as Softmax
from attn.dense.dot_product import dot_product_attention as dot_product_attention
from attn.dense.dot_product import merge as merge
from attn.dense.dot_product import picked as picked
from attn.dense.forgetting import Forgetting as Forgetting
from attn.dense.forgetting import forgetting_attention as forgetting_attention
from attn.dense.latent import Latent as Latent
from attn.dense.latent import latent_attention as latent_attention
from attn.dense.luong import Luong as Luong
from attn.dense.luong import luong_attention as luong_attention
from attn.dense.relu import Relu as Relu
from attn.dense.relu import relu_attention as relu_attention
from attn.dense.sigmoid import Sigmoid as Sigmoid
from attn.dense.sigmoid import sigmoid_attention as sigmoid_attention
from attn.dense.synthesizer import Synthesizer as Synthesizer
from attn.dense.synthesizer import synthesizer_attention as synthesizer_attention
from attn.dense.talking_heads import TalkingHeads as TalkingHeads
from attn.dense.talking_heads import talking_heads_attention as talking_heads_attention
from attn.heads import multi_head as multi_head
from attn.heads import multi_head_by_head as multi_head_by_head
from attn.heads import single_head as single_head
from attn.heads_conversion import pool_heads as pool_heads
from attn.kernels.dispatch import IMPLEMENTATIONS as IMPLEMENTATIONS
from attn.linearized.based import Based as Based
from attn.linearized.based import based_attention as based_attention
from attn.linearized.cosformer import Cosformer as Cosformer
from attn.linearized.cosformer import cosformer_attention as cosformer_attention
from attn.linearized.delta_net import DeltaNet as DeltaNet
from attn.linearized.delta_net import delta_net_attention as delta_net_attention
from attn.linearized.efficient import Efficient as Efficient
from attn.linearized.efficient import efficient_attention as efficient_attention
from attn.linearized.feature_maps import FEATURE_MAPS as FEATURE_MAPS
from attn.linearized.feature_maps import draw_features as draw_features
from attn.linearized.feature_maps import orthogonal_features as orthogonal_features
from attn.linearized.gated_delta_net import GatedDeltaNet as GatedDeltaNet
from attn.linearized.gated_delta_net import gated_delta_net_attention as gated_delta_net_attention
from attn.linearized.gla import GLA as GLA
from attn.linearized.gla import gla_attention as gla_attention
from attn.linearized.hedgehog import Hedgehog as Hedgehog
from attn.linearized.hedgehog import distillation_loss as distillation_loss
from attn.linearized.hedgehog import hedgehog_attention as hedgehog_attention
from attn.linearized.hgrn2 import HGRN2 as HGRN2
from attn.linearized.hgrn2 import hgrn2_attention as hgrn2_attention
from attn.linearized.kda import KDA as KDA
from attn.linearized.kda import kda_attention as kda_attention
from attn.linearized.lightning import Lightning as Lightning
from attn.linearized.lightning import lightning_attention as lightning_attention
from attn.linearized.linear import Linear as Linear
from attn.linearized.linear import linear_attention as linear_attention
from attn.linearized.mamba2 import Mamba2 as Mamba2
from attn.linearized.mamba2 import mamba2_attention as mamba2_attention
from attn.linearized.performer import Performer as Performer
from attn.linearized.performer import performer_attention as performer_attention
from attn.linearized.retention import Retention as Retention
from attn.linearized.retention import retention_attention as retention_attention
from attn.linearized.rfa import RFA as RFA
from attn.linearized.rfa import rfa_attention as rfa_attention
from attn.linearized.rwkv6 import RWKV6 as RWKV6
from attn.linearized.rwkv6 import rwkv6_attention as rwkv6_attention
from attn.linearized.rwkv7 import RWKV7 as RWKV7
from attn.linearized.rwkv7 import rwkv7_attention as rwkv7_attention
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
from attn.sparse.axial import AxialPattern as AxialPattern
from attn.sparse.axial import axial_attention as axial_attention
from attn.sparse.bigbird import BigBird as BigBird
from attn.sparse.bigbird import bigbird_pattern as bigbird_pattern
from attn.sparse.block_sparse import BlockSparse as BlockSparse
from attn.sparse.block_sparse import block_sparse_attention as block_sparse_attention
from attn.sparse.dilated import DilatedSegments as DilatedSegments
from attn.sparse.dilated import dilated_attention as dilated_attention
from attn.sparse.fixed import FixedPattern as FixedPattern
from attn.sparse.fixed import fixed_attention as fixed_attention
from attn.sparse.global_window import GlobalWindow as GlobalWindow
from attn.sparse.global_window import global_window_attention as global_window_attention
from attn.sparse.hierarchical import Hierarchical as Hierarchical
from attn.sparse.hierarchical import hierarchical_attention as hierarchical_attention
from attn.sparse.local_2d import Local2DPattern as Local2DPattern
from attn.sparse.local_2d import local_2d_attention as local_2d_attention
from attn.sparse.logsparse import LogSparse as LogSparse
from attn.sparse.logsparse import logsparse_attention as logsparse_attention
from attn.sparse.moba import MoBA as MoBA
from attn.sparse.moba import moba_attention as moba_attention
from attn.sparse.nsa import NSA as NSA
from attn.sparse.nsa import nsa_attention as nsa_attention
from attn.sparse.quest import Quest as Quest
from attn.sparse.quest import quest_attention as quest_attention
from attn.sparse.reformer import Reformer as Reformer
from attn.sparse.reformer import reformer_attention as reformer_attention
from attn.sparse.routing import Routing as Routing
from attn.sparse.routing import routing_attention as routing_attention
from attn.sparse.routing import updated_centroids as updated_centroids
from attn.sparse.sinkhorn import Sinkhorn as Sinkhorn
from attn.sparse.sinkhorn import sinkhorn_attention as sinkhorn_attention
from attn.sparse.sinks import Sinks as Sinks
from attn.sparse.sinks import sinks_attention as sinks_attention
from attn.sparse.strided import StridedPattern as StridedPattern
from attn.sparse.strided import strided_attention as strided_attention
from attn.sparse.topk import TopK as TopK
from attn.sparse.topk import topk_attention as topk_attention
from attn.sparse.window import SlidingWindow as SlidingWindow
from attn.sparse.window import window_attention as window_attention

__version__ = "0.1.0"

# the one table of variants: a key is the only string that names one
MECHANISMS: dict[str, type[Mechanism]] = {
    "softmax": Softmax,
    "additive": Additive,
    "luong": Luong,
    "sigmoid": Sigmoid,
    "relu": Relu,
    "synthesizer": Synthesizer,
    "differential": Differential,
    "talking_heads": TalkingHeads,
    "forgetting": Forgetting,
    "latent": Latent,
    "linear": Linear,
    "performer": Performer,
    "rfa": RFA,
    "cosformer": Cosformer,
    "based": Based,
    "hedgehog": Hedgehog,
    "efficient": Efficient,
    "retention": Retention,
    "lightning": Lightning,
    "gla": GLA,
    "mamba2": Mamba2,
    "hgrn2": HGRN2,
    "rwkv6": RWKV6,
    "delta_net": DeltaNet,
    "gated_delta_net": GatedDeltaNet,
    "kda": KDA,
    "rwkv7": RWKV7,
    "window": SlidingWindow,
    "global_window": GlobalWindow,
    "bigbird": BigBird,
    "strided": StridedPattern,
    "fixed": FixedPattern,
    "sinks": Sinks,
    "axial": AxialPattern,
    "local_2d": Local2DPattern,
    "dilated": DilatedSegments,
    "logsparse": LogSparse,
    "hierarchical": Hierarchical,
    "block_sparse": BlockSparse,
    "reformer": Reformer,
    "routing": Routing,
    "sinkhorn": Sinkhorn,
    "topk": TopK,
    "moba": MoBA,
    "nsa": NSA,
    "quest": Quest,
    "linformer": Linformer,
    "nystrom": Nystrom,
    "pooled": Pooled,
    "poolingformer": Poolingformer,
    "set": Set,
    "luna": Luna,
    "abc": ABC,
}
