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

# The tables of the docs with measured numbers but those of docs/speed.md, which `make bench` writes, and those of whole
# benchmark runs, whose pages name the command: half an hour to an hour on two idle cores. Each step writes a file, and a
# step whose file is there is not run again; `make out/tables/sensors.txt DATA=...` runs one.
# DATA is a folder of scene folders, NETWORK an ONNX file with its card, FRAMES a folder of video frames with poses.
TABLES := out/tables
STEPS := outliers uncertainty sensors regions presets stream stream_best stream_poses busy throughput harness torch_peers
tables: $(STEPS:%=$(TABLES)/%.txt)

$(TABLES)/outliers.txt: PROGRAM = outliers.py $(DATA) $(NETWORK)
$(TABLES)/uncertainty.txt: PROGRAM = uncertainty.py $(DATA) $(NETWORK) --size 480
$(TABLES)/sensors.txt: PROGRAM = sensors.py $(DATA) $(NETWORK)
$(TABLES)/regions.txt: PROGRAM = regions.py $(DATA) $(NETWORK)
$(TABLES)/presets.txt: PROGRAM = presets.py
$(TABLES)/stream.txt: PROGRAM = stream.py $(FRAMES) $(NETWORK) --preset paper
$(TABLES)/stream_best.txt: PROGRAM = stream.py $(FRAMES) $(NETWORK) --preset best
$(TABLES)/stream_poses.txt: PROGRAM = stream.py $(FRAMES) $(NETWORK) --preset best --poses
$(TABLES)/busy.txt: PROGRAM = busy.py
$(TABLES)/throughput.txt: PROGRAM = throughput.py
$(TABLES)/harness.txt: PROGRAM = harness.py
$(TABLES)/torch_peers.txt: PROGRAM = torch_peers.py --repeats 2 $(OMNI_DC:%=--omni-dc %) $(MOGE:%=--moge %)
# Process times of one thread, which depend least on what else the machine does.
$(TABLES)/presets.txt $(TABLES)/stream.txt: export NUMBA_NUM_THREADS := 1

# A pipe fails if the benchmark does, and tee shows the rows while they are measured. The file gets its name at the end.
$(TABLES)/%.txt: SHELL := bash
$(TABLES)/%.txt: .SHELLFLAGS := -o pipefail -c
$(TABLES)/%.txt: | $(DEV)
	@test -d "$(DATA)" -a -f "$(NETWORK)" -a -d "$(FRAMES)" || \
	  { echo "name the data: make tables DATA=scenes NETWORK=model.onnx FRAMES=frames" >&2; exit 1; }
	@mkdir -p $(TABLES)
	@$(BIN)/leadline warm-up
	$(BIN)/python benchmarks/$(PROGRAM) | tee $@.part && mv $@.part $@ && echo "$@ took $$SECONDS s"

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
