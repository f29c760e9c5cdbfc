"""The checker of annotations for jaxtyping's hook; apart, for the hook imports it before attn."""

from beartype import beartype


def checker(function):
    """beartype, but for the fields of dataclasses: JAX makes pytrees of what is no array, too, and
    records keep what they are given in another form."""
    return function if function.__name__ == "__init__" else beartype(function)
