"""Packaging of lightning_jax; tool settings live in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

AGENTS = ["certifi", "langchain-openai>=1.0", "langgraph>=1.0", "openai>=2.0"]
FRAMEWORKS = ["langchain>=1.0", "openai-agents>=0.20", "pydantic-ai-slim[openai]>=2.0"]  # tests/agents
NOTEBOOKS = ["jupyterlab", "nbclient", "ipykernel", "matplotlib", "pandas"]

setup(
    name="lightning_jax",
    version="0.1.0",
    description="Train the LLM agents you already have with reinforcement learning, in JAX.",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    # conf/ is edited at the top of the source tree and installed inside the package, where presets_root() finds it.
    packages=[
        *find_packages(include=["lightning_jax", "lightning_jax.*", "experiments", "experiments.*"]),
        "lightning_jax.conf",
    ],
    package_dir={"lightning_jax.conf": "conf"},
    package_data={
        "lightning_jax": ["py.typed", "_proto/**/*.pyi"],
        "experiments": ["**/*.txt", "**/*.jinja", "**/*.md"],
        "lightning_jax.conf": ["**/*.yaml"],
    },
    install_requires=[
        # jax and flax come in matching pairs (3.11: 0.10 + 0.12.8; 3.12+: 0.12 + 0.12.12): without caps pip pairs them.
        "jax>=0.10",
        "flax>=0.12.5",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12",
        "transformers>=4.56",
        "tokenizers>=0.21",
        "safetensors>=0.5",
        "numpy>=2.0",
        "grpcio>=1.84",  # refuses a message that is too large before it is received, a bomb before it is unpacked
        "grpcio-health-checking>=1.71.2",
        "grpcio-reflection>=1.71.2",
        "protobuf>=5.29",
        "opentelemetry-proto>=1.30",
        "hydra-core>=1.3.2",
        "pyyaml>=6.0",
        "sqlalchemy>=2.0",
        "alembic>=1.14",
        "fastapi>=0.115",
        "starlette>=0.40",
        "uvicorn>=0.34",
        "httptools>=0.6",
        'uvloop>=0.19; platform_system != "Windows"',  # a third less time per HTTP request
        "jinja2>=3.1",
        "jsonschema>=4.20",
        "llguidance>=1.0",
        "prometheus-client>=0.20",
        "pyarrow>=17",
        "rich>=13",
        "tensorboardX>=2.6",
    ],
    extras_require={
        "cuda12": ["jax[cuda12]>=0.10"],
        "agents": AGENTS,
        # in an environment of its own: it pins protobuf 5.29, which our stubs live with and newer grpcio packages don't
        "autogen": ["autogen-agentchat>=0.7", "autogen-ext[openai]>=0.7"],
        "trace": ["opentelemetry-sdk>=1.30", "opentelemetry-exporter-otlp-proto-grpc>=1.30"],
        "gguf": ["gguf>=0.17"],
        "notebooks": NOTEBOOKS,
        "postgres": ["psycopg[binary]>=3.2"],
        "dev": [
            *AGENTS,
            *FRAMEWORKS,
            *NOTEBOOKS,
            "gguf>=0.17",
            "opentelemetry-sdk>=1.30",
            "opentelemetry-exporter-otlp-proto-grpc>=1.30",
            "psycopg[binary]>=3.2",
            "pytest>=8",
            "pytest-timeout>=2.3",
            "pytest-asyncio>=0.25",
            "hypothesis>=6.100",
            "httpx>=0.27",
            "ruff>=0.9",
            "mypy>=1.15",
            "setuptools>=77",
        ],
    },
    classifiers=[
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "License :: OSI Approved :: Apache Software License",
    ],
)
