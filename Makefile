# `make report` on a fresh clone does everything; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# An NVIDIA driver decides whether CUDA's libraries are worth their gigabytes.
CUDA := $(if $(shell command -v nvidia-smi 2>/dev/null),cuda)
comma := ,
CONFIG ?=

.DEFAULT_GOAL := help
.PHONY: help report figures test lint format types unit workflow bench lock wheelhouse clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 14

report: $(VENV)/installed ## Measure this machine and write reports/report.html (CONFIG="experiment=kernels size=1024")
	$(BIN)/snakemake --cores 1 report $(if $(CONFIG),--config $(CONFIG))

figures: $(VENV)/installed ## Draw the figures alone, into reports/figures/
	$(BIN)/snakemake --cores 1 figures $(if $(CONFIG),--config $(CONFIG))

test: lint types unit workflow ## Everything that .ci/run checks

lint: $(VENV)/tested ## Style and format of Python and Snakemake code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

format: $(VENV)/tested ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

types: $(VENV)/tested ## Static types
	$(BIN)/mypy

unit: $(VENV)/tested ## Fast tests of pure logic, kernels in their simulators, the page in a browser
	$(BIN)/pytest -m "not workflow" -n auto

workflow: $(VENV)/tested ## The real workflow in miniature
	$(BIN)/pytest -m workflow -n auto --dist loadgroup

bench: $(VENV)/installed ## Each target beside what was got, in two minutes (ALL=1: 5,000 runs and quickstart too)
	@missed=0; for each in "pipeline.py $(if $(ALL),--all)" cpu_matmul.py sampler_cost.py; do \
	    $(BIN)/python benchmarks/$$each || missed=1; done; exit $$missed

lock: ## Pin what a fresh environment resolves to, in requirements.lock
	$(PYTHON) scripts/lock.py

wheelhouse: ## Collect every wheel for an air-gapped machine: docs/clusters.md
	$(PYTHON) scripts/wheelhouse.py $(WHEELHOUSE)

clean: ## Remove the environment and the figures; results stay
	rm -rf $(VENV) reports/figures reports/report.html

INSTALL = $(BIN)/python -m pip install --quiet --constraint requirements.lock

$(VENV)/installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mfulab needs Python 3.11 or later: make report PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch setuptools
	$(INSTALL) --no-build-isolation --editable "$(if $(CUDA),.[$(CUDA)],.)"
	touch $@

$(VENV)/tested: $(VENV)/installed
	$(INSTALL) --no-build-isolation --editable ".[test$(if $(CUDA),$(comma)$(CUDA))]"
	touch $@
