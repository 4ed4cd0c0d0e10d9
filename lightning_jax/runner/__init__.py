"""The worker that runs agents: claims rollouts by lease, hands each a base URL and a key, reports how it ended.

An agent is any callable `(task input, Endpoint) -> output dict`, or a command line. One that raises, hangs or returns
nonsense makes a failed attempt with a reason, never a dead worker.
"""

from lightning_jax.runner.agents import Agent, CommandAgent, load_agent
from lightning_jax.runner.process import spawn
from lightning_jax.runner.worker import Runner

__all__ = ["Agent", "CommandAgent", "Runner", "load_agent", "spawn"]
