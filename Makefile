# Each target sets up what it needs: a virtual environment in .venv with the pinned versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RESULTS ?= results
results_dir ?= $(RESULTS)

.PHONY: setup demo synthetic test docs soak lint wandb-sync clean

setup: $(READY)

# torch first, by its exact version: resolved as a range it may bring gigabytes of GPU packages
$(READY): pyproject.toml setup.py constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,docs,ray,wandb,opendp,botorch,emnist]'
	@touch $@

demo: $(READY)
	@$(BIN)/python -m runners.demo results_dir=$(results_dir)
	@$(BIN)/python -m analysis.tables demo results_dir=$(results_dir)
	@$(BIN)/python -m analysis.figures demo results_dir=$(results_dir)

SYNTHETIC := fig2a fig2b fig2c fig2d fig4 fig5 fig6 fig7a fig7b fig12a
space := $(subst ,, )
comma := ,

# the paper's synthetic figures at scale=quick: five functions each
synthetic: $(READY)
	@$(BIN)/python -m runners.sweep experiment=$(subst $(space),$(comma),$(SYNTHETIC)) results_dir=$(results_dir)
	@$(BIN)/python -m analysis.figures $(SYNTHETIC) results_dir=$(results_dir)
	@$(BIN)/python -m analysis.claims $(SYNTHETIC) results_dir=$(results_dir)
	@$(BIN)/python -m analysis.report $(SYNTHETIC) results_dir=$(results_dir)

test: $(READY)
	@$(BIN)/python -m pytest

# the site, in site/: tutorials and notebooks are run, links are checked, a warning is an error
docs: $(READY)
	@$(BIN)/python -m pytest -m tutorial --dist load tests/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --clean
	@echo "site/index.html"

# SIGKILLs of actors and drivers at random moments, ten of each kind: a quarter of an hour and more
soak: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# W&B runs that are not uploaded yet, without those that still go on (their run folder holds .lock)
WAITING = find $(results_dir) -path '*/wandb/offline-run-*/*.wandb' \
	-exec sh -c '! test -e "$$1.synced" && ! test -e "$$(dirname "$$1")/../../.lock"' sh '{}' ';'

# needs `wandb login` (or WANDB_API_KEY), and says so
wandb-sync: $(READY)
	@if test -z "$$($(WAITING) -print 2>/dev/null)"; then echo "nothing to upload: no offline W&B run below $(results_dir)"; \
	else $(WAITING) -exec $(BIN)/wandb sync '{}' +; fi

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
