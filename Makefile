# make demo: the whole thing, seen.   make test: does it work here?   make test-all: the whole suite.
# make bench: the figures.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Many images of Python set it. Then each process of a test run would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=
# Files of tests that run at a time. Tests of workers wait for most of their time.
JOBS ?= 8

.PHONY: demo test collect check test-all celery-suite fuzz mutants bench docs lint clean
.DELETE_ON_ERROR:

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: $(STAMP)
	@$(BIN)/python -m example_project.demo

test: $(STAMP) lint collect
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow"

# Compiles the tests once, rather than in each process of a run at the same time. What cannot be collected, the run says.
collect: $(STAMP)
	-@$(BIN)/python -m pytest --collect-only -q >/dev/null

# Those of make test, too: everything there is. Eight files at a time, with their fleets, are more than two cores can do in time.
test-all: $(STAMP) lint collect
	RATELIMIT_TEST_EXAMPLES=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# Without workers and brokers: while one works on a change.
check: $(STAMP) lint
	$(BIN)/python -m pytest -n 2 -m "not slow" tests/unit tests/lua

celery-suite: $(STAMP)
	$(BIN)/python -m tests.outside $(SUITE)

# Random fleets against the laws, for so many seconds; SEED=… runs one of them again.
fuzz: $(STAMP)
	@$(BIN)/python -m tests.fuzz SECONDS=$(SECONDS) SEED=$(SEED)

# Which changes of the scripts and of the pure modules no test notices: FILES="park.lua worker/next_action.py", or each EVERY-th
# change of all.
mutants: $(STAMP)
	@$(if $(or $(filter %.lua,$(FILES)),$(if $(FILES),,all)),$(BIN)/python -m tests.lua.mutants --every $(or $(EVERY),1) $(filter %.lua,$(FILES)))
	@$(if $(or $(filter %.py,$(FILES)),$(if $(FILES),,all)),$(BIN)/python -m tests.unit.mutants --every $(or $(EVERY),1) $(filter %.py,$(FILES)))

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# The site, in build/site: each warning, such as a link that leads nowhere, is an error.
docs: $(STAMP)
	$(BIN)/sphinx-build -E -W -q -b html docs build/site

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
