# The three commands of CONTRIBUTING.md, in the environment of the README.
PYTHON ?= .venv/bin/python

.PHONY: check test bench

check:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest

bench:
	@set -e; for each in benchmarks/*.py; do echo "== $$each"; $(PYTHON) "$$each"; done
