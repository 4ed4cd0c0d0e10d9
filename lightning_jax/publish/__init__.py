"""Versions of the weights and checkpoints of the whole train state."""
