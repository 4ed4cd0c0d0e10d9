"""The learner against a PyTorch loop that does the same update. `python -m benchmarks.learner --help`."""
