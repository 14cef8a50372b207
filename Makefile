# make demo | test | bench | docs | lint | clean
# Needs Python 3.10 or later with venv, and nothing else: the rest goes into .venv.

PYTHON ?= python3
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
# One stamp per set of packages, so that a second call installs nothing.
MADE := $(VENV)/.made
BASE := $(VENV)/.installed-base
DEV := $(VENV)/.installed-dev
BENCH := $(VENV)/.installed-bench

# pip reads both: the first for what is installed, the second (newer pip) for what builds it.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# An announcement of the documentation theme's makers, which would otherwise end every run.
export NO_MKDOCS_2_WARNING := 1

.PHONY: demo test browser bench docs lint clean

demo: $(BASE)
	$(BIN)/leadline demo

# Compiled once beforehand: workers that each compile the same may differ in the last bit.
test: lint browser
	$(BIN)/leadline warm-up
	$(BIN)/pytest -n $(JOBS) --quiet
	$(BIN)/mkdocs build --strict --quiet

# The pages are tested in a real browser. Where there is none and apt can bring one, it does.
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; \
	  else echo "no Chromium: the tests of the pages are skipped (on Debian or Ubuntu: sudo apt-get install chromium)"; fi

bench: $(BENCH)
	$(BIN)/python benchmarks/speed.py

docs: $(DEV)
	$(BIN)/mkdocs build --strict

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) site dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "leadline needs Python 3.10 or later; name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments; on Debian or Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(BASE): $(MADE) pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(DEV): $(MADE) pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --editable '.[files,onnx,transformers,colmap,lidar,ros,figures,ray,studio,dev,docs]'
	@touch $@ $(BASE)

$(BENCH): $(MADE) pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --editable '.[bench]'
	@touch $@ $(BASE)
