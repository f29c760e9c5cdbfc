"""The laws that every variant must obey, as functions; one line checks a variant of your own.

>>> print(attn.testing.check(MyVariant(features=32)))
"""

from attn.testing.cases import inputs as inputs
from attn.testing.cases import masks_for as masks_for
from attn.testing.check import LAWS as LAWS
from attn.testing.check import Report as Report
from attn.testing.check import Verdict as Verdict
from attn.testing.check import check as check
from attn.testing.contract import EPS as EPS
from attn.testing.contract import BrokenLaw as BrokenLaw
from attn.testing.contract import assert_close as assert_close
from attn.testing.contract import rms as rms
from attn.testing.terms import check_mask as check_mask
