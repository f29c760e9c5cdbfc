"""Sparse attention: a pattern of visible pairs, of which only the touched blocks are visited."""
