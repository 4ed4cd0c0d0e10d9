"""Look at traces, and move them: `python -m lightning_jax.traces --help`."""
