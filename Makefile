# make demo | check | test | test-full | bench | pictures | tables | docs | lint | clean
# Needs Python 3.10 or later with venv; everything else is installed into .venv.

PYTHON ?= python3
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
# One stamp file per set of packages, so that a second call installs nothing.
MADE := $(VENV)/.made
BASE := $(VENV)/.installed-base
DEV := $(VENV)/.installed-dev
BENCH := $(VENV)/.installed-bench

# pip reads the first for the packages it installs and, from version 25 on, the second for those that build them.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Switches off an announcement that the documentation theme prints at the end of every build.
export NO_MKDOCS_2_WARNING := 1

.PHONY: demo check test test-full browser bench pictures tables docs lint clean

demo: $(BASE)
	$(BIN)/leadline demo

# For daily work: everything that needs no browser, no cluster, no network and no worker processes, in a minute or two.
check: lint
	$(BIN)/leadline warm-up
	$(BIN)/pytest -n $(JOBS) --quiet -m 'not full and not slow'

# The kernels are compiled beforehand, because test workers that compile the same kernel at the same time may differ in
# the last bit. -rsR prints why a test was skipped and which one passed only when it was run again: tests that kill
# processes or drive a browser depend on the scheduler.
test: lint browser
	$(BIN)/leadline warm-up
	$(BIN)/pytest -n $(JOBS) --quiet -rsR --reruns 1
	$(BIN)/mkdocs build --strict --quiet

# The whole matrix of shapes, patterns and options.
test-full: lint browser
	$(BIN)/leadline warm-up
	$(BIN)/pytest -n $(JOBS) --quiet -rsR --reruns 1 -m ''

# The pages are tested in a real browser, and Open3D needs libraries of the window system. apt installs what is missing.
browser: $(DEV)
	@missing=""; \
	command -v chromium chromium-browser google-chrome >/dev/null || missing="chromium"; \
	$(BIN)/python -c 'import open3d' 2>/dev/null || missing="$$missing libgl1 libegl1 libx11-6 libusb-1.0-0"; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing >/dev/null; \
	else echo "some tests of pages and meshes are skipped or fail (on Debian or Ubuntu: sudo apt-get install $$missing)"; fi

bench: $(BENCH)
	$(BIN)/python benchmarks/speed.py

# Every picture of the README and the docs but images/speed.png, which `make bench` makes on an idle machine.
pictures: $(DEV) browser
	$(BIN)/leadline warm-up
	$(BIN)/python docs/make_guide_pictures.py
	$(BIN)/python docs/make_pictures.py
	$(BIN)/python docs/make_studio_pictures.py
	$(BIN)/python docs/make_views_pictures.py

# Every table of the docs with measured numbers but those of docs/speed.md, which `make bench` writes: some hours, on an
# idle machine. DATA is a folder of scene folders, NETWORK an ONNX file with its card, FRAMES a folder of video frames.
TABLES := out/tables
# A pipe fails if the benchmark does, and tee shows the rows while they are measured.
tables: SHELL := bash
tables: .SHELLFLAGS := -o pipefail -c
tables: $(DEV) $(BENCH)
	@test -d "$(DATA)" -a -f "$(NETWORK)" -a -d "$(FRAMES)" || \
	  { echo "name the data: make tables DATA=scenes NETWORK=model.onnx FRAMES=frames" >&2; exit 1; }
	$(BIN)/leadline warm-up
	mkdir -p $(TABLES)
	$(BIN)/python benchmarks/outliers.py $(DATA) $(NETWORK) | tee $(TABLES)/outliers.txt
	$(BIN)/python benchmarks/regions.py $(DATA) $(NETWORK) | tee $(TABLES)/regions.txt
	$(BIN)/python benchmarks/uncertainty.py $(DATA) $(NETWORK) --size 480 | tee $(TABLES)/uncertainty.txt
	$(BIN)/python benchmarks/sensors.py $(DATA) $(NETWORK) | tee $(TABLES)/sensors.txt
	$(BIN)/python benchmarks/presets.py $(DATA) $(NETWORK) | tee $(TABLES)/presets.txt
	NUMBA_NUM_THREADS=1 $(BIN)/python benchmarks/stream.py $(FRAMES) $(NETWORK) --preset paper | tee $(TABLES)/stream.txt
	$(BIN)/python benchmarks/busy.py | tee $(TABLES)/busy.txt
	$(BIN)/python benchmarks/throughput.py | tee $(TABLES)/throughput.txt
	$(BIN)/python benchmarks/harness.py | tee $(TABLES)/harness.txt
	$(BIN)/python benchmarks/torch_peers.py | tee $(TABLES)/torch_peers.txt

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
	$(BIN)/pip install --quiet --editable '.[all,dev,docs]'
	@touch $@ $(BASE)

$(BENCH): $(MADE) pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --editable '.[bench]'
	@touch $@ $(BASE)
