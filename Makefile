# Each target sets up what it needs: a virtual environment in .venv with the pinned versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RESULTS ?= results
results_dir ?= $(RESULTS)

# or each process would compile the project anew, half a second
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup flower flower-test demo synthetic synthetic-figures synthetic-report test docs planted-faults slurm-test gpu-test soak lint dist wandb-sync clean

setup: $(READY)

# torch first, by its exact version: resolved as a range it may bring gigabytes of GPU packages
$(READY): pyproject.toml setup.py constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[all,dev,docs]'
	@touch $@

# the environment of `dpfbo deploy`, without Ray: Flower wants older versions of packages that the rest has
FLOWER := .venv-flower
FLOWER_READY := $(FLOWER)/.ready

flower: $(FLOWER_READY)

$(FLOWER_READY): pyproject.toml setup.py constraints-flower.txt
	@test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	@echo "installing into $(FLOWER) (once)"
	@$(FLOWER)/bin/python -m pip install -q --disable-pip-version-check "$$(grep '^torch==' constraints-flower.txt)"
	@$(FLOWER)/bin/python -m pip install -q --disable-pip-version-check -c constraints-flower.txt -e '.[flower]' psutil pytest scikit-learn
	@touch $@

# a server and five sites as processes, with TLS and registered keys; one is killed, one stays away; and the tutorial
flower-test: $(FLOWER_READY)
	@$(FLOWER)/bin/python -m pytest -q -o addopts= tests/runners/deploy

demo: $(READY)
	@$(BIN)/python -m runners.sweep experiment=demo results_dir=$(results_dir)
	@$(BIN)/python -m analysis.tables demo results_dir=$(results_dir)
	@$(BIN)/python -m analysis.figures demo results_dir=$(results_dir)

SYNTHETIC := fig2a fig2b fig2c fig2d fig4 fig5 fig6 fig7a fig7b fig12a
space := $(subst ,, )
comma := ,

# the paper's synthetic figures at scale=quick: five functions each; `python -m runners.wandb backfill` logs the runs to W&B
synthetic: $(READY)
	@$(BIN)/python -m runners.sweep experiment=$(subst $(space),$(comma),$(SYNTHETIC)) tracker.wandb.mode=disabled \
		results_dir=$(results_dir)
	@$(MAKE) --no-print-directory -j 2 synthetic-figures synthetic-report

# both read what the sweep wrote, and neither what the other writes
synthetic-figures:
	@$(BIN)/python -m analysis.figures $(SYNTHETIC) results_dir=$(results_dir)

synthetic-report:
	@$(BIN)/python -m analysis.claims $(SYNTHETIC) results_dir=$(results_dir) --keep
	@$(BIN)/python -m analysis.report $(SYNTHETIC) results_dir=$(results_dir)

test: $(READY)
	@$(BIN)/python -m pytest

# the site, in site/: tutorials and notebooks are run, links are checked, a warning is an error
docs: $(READY)
	@$(BIN)/python -m pytest -m tutorial --dist load tests/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --clean
	@echo "site/index.html"

# which check of the audit finds which planted fault: the tables of docs/results/planted-faults.md, in minutes
planted-faults: $(READY)
	@$(BIN)/python -m tests.planted

# sweeps as jobs of a Slurm that the tests start on this machine; they need slurm-wlm and munge, and say so
slurm-test: $(READY)
	@$(BIN)/python -m pytest -m slurm -rs -n 0 tests/slurm

# what needs a GPU, on a machine that has one; tells what passed
gpu-test: $(READY)
	@$(BIN)/python -m pytest -rfEsp -n 0 tests/dpfbo/test_gpu.py tests/runners/executor/test_gpu_share.py

# some hours: slow tests, a thousand SIGKILLs at random moments, ten thousand cases of hostile input, mutants
soak: $(READY)
	@$(BIN)/python -m pytest -m slow
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# wheel and source distribution in dist/, checked; the wheel is tried with its mandatory packages alone (needs an index)
dist: $(READY)
	@rm -rf dist build
	@$(BIN)/python -m build --no-isolation . >/dev/null
	@$(BIN)/twine check --strict dist/*
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.bare dist/*.whl

# offline W&B runs that are not uploaded yet, also those that still go on; needs `wandb login` (or WANDB_API_KEY)
wandb-sync: $(READY)
	@$(BIN)/python -m runners.wandb sync results_dir=$(results_dir)

clean:
	rm -rf $(VENV) $(FLOWER) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
