"""Linearized attention: feature maps and running states in place of the T x S softmax."""
