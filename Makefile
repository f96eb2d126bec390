# `make demo` and `make test` do all the set-up they need, in .venv or in VENV=dir. A rerun costs seconds.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP = $(BIN)/uv pip install --quiet --python $(BIN)/python
CARGO ?= cargo
SOURCES := $(shell find rust python -name '*.rs' -o -name '*.py' -o -name '*.pyi' -o -name '*.toml') \
	Cargo.toml Cargo.lock pyproject.toml README.md

say = @printf '\n\033[1m==> %s\033[0m\n' "$(1)"

.DEFAULT_GOAL := help
.PHONY: help demo test rust-checks rust-tests python-checks python-tests deep bench clean

help:
	@echo 'make demo    set up, then a model in conversation, and a serving workload, through the cache'
	@echo 'make test    set up, then run every check and test'
	@echo 'make deep    the model tests at length: over a million operations (some minutes)'
	@echo 'make bench   the benchmarks: the core (criterion), the binding, int8 checkpoints, memory'
	@echo 'VENV=dir     use another virtual environment than .venv'

$(BIN)/uv:
	$(call say,making a virtual environment in $(VENV))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

# What building needs, and then everything that the checks and tests need: pyproject's dependency groups are the lists.
$(VENV)/.build-tools: pyproject.toml | $(BIN)/uv
	$(call say,installing the build tools)
	$(PIP) --group build
	@touch $@

$(VENV)/.test-tools: pyproject.toml | $(BIN)/uv
	$(call say,installing what the tests need)
	$(PIP) --group dev
	@touch $@

$(VENV)/.installed: $(SOURCES) | $(VENV)/.build-tools
	$(call say,building the wheel and installing it (the first time this takes some minutes: torch))
	@rm -rf $(VENV)/wheel
	$(BIN)/maturin build --release --locked --quiet --interpreter $(BIN)/python --out $(VENV)/wheel
	$(PIP) --reinstall-package stemcache "$$(ls $(VENV)/wheel/*.whl)[report,transformers]"
	@touch $@

demo: $(VENV)/.installed
	$(call say,a real hybrid model in conversation with and without the cache)
	$(BIN)/stemcache demo --report $(VENV)/demo.html
	$(call say,a generated chat workload through the real index and allocators)
	$(BIN)/stemcache replay --workload chat --requests 3000 --kv-tokens 300000 --states 300 --concurrency 16 \
		--report $(VENV)/replay.html
	@echo 'The same as pictures: $(VENV)/demo.html and $(VENV)/replay.html'

test: rust-checks rust-tests python-checks python-tests
	$(call say,everything passed)

rust-checks:
	$(call say,rustfmt and clippy)
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked --quiet -- -D warnings

rust-tests:
	$(call say,the core: unit tests and the model tests against the oracle)
	$(CARGO) test --locked
	$(call say,the documentation builds without a warning)
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --no-deps --locked --quiet

python-checks: $(VENV)/.installed $(VENV)/.test-tools
	$(call say,ruff, mypy and stubtest)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest stemcache._core

python-tests: $(VENV)/.installed $(VENV)/.test-tools
	$(call say,the package: pytest)
	$(BIN)/python -m pytest -q

deep:
	$(call say,the model tests at length)
	MODEL_CASES=12000 $(CARGO) test --release --locked --test model
	HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -q tests/python/test_state_machine.py

bench: $(VENV)/.installed
	$(call say,the core)
	$(CARGO) bench --locked
	$(call say,the binding)
	$(BIN)/python benches/python/bench_binding.py
	$(call say,int8 checkpoints)
	$(BIN)/python benches/python/bench_quant.py
	$(call say,memory)
	$(BIN)/python benches/python/bench_memory.py

clean:
	$(CARGO) clean
	rm -rf $(VENV)
