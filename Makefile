# Every target works in the environment `.venv`, which is made from pyproject.toml and made again when that changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made
LOCK := requirements-dev.lock
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(LOCK)
# Tests start hundreds of processes: with bytecode that is kept, whatever the surroundings say, they start in half of the time.
PYTEST := OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test test-extras lint format golden reference docs samples models cases kills guarantee ablation experiment mutations kernel-mutations spoiled-stages programs fuzz foreign \
  threads passes suite tuning cpu-suite edges oldest reproducible lock dist clean

help: ## Print these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  PYTHON=...      the interpreter that .venv is made with (3.11 or newer; now: $(PYTHON))"

demo: $(STAMP) ## Optimize an exported decoder, prove it, and run it in onnxruntime beside the original
	@$(BIN)/python samples/demo.py

test: $(STAMP) ## Run the whole test suite
	$(PYTEST) -n auto --dist worksteal

# What the extras bring: torch, onnxruntime-genai with the builder of its models, Dask, OpenCL on the processor, HIP's compiler.
EXTRAS = tests/farm/test_farm.py 'tests/documents/test_how_to.py::test_a_page[farm]' tests/frontends/torchscript tests/python/test_torch.py tests/benchmark/test_program_peer.py tests/suite/test_cases.py::test_torch_computes_what_the_nodes_compute \
  tests/backends/test_kernel.py::test_torch_on_the_host tests/runtime/test_genai.py tests/codegen/opencl/test_on_device.py tests/kernels/test_opencl.py $(HIP_TESTS)
HIP_TESTS := tests/codegen/hip
# The clang that compiles HIP, where there is none and packages may be installed.
HIP_CLANG_PACKAGES := clang-19 clang-tools-19 lld-19 llvm-19

test-extras: $(VENV)/.extras ## Run the tests of what torch, onnxruntime-genai, Dask, OpenCL and HIP's compiler add (installs them)
	$(PYTEST) -n auto --dist worksteal $(EXTRAS)

lint: $(STAMP) ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p mirage_cli -p samples
	$(BIN)/lint-imports

format: $(STAMP) ## Bring all Python files into form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

golden: $(STAMP) ## Accept the present output as the golden files of the tests; look at the diff afterwards
	MIRAGE_GOLDEN=1 $(PYTEST) -n auto --dist worksteal

reference: $(STAMP) ## Write docs/reference, docs/pictures and the table of packages from the code
	$(BIN)/python samples/reference.py
	$(BIN)/python samples/pictures.py
	$(BIN)/python samples/packages.py

docs: $(VENV)/.docs ## Build the site of the documents in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "build/site/index.html"

samples: $(VENV)/.samples ## Export the sample models again (installs torch and transformers)
	$(BIN)/python samples/export.py
	$(BIN)/python samples/operators.py
	$(BIN)/python samples/catalog.py

models: $(VENV)/.samples ## Export every architecture in every form and write docs/reference/models.md; CELLS="NAME ..." for some of them
	$(BIN)/python -m samples.zoo --all --jobs $$(nproc) --write $(CELLS)

cases: $(STAMP) ## Search and prove the published cases; CASES="NAME ..." for some of them
	$(BIN)/python samples/cases.py --table $(CASES)

kills: $(STAMP) ## Kill 100 runs at random moments, then fail each call of the file system in turn (docs/reliability.md)
	$(BIN)/python -m tests.faults.kills --count 100
	$(BIN)/python -m tests.faults.injection
	$(BIN)/python -m tests.faults.surroundings

guarantee: $(STAMP) ## Compare closures with all block graphs of small programs (an hour; docs/search.md)
	$(BIN)/python -m tests.search.guarantee --tensors 1 --operators 4 --steps 5
	$(BIN)/python -m tests.search.guarantee --tensors 2 --operators 4 --steps 4
	$(BIN)/python -m tests.search.guarantee --axes ijk --reduced k --operators 4 --steps 3
	$(BIN)/python -m tests.search.guarantee --axes ijk --reduced jk --operators 4 --steps 3

ablation: $(STAMP) ## Time the search with and without its parts (docs/reference/measurements.md)
	$(BIN)/python samples/ablation.py

experiment: $(STAMP) ## Count wrong acceptances of the proof's test over small primes, beside its theorem (docs/proof.md)
	$(BIN)/python samples/experiment.py

mutations: $(STAMP) ## Prove or refute 10,000 random changes of proved muGraphs (docs/proof.md)
	$(BIN)/python -m tests.search.proof.test_mutations --count 10000

kernel-mutations: $(STAMP) ## Refute 10,000 random changes of printed kernels (docs/proof.md; goes on where it was stopped); COUNT of each kernel
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.kernel_proof.mutations $(if $(COUNT),--count $(COUNT))

spoiled-stages: $(STAMP) ## Refute 10,000 spoiled schedules of kernels with stages (docs/proof.md); COUNT, SEED for others
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.kernel_proof.spoiled_stages --count $(or $(COUNT),10000) --seed $(or $(SEED),1)

programs: $(STAMP) ## Optimize 1,000 random programs and compare them with float64 (docs/reliability.md); COUNT, SEED for others
	$(BIN)/python -m tests.random_programs --count $(or $(COUNT),1000) --seed $(or $(SEED),0)

fuzz: $(VENV)/.fuzz ## Fuzz all readers for an hour of processor time, guided by coverage (docs/reliability.md); SECONDS for less
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.guided --seconds $(or $(SECONDS),3600)

foreign: $(STAMP) ## Run models of others end to end: node tests of onnx and old spellings of operators; FOLDER for other ones
	mkdir -p out; if [ -n "$(FOLDER)" ]; then OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.foreign $(FOLDER) --jobs $$(nproc) --out out/foreign-$$(git rev-parse --short HEAD).jsonl; else \
	  mkdir -p out/foreign && status=0; for kind in nodes spellings; do OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.foreign out/foreign/$$kind --$$kind \
	  --out out/foreign/$$kind-$$(git rev-parse --short HEAD).jsonl --jobs $$(nproc) --cache out/foreign/cache || status=$$?; done; exit $$status; fi

threads: $(STAMP) ## Call sessions and kernels from many threads for ten minutes (docs/reliability.md); SECONDS for less
	$(BIN)/python -m samples.threads --seconds $(or $(SECONDS),600)

passes: $(STAMP) ## Write what each optimizer pass does for the published cases into docs/codegen.md
	$(BIN)/python -m samples.passes --write

tuning: $(STAMP) ## Tune the published cases on GPU 0 and write the cost model's error into docs/reference/measurements.md
	$(BIN)/python -m samples.tuning --gpu 0 --write

suite: $(STAMP) ## Time the suite on GPU 0 and write its tables into docs/performance.md and docs/reference/measurements.md (needs torch with CUDA and nvcc)
	status=0; for type in fp16 bf16 fp32; do \
	  $(BIN)/mirage bench --suite paper --gpu 0 --dtype $$type --build out/suite --markdown docs/$$([ $$type = fp16 ] && echo performance || echo reference/measurements).md || status=$$?; \
	done; exit $$status

cpu-suite: $(VENV)/.samples ## Time whole models and the published cases on the CPU, into docs/reference/measurements.md; NAMES="..." for some of them
	$(BIN)/python -m samples.cpu_suite --write $(NAMES)

edges: $(STAMP) ## Check the CPU kernels of all samples at the edges of numbers; MODELS="FILE ..." for others
	$(BIN)/python -m samples.edges $(or $(MODELS),samples/operators/*.onnx samples/models/*.onnx) --jobs $$(nproc)

oldest: $(STAMP) ## Run a patched model in all kinds of sessions of the oldest onnxruntime that is supported
	$(BIN)/mirage optimize samples/models/llama_fp32.onnx -o out/oldest --target cpu --force
	test -d $(VENV)/oldest || $(PYTHON) -m venv $(VENV)/oldest
	$(VENV)/oldest/bin/python -m pip install --quiet --disable-pip-version-check onnxruntime==1.20.1 onnx
	$(VENV)/oldest/bin/python samples/sessions.py samples/models/llama_fp32.onnx out/oldest

reproducible: $(STAMP) ## Optimize samples in surroundings that must not matter and compare all bytes; NAMES="llama_fp32 ..." for some of them
	$(BIN)/python -m samples.reproducible $(or $(NAMES),--all) --jobs $$(nproc)

lock: ## Pin the versions of development again, at the newest of their ranges (uv)
	uv pip compile pyproject.toml --extra dev --extra docs --extra farm --universal --python-version 3.11 --no-header --no-annotate --upgrade --quiet \
	  --output-file $(LOCK)

dist: $(STAMP) ## Build the wheel and the source distribution in dist/
	$(PIP) build
	$(BIN)/python -m build --outdir dist .

clean: ## Remove the environment and everything that is made
	rm -rf $(VENV) build dist out/demo *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: $(PYTHON) is not Python 3.11 or newer; name one that is: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv --clear $(VENV) || { \
	  echo "make: $(PYTHON) cannot make environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/.docs: $(STAMP)
	@$(PIP) --editable '.[dev,docs]'
	@touch $@

$(VENV)/.fuzz: $(STAMP)
	@$(PIP) --editable '.[dev,fuzz]'
	@touch $@

$(VENV)/.hip: $(STAMP)
	@$(BIN)/python -c 'from mirage_cli.backends import hip; hip.find()' 2>/dev/null || { apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(HIP_CLANG_PACKAGES) >/dev/null; } || \
	  echo "make: no clang compiles HIP here: those tests are skipped"
	@touch $@

# Most of 8,000 modules are never imported: those that are compile then.
$(VENV)/.extras: $(VENV)/.hip
	@$(PIP) --no-compile torch==2.13.0
	@$(PIP) --no-compile --editable '.[dev,genai,farm,opencl]'
	@touch $@

$(VENV)/.samples: $(STAMP)
	@$(PIP) --editable '.[dev,samples]'
	@touch $@
