# make demo: see it work.  make quick: test while you work.  make test: test before you commit.  make check: format, lint, types, architecture.  make help: the rest.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
PIP = $(BIN)/python -m pip install --disable-pip-version-check --no-compile --constraint constraints.txt
# Modules are compiled when they are first imported: most of them never are. Unless that is kept, each of a hundred processes compiles torch.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo quick bytecode test test-all test-avx2 coverage matrix soak test-domain browser screenshots film pictures gpu check format bench chart dist lock clean

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

# What nanoserve itself needs.
$(RUNTIME): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "nanoserve needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "[1/2] creating an environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { echo "cannot create an environment: on Debian, apt install python3-venv" >&2; exit 1; }
	@echo "[2/2] installing nanoserve and torch into it (once; one to four minutes, by your connection)"
	@$(PIP) --editable .
	@touch $@

$(STAMP): $(RUNTIME)
	@echo "installing what tests and checks need into $(VENV) (once, a few minutes)"
	@$(PIP) --quiet $(DEV_PACKAGES)
	@touch $@

# The packages of pyproject's dev group, read from there (pip learned --group only in 25.1).
DEV_PACKAGES = $$($(PYTHON) -c 'import tomllib; print(*("\"%s\"" % each for each in tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"]))' | tr -d '"')

DEMO = $(BIN)/nanoserve generate "Once upon a time" --max-tokens 320 --seed 7 --stats
define NEXT

Next, talk to the model, or serve it and open http://127.0.0.1:8000 in a browser:
  $(BIN)/nanoserve chat
  $(BIN)/nanoserve serve
endef
export NEXT

demo: $(RUNTIME) ## generate text with the embedded model; installs what nanoserve needs and no more
	@printf '\n$$ %s\n\nOnce upon a time' '$(DEMO)'
	@$(DEMO)
	@echo "$$NEXT"

PYTEST = OMP_NUM_THREADS=1 $(BIN)/pytest
# Processes that tests start are waited for, so one test runs more than there are cores.
ONE_MORE = PYTEST_XDIST_AUTO_NUM_WORKERS=$$(($$(getconf _NPROCESSORS_ONLN) + 1))
# A test that hangs ends after so many seconds and says where.
PARALLEL = --numprocesses auto --maxprocesses 8 --dist worksteal --timeout 600

quick: $(STAMP) ## run the unit tests, in two minutes on two cores
	$(PYTEST) tests/unit tests/cluster --ignore tests/cluster/process $(PARALLEL)

bytecode: $(STAMP) ## compile what tests import, once: each of several processes that begin together would do so for itself
	-$(PYTEST) tests README.md docs --collect-only --quiet > /dev/null

test: $(STAMP) ## run the unit tests, the kernels, real processes and the README, in eight minutes
	$(ONE_MORE) $(PYTEST) $(PARALLEL) --ignore tests/interpreter/gpu --ignore tests/interpreter/cuda --ignore tests/interpreter/contracts --ignore tests/process/clients --ignore tests/process/measurements --ignore tests/cluster/process

test-all: $(STAMP) ## run all tests: also engines over models of every family and over interpreted kernels, others' clients, the browser, attacks, faults, docs
	$(ONE_MORE) $(PYTEST) tests README.md docs --hypothesis-profile ci $(PYTEST_OPTIONS) $(PARALLEL)

# Kernels of a processor with AVX2 and nothing newer, in numpy's BLAS library, torch and oneDNN: no AVX512, no bfloat16.
AVX2 = env OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
test-avx2: $(STAMP) ## run kernels, models and runners as a processor without AVX512 does
	$(BESIDE) $(AVX2) $(PYTEST) tests/interpreter/kernels tests/unit/kernels tests/unit/contracts tests/unit/adapters/pytorch tests/unit/adapters/gguf $(PARALLEL)

coverage: ## run all tests and list the lines that none of them ran
	$(MAKE) test-all PYTEST_OPTIONS="--cov --cov-report term"

matrix: $(STAMP) ## run every shape of every kernel in Triton's interpreter: after a change of kernels, where there is no GPU
	$(PYTEST) tests/interpreter --matrix $(PARALLEL)

soak: $(STAMP) ## run what takes many minutes: long runs, and property tests in search of new failures
	$(PYTEST) tests -m slow $(PARALLEL) --timeout 0
	$(PYTEST) tests/unit --hypothesis-profile deep $(PARALLEL) --timeout 0

browser: ## install the Chromium that tests/browser needs (Debian, as root); without it they are skipped
	tools/install_browser.sh

screenshots: $(STAMP) ## make the pictures of README and docs from a real run
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.take_screenshots

film: $(STAMP) ## make the moving picture of README from a real run
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.film_engine

pictures: $(STAMP) ## make the pictures of docs/watch-a-request.md, each by its experiment
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.take_screenshots watch

gpu: $(STAMP) ## run the suites that compute on an NVIDIA GPU, in every dtype
	$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "make gpu needs an NVIDIA GPU that torch can see")'
	$(PYTEST) tests/interpreter --numprocesses 8 --dist worksteal

test-domain: ## run the control plane's tests in an environment that has no torch
	$(BESIDE) tools/test_domain_without_torch.sh $(DOMAIN_OPTIONS)

check: $(STAMP) ## format, lint, types, architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## rewrite the sources in the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## measure the control plane, and generation beside transformers
	$(BIN)/python -m benchmarks.control_plane
	$(BIN)/python -m benchmarks.offline built-in shape:llama-3.2-1b --vs hf --device cpu --dtype bfloat16 --temperature 0 --loads single b8 --input-len 128 --output-len 64

chart: ## draw the README's chart of speed from the table in docs/performance.md
	$(PYTHON) -m tools.speed_chart

dist: ## build the sdist and the wheel, check both, and try the wheel in an empty environment
	tools/make_dist.sh

lock: ## pin what is installed now into constraints.txt
	$(BIN)/python -m tools.write_constraints > constraints.txt.new && mv constraints.txt.new constraints.txt

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage*
