"""Ways to run softmax attention, and the choice among them by platform, size and request."""
