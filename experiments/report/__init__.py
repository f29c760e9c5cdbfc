"""Reports: tables, pictures and one self-contained page from what was measured."""

from experiments.report.comparison import Comparison as Comparison
from experiments.report.comparison import render as render
from experiments.report.comparison import write as write
