"""Compressed attention: fewer keys than positions."""
