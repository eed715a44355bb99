# Everything here can be run on a fresh Debian machine as root. `make help` lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Packages and built programs are kept here between checkouts; nothing needs it to be there.
export DIFLOW_CACHE ?= $(HOME)/.cache/diflow
export MYPY_CACHE_DIR ?= $(DIFLOW_CACHE)/mypy
# Tests start hundreds of Python processes, and each of them would compile diflow, and pytest each test, once more.
unexport PYTHONDONTWRITEBYTECODE
NAME ?= diflow
ARGO ?= 4.0.7
DATA ?=
# Of `make chaos`.
MINUTES ?= 5
SEED ?= 1
POLICY ?= fit
NODES ?= 1
# Tests on the clusters wait more than they work (tests/conftest.py): more of them than there are processors.
PROCESSES ?= 5
PIP_AUDIT ?= 2.10.1

.PHONY: help
help: ## list all targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --no-deps: the lock is complete (pip check proves it). pip's resolver refuses the lock when a package that another one
# asks for with an extra has a newer release than the pinned one. --no-compile: Python compiles what is imported, once.
$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --no-compile \
	  -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check --quiet --disable-pip-version-check
	touch $@

.PHONY: venv
venv: $(VENV)/.ready ## the Python environment, with diflow and its tools, in .venv

.PHONY: cluster
cluster: ## start the one-machine cluster with Argo (NAME=diflow ARGO=4.0.7)
	$(PYTHON) -m cluster up --name $(NAME) --argo $(ARGO)

.PHONY: cluster-down
cluster-down: ## stop it, and leave nothing of it behind
	$(PYTHON) -m cluster down --name $(NAME)

.PHONY: demo
demo: $(VENV)/.ready ## a real reinforcement-learning job, from nothing to its plot
	$(BIN)/python examples/demo.py

.PHONY: demo-elastic
demo-elastic: $(VENV)/.ready ## the allocator on three nodes: growth, preemption, a lost node, and a picture of it
	$(BIN)/python examples/demo_elastic.py

.PHONY: demo-hostile
demo-hostile: $(VENV)/.ready ## one namespace attacks the allocator while another submits jobs: a table of how both fare
	$(BIN)/python examples/demo_hostile.py

.PHONY: demo-queues
demo-queues: $(VENV)/.ready ## two teams of two users share GPUs by the policy fair: a table, and a picture of who holds what
	$(BIN)/python examples/demo_queues.py

.PHONY: demo-training
demo-training: $(VENV)/.ready ## torch on two real nodes: out of memory, a hang, a slow node, resizes, kills, and a picture of it
	$(BIN)/python examples/demo_training.py

.PHONY: test
test: style $(VENV)/.ready ## checks, short tests with their coverage, and the main paths on one real cluster (15 minutes)
	$(MAKE) --no-print-directory --jobs=2 types tests

# The types are checked on one processor while the tests wait for their cluster.
.PHONY: tests
tests: $(VENV)/.ready
	DIFLOW_TEST_CLUSTERS=argo40 $(BIN)/python -m pytest -m "not slow and not extended" -n $(PROCESSES) --dist loadgroup \
	  --no-loadscope-reorder --cov=diflow --cov-report= --cov-report=json:out/coverage.json
	$(BIN)/python -m tests.coverage_by_room out/coverage.json

.PHONY: test-all
test-all: $(VENV)/.ready ## what `make test` leaves out: slow tests, rarer paths, the other version of Argo (20 minutes)
	DIFLOW_TEST_CLUSTERS="argo40 argo37" $(BIN)/python -m pytest -m "slow or extended" -n $(PROCESSES) --dist loadgroup \
	  --no-loadscope-reorder

# Half of the time of these tests is waiting.
.PHONY: unit
unit: $(VENV)/.ready ## what a contributor runs first: the tests that need no cluster, without the slow ones
	$(BIN)/python -m pytest -n $$($(BIN)/python -c 'import os; print(2 * os.cpu_count())') -m "not cluster and not slow"

.PHONY: slow
slow: $(VENV)/.ready ## the other tests that need no cluster: many random cases, crashes at each write, simulations
	$(BIN)/python -m pytest -n auto -m "slow and not cluster"

.PHONY: chaos
chaos: $(VENV)/.ready ## random operations and faults on jobs of a real cluster, and what must hold (MINUTES=5 SEED=1 POLICY=fit ARGO=4.0.7; NODES=2: a second one fails)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --seed $(SEED) --policy $(POLICY) --argo $(ARGO) \
	  --nodes $(NODES)

.PHONY: laws
laws: $(VENV)/.ready ## judge the policies on 100,000 snapshots and health on 10,000 job hours; `make test-all` takes 1,000 (45 minutes)
	DIFLOW_LAW_SNAPSHOTS=100000 DIFLOW_HEALTH_RUNS=10 $(BIN)/python -m pytest tests/policies/test_laws.py \
	  tests/allocator/reconcile/test_health_alarms.py

.PHONY: lint
lint: style types ## ruff, mypy --strict, import-linter

.PHONY: style
style: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

.PHONY: types
types: $(VENV)/.ready
	$(BIN)/mypy

.PHONY: format
format: $(VENV)/.ready ## put the code into its form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: golden
golden: $(VENV)/.ready ## write the generated files: golden Workflows, the CRD, tables of fields, docs/cli.md, docs/api.md, diflow/server/openapi.json
	$(BIN)/python -m tests.workflows.golden
	$(BIN)/python -m diflow.cli.reference > docs/cli.md
	$(BIN)/python -m diflow.server.api.openapi > diflow/server/openapi.json
	$(BIN)/python -m diflow.server.api.reference > docs/api.md

.PHONY: bench
bench: $(VENV)/.ready ## measure speed, the allocator's too (20 minutes; less with SIZES=100, or PARTS=starting,commands); writes out/bench.json
	$(BIN)/python -m benchmarks $(if $(SIZES),--sizes $(SIZES)) $(if $(PARTS),--only $(PARTS)) $(if $(ROUNDS),--rounds $(ROUNDS))

.PHONY: bench-policies
bench-policies: $(VENV)/.ready ## queues in streams of jobs (STREAMS=20: fewer); with DATA=the folder of the Pollux data quality, speed and laws too
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.policies $(if $(DATA),--data $(DATA),--only streams) $(if $(STREAMS),--streams $(STREAMS))

.PHONY: bench-scale
bench-scale: $(VENV)/.ready ## 10,000 waiting jobs, 5,000 pods, a job of 1,000 replicas, killed leaders (40 minutes; PARTS="gang soak": some); writes out/scale.json
	$(BIN)/python -m benchmarks.scale $(PARTS)

.PHONY: bench-argo
bench-argo: $(VENV)/.ready ## settings of Argo's controller beside each other, with 1,000 running jobs (30 minutes)
	$(BIN)/python -m benchmarks.scale.argo

.PHONY: bench-long
bench-long: $(VENV)/.ready ## a job of 500 rounds with 8 replicas on fake nodes, over several Workflows (an hour on two busy cores)
	$(BIN)/python -m benchmarks.long --minutes 120

.PHONY: release
release: $(VENV)/.ready ## wheel, sdist, image, notes and checksums, in out/release (docker or buildah; TAG=v0.2.0; IMAGE_FLAGS="--build-arg ...")
	$(BIN)/python -m cluster.release $(if $(TAG),--tag "$$TAG") -- $(IMAGE_FLAGS)

# In an environment of its own: what looks the packages up is not one of them. --strict: none is passed over in silence.
.PHONY: audit
audit: ## look the locked packages up among known vulnerabilities (needs the Internet)
	$(PYTHON) -m venv out/audit
	out/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==$(PIP_AUDIT)
	out/audit/bin/pip-audit --strict --disable-pip --require-hashes --requirement requirements.lock

.PHONY: lock
lock: ## pin the Python packages again (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --all-extras --group dev pyproject.toml -o requirements.lock

.PHONY: clean
clean: ## remove what was made in this checkout
	rm -rf $(VENV) out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
