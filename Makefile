# make demo | test | test-slow | zoo | build | lint | format | bench; TF chooses the TensorFlow version.
TF ?= 2.21.0
PYTHON ?= python3.11
VENV := .venv/$(TF)
BIN := $(VENV)/bin
# Made once all of the environment is there; a broken install is started anew.
READY := $(VENV)/.ready
SOURCES := $(shell find kernels -name '*.h' -o -name '*.cc' -o -name '*.cu' 2>/dev/null) \
           CMakeLists.txt setup.py pyproject.toml
PYTEST_ARGS ?=
# For tests; they run without what they ask for. DeepCTR pins an old h5py and more,
# and serves one file. tf_keras, Keras 2 beside Keras 3, wants tensorflow, not -cpu.
EXTRAS := $(if $(filter 2.15.%,$(TF)),deepctr==0.9.4,tf_keras==$(basename $(TF)).*)

.PHONY: demo test test-slow zoo build lint format bench clean

$(READY):
	@command -v $(PYTHON) >/dev/null || { echo "picasso_tf needs $(PYTHON); set PYTHON=... to another name of it."; exit 1; }
	@command -v g++ >/dev/null || { echo "picasso_tf needs g++ (Debian: apt-get install g++)."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip "setuptools>=77" wheel
	$(BIN)/pip install -q "tensorflow-cpu==$(TF)" cmake ninja absl-py "rich>=13" \
	  "pytest>=8" pytest-xdist "hypothesis>=6" pandas
	touch $@

$(VENV)/.extras: $(READY)
	$(BIN)/pip install -q --no-deps "$(EXTRAS)"
	touch $@

# The library is rebuilt when a source is newer; CMake then builds what changed.
$(VENV)/.built: $(READY) $(SOURCES) | $(VENV)/.extras
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pip install -q --no-build-isolation --no-deps -e .
	touch $@

build: $(VENV)/.built

demo: build
	$(BIN)/python examples/demo.py

test: build
	$(BIN)/pytest -q -p no:cacheprovider -n 2 -m "not slow and not zoo" $(PYTEST_ARGS)

test-slow: build
	$(BIN)/pytest -q -p no:cacheprovider -n 2 -m slow $(PYTEST_ARGS)

# All of DeepCTR's models, which needs TensorFlow 2.15.
zoo: build
	$(BIN)/python -m benchmarks.zoo --optimizers adam --quick --check

# The quick mode. BENCH_ARGS="steps W200 session", "kernels", "scaling --out build/scaling", ...
BENCH_ARGS ?= --quick
$(VENV)/.bench: $(READY)
	$(BIN)/pip install -q "matplotlib>=3.8"
	touch $@

bench: build $(VENV)/.bench
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

LINT := .venv/lint
$(LINT)/.ready:
	$(PYTHON) -m venv $(LINT)
	$(LINT)/bin/pip install -q ruff==0.17.6 clang-format==23.1.5
	touch $@

lint: $(LINT)/.ready
	$(LINT)/bin/ruff check .
	$(LINT)/bin/ruff format --check .
	$(LINT)/bin/clang-format --dry-run --Werror $$(find kernels -name '*.h' -o -name '*.cc' -o -name '*.cu')

format: $(LINT)/.ready
	$(LINT)/bin/ruff check --fix .
	$(LINT)/bin/ruff format .
	$(LINT)/bin/clang-format -i $$(find kernels -name '*.h' -o -name '*.cc' -o -name '*.cu')

clean:
	rm -rf build picasso_tf/_native .venv
