# Two commands do everything on a fresh machine: make spider, make test.
PYTHON ?=
VENV   ?= .venv
RUN    := $(VENV)/bin/python
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help install spider sweep test lint types protos autogen notebook clean

help: ## this list
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  ARGS='...' passes overrides on, e.g. make spider ARGS='credit=exponential seed=1'"

$(VENV)/.installed: setup.py
	@python="$${PYTHON:-$(PYTHON)}"; [ -n "$$python" ] || python=$$(sh scripts/find_python.sh) || exit 1; \
	echo "installing into $(VENV) with $$python"; \
	"$$python" -m venv $(VENV) && $(RUN) -m pip install -q --upgrade pip && $(RUN) -m pip install -q -e '.[dev]'
	@touch $@

install: $(VENV)/.installed ## .venv with everything that development, tests and notebooks need

spider: install ## the default experiment: train an unmodified LangGraph agent, end to end
	$(RUN) -m experiments.run +exp=spider $(ARGS)

sweep: install ## credit strategies × seeds
	$(RUN) -m experiments.run -m +exp=spider sweep=credit $(ARGS)

test: install ## the test suite
	$(RUN) -m pytest $(ARGS)

lint: install ## ruff
	$(RUN) -m ruff check . && $(RUN) -m ruff format --check .

types: install ## mypy, the package strict
	$(RUN) -m mypy

.venv-protos/.installed:
	@python="$${PYTHON:-$(PYTHON)}"; [ -n "$$python" ] || python=$$(sh scripts/find_python.sh) || exit 1; \
	"$$python" -m venv .venv-protos && .venv-protos/bin/python -m pip install -q grpcio-tools==1.71.2 setuptools
	@touch $@

protos: .venv-protos/.installed ## regenerate the gRPC stubs with the pinned generator (ARGS=--check compares only)
	.venv-protos/bin/python scripts/gen_protos.py $(ARGS)

.venv-autogen/.installed: setup.py
	@python="$${PYTHON:-$(PYTHON)}"; [ -n "$$python" ] || python=$$(sh scripts/find_python.sh) || exit 1; \
	"$$python" -m venv .venv-autogen && .venv-autogen/bin/python -m pip install -q -e '.[autogen]' \
	pytest pytest-asyncio pytest-timeout hypothesis
	@touch $@

autogen: .venv-autogen/.installed ## AutoGen's test, in the environment that its protobuf 5.29 takes
	.venv-autogen/bin/python -c 'import autogen_agentchat.agents'
	.venv-autogen/bin/python -m pytest tests/agents -k autogen

notebook: install ## open the analysis notebook
	$(VENV)/bin/jupyter lab notebooks/analysis.ipynb

clean: ## remove the environment and build products; runs are kept
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
