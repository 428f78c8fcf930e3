# Two commands do everything on a fresh machine: `make run` (the main job) and `make test`.
PYTHON ?= python3
# Set it for another build, for example TORCH_SPEC="torch==2.13.0 --index-url URL" with the address of torch's CPU builds.
TORCH_SPEC ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin
AUDIT := $(BIN)/dllm-audit
DB ?= dllm-audit.duckdb
DEVICE ?= cuda:0
STAMP := $(VENV)/.installed

.PHONY: run test lint bench goldens gpu report clean

# The embedded models are far too small to share a forward between threads.
run: export OMP_NUM_THREADS := 1
run: $(STAMP)  ## decode tasks with five backends, store every request, write the report
	$(AUDIT) run --backend uncached,prefixcache,dualcache,block --baseline ar --task gsm_mini --limit 40 --threshold 0.9 --db $(DB)
	$(AUDIT) run --backend uncached,dualcache,block --task gsm_mini --limit 40 --tokens-per-step 1 --db $(DB)
	$(AUDIT) run --backend uncached --task gsm_mini --limit 40 --tokens-per-step 2 --db $(DB)
	$(AUDIT) run --backend uncached --task lists_shuffle,lists_replace,lists_copy --limit 40 --block-length 16 --tokens-per-step 1 --db $(DB)
	$(AUDIT) run --backend uncached --task lists_shuffle,lists_replace,lists_copy --limit 40 --block-length 16 --tokens-per-step 8 --db $(DB)
	$(AUDIT) runs --db $(DB)
	$(AUDIT) report --db $(DB)

test: $(STAMP)  ## run every test, in two processes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(STAMP)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

goldens: $(STAMP)  ## recorded decodes of the original programs: N of N exact per family
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.golden

bench: $(STAMP)  ## benchmarks: ratios measured side by side in one run
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks

gpu: $(STAMP)  ## every check and benchmark that needs a GPU, in ten minutes; DEVICE=cpu shows that they work
	$(BIN)/python -m tests.gpu --device $(DEVICE)

report: $(STAMP)  ## write the report again from the stored results
	$(AUDIT) report --db $(DB)

$(STAMP): pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH_SPEC)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist *.egg-info
