"""lightning_jax: train the LLM agents you already have with reinforcement learning, in JAX."""

__version__ = "0.1.0"
