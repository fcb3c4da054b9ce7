# Two commands do everything on a fresh machine with Python >= 3.11 and Rust: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FAULT ?= segfault
FUZZ_SECONDS ?= 1800

# Incremental builds cost more disk than they save time in a build that is made once.
export CARGO_INCREMENTAL := 0
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python

SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find rust -name '*.rs' -o -name '*.toml')

.PHONY: demo test test-all lint bench fuzz accuracy clean help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/built  ## run a real torchrun job with a planted fault and show both reports (FAULT=exception, abort, ...)
	$(BIN)/firstfault demo $(FAULT)

test: $(VENV)/built  ## run the Rust and the Python tests
	cargo test --locked
	$(BIN)/python -m pytest

test-all: $(VENV)/built $(VENV)/integrations  ## the same, those that take long, and the integrations
	cargo test --locked
	INTEGRATIONS=required $(BIN)/python -m pytest -m ""

lint: $(VENV)/built  ## check formatting, lints, types, the stub and the symbols of the signal handler
	cargo fmt --all --check
	cargo clippy --quiet --locked --workspace --exclude firstfault-audit --exclude firstfault-audit-unwind --all-targets -- -D warnings
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest firstfault._native
	sh rust/audit/symbols.sh

bench: $(VENV)/ready  ## measure against torch, an undecorated main and the floor of the machine
	PIP_QUIET=1 $(BIN)/maturin develop --quiet --release --locked
	rm -f $(VENV)/built
	$(BIN)/python benches/side_by_side.py
	$(BIN)/python benches/crashes.py
	$(BIN)/python benches/deferred.py
	FIRSTFAULT_BENCH_PYTHON=$(CURDIR)/$(BIN)/python cargo bench --quiet --locked -p firstfault-benches

fuzz:  ## feed the readers garbage, FUZZ_SECONDS for each (needs nightly Rust and cargo-fuzz)
	cd rust/analysis && for target in parse logs rules; do \
		mkdir -p fuzz/corpus/$$target && \
		cargo +nightly fuzz run --sanitizer none $$target fuzz/corpus/$$target fuzz/seeds ../../tests/data -- \
			-max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=1024 -max_len=65536 || exit 1; \
	done

accuracy: $(VENV)/built  ## say how often the verdict on labelled jobs is right, for us and for four baselines
	$(BIN)/python tests/accuracy.py

clean:  ## remove what the other targets made
	rm -rf $(VENV) target python/firstfault/_native*.so

# The environment: made once, renewed when what it should hold changes.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev torch
	touch $@

# The libraries that firstfault is integrated with: only their own tests need them.
$(VENV)/integrations: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group integrations torch
	touch $@

$(VENV)/built: $(VENV)/ready $(SOURCES)
	PIP_QUIET=1 $(BIN)/maturin develop --quiet --locked
	touch $@
