# `make report` on a fresh clone does everything; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# An NVIDIA driver decides whether CUDA's libraries are worth their gigabytes.
CUDA := $(if $(shell command -v nvidia-smi 2>/dev/null),cuda)
CPU_TORCH ?= https://download.pytorch.org/whl/cpu
CONFIG ?=

.DEFAULT_GOAL := help
.PHONY: help report figures picture compare install test lint format types unit workflow bench machines faults unlock schema peaks lock lock-check audit wheelhouse docs clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Without a GPU the first page is due four minutes after this command. What installing took is taken off the budget, down to
# two minutes; the next call measures what was left out.
BEGAN := $(shell date +%s)
FIRST = $(shell spent=$$(($$(date +%s) - $(BEGAN))); tenths=$$(((235 - spent) / 6)); [ $$tenths -ge 20 ] || tenths=20; \
    [ $$spent -lt 25 ] || echo "--config budget_min=$$((tenths / 10)).$$((tenths % 10))")

report: $(VENV)/installed ## Measure this machine and write reports/report.html (CONFIG="experiment=kernels size=1024")
	$(BIN)/python -m snakemake --cores 1 report $(if $(CONFIG),--config $(CONFIG),$(if $(CUDA),,$(FIRST)))

figures: $(VENV)/installed ## Draw the figures alone, into reports/figures/
	$(BIN)/python -m snakemake --cores 1 figures $(if $(CONFIG),--config $(CONFIG))

picture: ## Take the README's picture of reports/report.html (needs Chromium)
	chromium --headless --no-sandbox --hide-scrollbars --window-size=1280,925 --screenshot=docs/images/first_screen.png reports/report.html

compare: $(VENV)/installed ## Measure this checkout and another commit in turn (BASE=main CONFIG="experiment=kernels" MINUTES=5 GATE=5%)
	$(if $(BASE),,$(error BASE is missing: make compare BASE=main, a commit or the folder of a checkout))
	$(BIN)/mfulab paired --base $(BASE) $(if $(CONFIG),--config $(CONFIG)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(GATE),--gate $(GATE))

# One thread a test process: more would wait for those of the others. Tests of the workflow wait half of their time, and
# `make test` spreads them among the others. They start hundreds of processes, which need not compile the package each.
ALONE = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE= $(if $(ALL),MFULAB_EXAMPLES=30)
QUICK = $(if $(ALL),,-m "not slow")
SPREAD = --dist loadgroup --no-loadscope-reorder
CORES = $$(getconf _NPROCESSORS_ONLN)
# Real measurements beside others may miss what an idle machine gives. What failed (pytest's exit status 1) is asked again with
# nothing beside, and fails if it fails again; after five such nothing more is asked.
AGAIN = -n 1 $(SPREAD) --last-failed --last-failed-no-failures none --maxfail 5

test: lint types ## Everything that .ci/run checks (ALL=1: the slow tests too, as every night)
	$(ALONE) $(BIN)/pytest $(QUICK) -n $$(($(CORES) + 2)) $(SPREAD) --durations=25 \
	    || { [ $$? = 1 ] && echo "once more, one at a time:" && $(ALONE) $(BIN)/pytest $(QUICK) $(AGAIN); }

lint: $(VENV)/tested ## Style and format of Python and Snakemake code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint
	$(BIN)/mfulab schema --check

format: $(VENV)/tested ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

types: $(VENV)/tested ## Static types
	$(BIN)/mypy

unit: $(VENV)/tested ## Fast tests of pure logic, kernels in their simulators, the page in a browser
	$(ALONE) $(BIN)/pytest -m "not workflow$(if $(ALL),, and not slow)" -n $$(($(CORES) + 1)) $(SPREAD)

workflow: $(VENV)/tested ## The real workflow in miniature
	$(ALONE) $(BIN)/pytest -m "workflow$(if $(ALL),, and not slow)" -n $$(($(CORES) + 2)) $(SPREAD)

bench: $(VENV)/installed ## Each target beside what was got, in two minutes (ALL=1: 5,000 runs and quickstart too)
	@missed=0; for each in "pipeline.py $(if $(ALL),--all)" cpu_matmul.py sampler_cost.py; do \
	    $(BIN)/python benchmarks/$$each || missed=1; done; exit $$missed

machines: $(VENV)/installed ## The miniature as other machines would measure it (ONLY=avx2,one-core EXPERIMENT=quickstart TIMES=20)
	$(BIN)/python benchmarks/machines.py --markdown $(if $(ONLY),--only $(ONLY)) $(if $(EXPERIMENT),--experiment $(EXPERIMENT)) $(if $(TIMES),--times $(TIMES))

faults: $(VENV)/tested ## Sweeps that are killed, cut off and lied to: hours of CPU (docs/reliability.md)
	MFULAB_FAULTS=5 MFULAB_EXAMPLES=2000 $(BIN)/pytest -n auto tests/workflow/test_faults.py tests/lab/planning/test_checks.py \
	    tests/lab/report/test_hostile.py tests/lab/report/test_vector.py tests/lab/tables/test_merge.py tests/loop/goodput \
	    tests/tracing/test_damaged.py tests/core/test_web.py tests/cli/test_fuzz.py

unlock: $(VENV)/installed ## Forget a sweep that was killed on another machine; refused while one runs here
	$(BIN)/snakemake --unlock

schema: $(VENV)/installed ## Write config.yaml's defaults, KEYS.md, schema.json and the README's experiments from the models
	$(BIN)/mfulab schema --fix

peaks: $(VENV)/tested ## Write packages/peaks/peaks.json and build the package mfulab-peaks, into dist/
	PYTHONPATH=src $(BIN)/python -m mfulab.peaks --all-json > packages/peaks/peaks.json
	$(BIN)/python -m build --no-isolation --outdir dist packages/peaks
	$(BIN)/python -m twine check --strict dist/mfulab_peaks-*

lock: ## Pin what each target installs, in requirements.lock and requirements/ (UPGRADE=1: the newest that fits)
	$(PYTHON) scripts/lock.py $(if $(UPGRADE),--upgrade)
	$(PYTHON) scripts/wheelhouse.py --python 3.12 $(BARE_GPU) --list docs/gpu.md

lock-check: ## Resolve every lock from the package index, for each Python and platform (OLDEST=1: Python 3.11 on Linux alone)
	$(PYTHON) scripts/lock.py --check $(if $(OLDEST),--oldest)

audit: ## Look for known vulnerabilities of the locked versions
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install --quiet --require-hashes --requirement requirements/tools/audit.lock
	$(VENV)/audit/bin/pip-audit --strict --disable-pip --require-hashes $(addprefix --requirement ,$(wildcard requirements/*.lock requirements/tools/*.lock))

wheelhouse: ## Collect every wheel for an air-gapped machine: docs/clusters.md (TARGET=py312: what a bare GPU machine lacks)
	$(PYTHON) scripts/wheelhouse.py $(if $(TARGET),--python $(TARGET:py3%=3.%) $(BARE_GPU)) $(WHEELHOUSE)

BARE_GPU = --extras cuda,cutlass --without validation/recording/present.txt

docs: $(VENV)/installed requirements/docs.lock ## Write the documentation as a site, site/index.html; a link that leads nowhere ends it
	$(MAKE) --no-print-directory install PYTHON=$(BIN)/python EXTRAS=docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean: ## Remove the environment and the figures; results stay
	rm -rf $(VENV) reports/figures reports/report.html

# What pip says goes to a file: it warns of whatever its own settings name. Where it fails, the end of it is shown.
LOG := $(VENV)/install.log
LOGGED = >> $(LOG) 2>&1 || { grep -vE '^(WARNING|Requirement|Ignoring|Looking)' $(LOG) | tail -n 8; \
    echo "make: installing failed; all that was said: $(LOG)"; exit 1; } >&2
# Python compiles what it imports anyway, a third of it; where it may keep nothing, the installer compiles all. uv downloads and
# unpacks side by side; where it fails, such as by settings that pip alone reads, pip installs.
UV := $(shell command -v uv 2> /dev/null)
BY_UV = $(UV) pip install --python $(PYTHON) $(if $(PYTHONDONTWRITEBYTECODE),--compile-bytecode)
BY_PIP = $(PYTHON) -m pip install $(if $(PYTHONDONTWRITEBYTECODE),,--no-compile)
PIP = put() { $(if $(UV),$(BY_UV) "$$@" ||) $(BY_PIP) "$$@"; }; put --no-deps --no-build-isolation
LOCKED = $(PIP) --require-hashes --requirement
# The CPU build of torch has another hash than the lock's. uv fetches it beside the rest, whose hashes it compares too; the index is
# asked for torch alone. Afterwards the whole lock is gone through as elsewhere.
TORCH = $$(grep -oE '^torch==[0-9.]+' requirements/pipeline.lock)
REST = $(VENV)/rest.lock
BESIDE = awk '/^[^ \#]/ { torch = /^torch==/ } !torch' requirements/pipeline.lock > $(REST); $(BY_UV) --no-deps \
    --no-build-isolation --find-links $(CPU_TORCH)/torch/ $(TORCH) --verify-hashes --requirement $(REST) >> $(LOG) 2>&1 && exit;
# Five seconds for an answer: pip itself would try again for minutes.
ANSWERS = $(PYTHON) -c 'import sys, urllib.request as web; web.urlopen(sys.argv[1], timeout=5)' $(CPU_TORCH)/torch/ 2> /dev/null

# KEEP=1 leaves a Python's own packages where they are new enough, such as Colab's torch, which suits its driver. What is
# missing has the locks' versions; so have Numba's two parts, of which one is too old there, and which belong together.
LOCKED_NEW = import re, importlib.metadata as here; \
    plain = lambda name: re.sub("[-_.]+", "-", name).lower(); \
    kept = {plain(each.metadata["Name"] or "") for each in here.distributions()} - {"numba", "numba-cuda", "llvmlite"}; \
    print("".join(line for line in open("requirements.lock") if plain(re.split("[=; ]", line)[0]) not in kept))

# Without PYTHON they go into `.venv`: no command writes into a system's Python unasked.
ifeq ($(origin PYTHON),file)
install: $(VENV)/installed ## Install the locked versions into .venv, or into the environment of PYTHON (EXTRAS="slurm counters notebook")
	@$(if $(EXTRAS),$(MAKE) --no-print-directory install PYTHON=$(BIN)/python EXTRAS="$(EXTRAS)")
else ifneq ($(KEEP),)
install:
	@mkdir -p $(VENV) && : > $(LOG)
	@echo "installing what is missing, 1 to 2 minutes; pip writes to $(LOG)"
	@$(PYTHON) -c '$(LOCKED_NEW)' > $(VENV)/new.lock
	@$(PYTHON) -m pip install --constraint $(VENV)/new.lock --editable '.[pipeline]' $(if $(CUDA),nvmath-python) $(LOGGED)
else
# torch's default build on Linux is the one for CUDA. Where no driver is, its CPU build comes first, from PyTorch's own index or
# from where pip's settings say; else the default build stays, which cannot be imported without CUDA's libraries.
install:
	@mkdir -p $(VENV) && : > $(LOG)
	@echo "installing, 1 to 5 minutes the first time; $(if $(UV),uv,pip) writes to $(LOG)"
	@$(LOCKED) requirements/build.lock $(LOGGED)
ifeq ($(CUDA),)
	@if $(ANSWERS); then echo "  torch for CPUs, 200 MB, from PyTorch's index"; from="--extra-index-url $(CPU_TORCH)"; \
	    $(if $(UV),$(BESIDE)) \
	else echo "  torch's default build, 0.6 GB: PyTorch's index of CPU builds does not answer"; fi; \
	$(BY_PIP) --no-deps $$from $(TORCH) $(LOGGED)
endif
	@echo "  $$(grep -c ^[a-z] requirements/pipeline.lock) packages for measuring and drawing, 250 MB"
	@$(LOCKED) requirements/pipeline.lock $(LOGGED)
	@$(if $(CUDA),,$(PYTHON) -c 'import torch' 2> /dev/null ||) { echo "  CUDA's libraries, 2 GB"; $(LOCKED) requirements/cuda.lock $(LOGGED); }
	@for extra in $(EXTRAS); do echo "  the extra $$extra"; $(LOCKED) requirements/$$extra.lock $(LOGGED); done
	@$(PIP) --editable . $(LOGGED)
endif

# An environment holds the path that it was made at: a checkout that was moved makes it anew.
HERE = [ "$$(cat $(VENV)/installed 2> /dev/null)" = "$$(pwd -P)" ]
ifneq ($(shell $(HERE) && echo here),here)
.PHONY: $(VENV)/installed
endif

# Debian keeps `ensurepip` in a package of its own.
USABLE = import sys; from importlib.util import find_spec; \
    sys.exit(sys.version_info < (3, 11) and "mfulab needs Python 3.11 or later: make report PYTHON=python3.12" \
    or find_spec("ensurepip") is None and "this Python makes no environments: apt install python3-venv, or make report PYTHON=another")

$(VENV)/installed: requirements/pipeline.lock requirements/build.lock requirements/cuda.lock pyproject.toml
	@command -v $(PYTHON) > /dev/null || { echo "there is no $(PYTHON) here: make report PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c '$(USABLE)'
	@[ ! -s $@ ] || $(HERE) || rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(MAKE) --no-print-directory install PYTHON=$(BIN)/python
	@pwd -P > $@

$(VENV)/tested: $(VENV)/installed requirements/test.lock
	@$(MAKE) --no-print-directory install PYTHON=$(BIN)/python EXTRAS=test
	@touch $@
