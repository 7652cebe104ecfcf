# Each target makes what it needs from a bare clone: plain python3 and pip, into
# .venv. A stamp per set of dependencies, newer than pyproject.toml, makes the
# second call cost nothing.

PYTHON ?= python3
ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
INSTALL := $(PY) -m pip install --quiet --no-input --disable-pip-version-check

# More workers than this only compete for the same kernel locks.
PYTEST := -m pytest -q -n auto --maxprocesses 8

# What a newcomer waits for, and what a change must pass.
MOST := not e2e and not slow
ALL := not e2e

# The tests start interpreters by the thousand: each would compile all of podbot anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-e2e fuzz kills check bench format clean FORCE

help:
	@echo 'make run        watch a scripted agent work in an overlay sandbox'
	@echo 'make test       run the tests (ARGS="-k name" is passed on to pytest)'
	@echo 'make test-all   the same, and the slow ones'
	@echo 'make test-e2e   run the tests that need real engines and agents'
	@echo 'make soak       N=8 runs of make test with new seeds, quiet and loaded; ends at a red one'
	@echo 'make fuzz       random work in sandboxes, applied and undone (N=2000 SEED=word FUZZ=--far)'
	@echo 'make kills      kill apply, undo, save and load at every system call (KILLS="--share 50")'
	@echo 'make check      format, lint, strict types, tests with the coverage gate'
	@echo 'make bench      run and plot the benchmarks'
	@echo 'make format     rewrite the code the way make check wants it'
	@echo 'make clean      remove .venv and caches'
	@echo 'PYTHON=...      the interpreter that .venv is made from (now: $(PYTHON))'

run: $(VENV)/.run
	@$(PY) examples/review_an_agent.py $(ARGS)

test: $(VENV)/.test
	$(PY) $(PYTEST) -m '$(MOST)' $(ARGS)

test-all: $(VENV)/.test
	$(PY) $(PYTEST) -m '$(ALL)' $(ARGS)

# Until one is red, whose seed is said; .ci/soak has the rest.
soak: $(VENV)/.test
	@ARGS='$(ARGS)' .ci/soak $(if $(filter-out file,$(origin N)),$(N))

# Says each case that fails with what is needed to repeat it.
N ?= 2000
fuzz: $(VENV)/.test
	$(PY) tests/changes/fuzz.py --cases $(N) $(if $(SEED),--seed $(SEED)) $(FUZZ)
	$(PY) tests/changes/fuzz_runs.py --cases $(N) $(if $(SEED),--seed $(SEED)) $(FUZZ)

# Installs what it needs and builds its image (as root), then runs as root and as a user.
test-e2e: $(VENV)/.test
	$(PY) tests/e2e/set_up.py run $(ARGS)

# At every system call that changes a file system: about an hour. KILLS="--share 50 --any 20" is a
# sample, and KILLS="--verb undo --disks two --seed WORD" a part.
kills: $(VENV)/.test
	$(PY) tests/changes/kills.py $(KILLS)

check: $(VENV)/.dev
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m coverage erase
	$(PY) -m coverage run $(PYTEST) -m '$(ALL)' $(ARGS)
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report

bench: $(VENV)/.bench
	$(PY) -m bench $(ARGS)

format: $(VENV)/.dev
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

clean:
	rm -rf $(VENV) .venv-* build dist htmlcov .coverage .coverage.* \
	    .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.run: $(VENV)/.home pyproject.toml
	@echo 'installing podbot into $(VENV)'
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.home pyproject.toml
	@echo 'installing podbot and its test tools into $(VENV)'
	@$(INSTALL) --editable '.[test]'
	@touch $@ $(VENV)/.run

$(VENV)/.dev: $(VENV)/.home pyproject.toml
	@echo 'installing podbot and its developer tools into $(VENV)'
	@$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.run $(VENV)/.test

$(VENV)/.bench: $(VENV)/.home pyproject.toml
	@echo 'installing podbot and its benchmark tools into $(VENV)'
	@$(INSTALL) --editable '.[bench]'
	@touch $@ $(VENV)/.run

# A copied tree would still import podbot from where it was copied from, and an
# upgraded system may have taken the interpreter away: begin again in both cases.
ifneq ($(file <$(VENV)/.home),$(CURDIR))
$(VENV)/.home: FORCE
else ifeq ($(wildcard $(PY)),)
$(VENV)/.home: FORCE
endif

$(VENV)/.home:
	@command -v '$(PYTHON)' >/dev/null || { \
	    echo "podbot: $(PYTHON) not found; install Python 3.11 or newer, or name one:" \
	         "make PYTHON=/path/to/python3" >&2; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "podbot: needs Python 3.11 or newer, but $(PYTHON) is $$('$(PYTHON)' -V 2>&1);" \
	         "name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	@'$(PYTHON)' -c 'import venv, ensurepip' 2>/dev/null || { \
	    echo "podbot: $(PYTHON) has no venv module;" \
	         "on Debian or Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; }
	@echo 'making $(VENV) from $(PYTHON)'
	@rm -rf $(VENV)
	@'$(PYTHON)' -m venv $(VENV)
	@printf '%s' '$(CURDIR)' >$@
