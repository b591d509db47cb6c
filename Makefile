# Each target sets up what it needs: a virtual environment in .venv with the pinned versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test lint clean

setup: $(READY)

# torch first, by its exact version: resolved as a range it may bring gigabytes of GPU packages
$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,ray,wandb]'
	@touch $@

demo: $(READY)
	@$(BIN)/python -m runners.demo
	@$(BIN)/python -m analysis.tables demo
	@$(BIN)/python -m analysis.figures demo

test: $(READY)
	@$(BIN)/python -m pytest

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

clean:
	rm -rf $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
