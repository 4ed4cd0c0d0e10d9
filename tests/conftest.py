"""Environment of the whole suite, set before anything imports jax; subprocesses of tests inherit it."""

from __future__ import annotations

import os
import tempfile

_scratch = tempfile.TemporaryDirectory(prefix="lightning_jax_tests_")
os.environ["JAX_PLATFORMS"] = "cpu"
# Tests compile much and compute little: unoptimised code is ready in a fraction of the time, and kept between them.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{_scratch.name}/jax"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
os.environ["LIGHTNING_JAX_CACHE"] = f"{_scratch.name}/cache"
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
for _name in ("LJX_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
    os.environ.pop(_name, None)
_root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_root, os.environ.get("PYTHONPATH"))))
