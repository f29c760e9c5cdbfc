"""The mask language: predicates on (query index i, key index j), composed with `&`, `|`, `~`.

A mask is data: a small frozen pytree. *Static* terms (`Causal`, `Window`, ...) hold integers
only, are hashable, and tell at trace time which blocks of the score matrix can be skipped.
*Dynamic* terms (`Padding`, `Segments`, `Array`) hold arrays, may carry leading batch axes, and
are evaluated only on the indices that are visited.

    >>> print((Causal() & Window(2, 0)).draw(5, 5))
    # . . . .
    # # . . .
    # # # . .
    . # # # .
    . . # # #
"""

from attn.masks.blocks import Blocks as Blocks
from attn.masks.blocks import Coarse as Coarse
from attn.masks.blocks import Random as Random
from attn.masks.dynamic import Array as Array
from attn.masks.dynamic import Padding as Padding
from attn.masks.dynamic import Segments as Segments
from attn.masks.language import FULL as FULL
from attn.masks.language import And as And
from attn.masks.language import Full as Full
from attn.masks.language import Mask as Mask
from attn.masks.language import Not as Not
from attn.masks.language import Or as Or
from attn.masks.language import term as term
from attn.masks.raster import Axial as Axial
from attn.masks.raster import Local2D as Local2D
from attn.masks.record import array_field as array_field
from attn.masks.serial import STATIC_TERMS as STATIC_TERMS
from attn.masks.serial import TERMS as TERMS
from attn.masks.serial import from_json as from_json
from attn.masks.static import Causal as Causal
from attn.masks.static import Global as Global
from attn.masks.static import Prefix as Prefix
from attn.masks.static import Window as Window
from attn.masks.strided import Dilated as Dilated
from attn.masks.strided import Fixed as Fixed
from attn.masks.strided import LogDistance as LogDistance
from attn.masks.strided import Strided as Strided
from attn.masks.strided import Summary as Summary
