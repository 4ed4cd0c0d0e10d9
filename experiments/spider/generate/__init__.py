"""The embedded data of the Spider study: twenty databases and questions about them, made from a seed."""

from experiments.spider.generate.write import Split, generate

__all__ = ["Split", "generate"]
