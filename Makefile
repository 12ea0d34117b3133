# `make run` opens the designer, `make test` runs all tests, `make docs` builds the documentation.
# Each sets up .venv first, once. Another Python than python3: make run PYTHON=/path/to/python
PYTHON ?= python3
VENV := .venv/bin
unexport PYTHONDONTWRITEBYTECODE # each process that a test or a run starts would compile every module again

.PHONY: run test docs published quick nightly check check-js fuzz gpu clean

run: # make run ARGS="--port 5007"
	@$(PYTHON) scripts/setup.py run
	@exec $(VENV)/meshwave serve $(ARGS)

test: # make test ARGS="-k hanayo"
	@$(PYTHON) scripts/setup.py test
	@exec $(VENV)/python scripts/run_tests.py -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

docs: # the documentation in build/docs, which `make run` serves and a wheel includes
	@$(PYTHON) scripts/setup.py docs
	@rm -rf build/docs
	@$(VENV)/python -m sphinx -b html -d build/doctrees -E -W --keep-going -q docs build/docs
	@echo "built build/docs/index.html"

published: # predictions of the published runs again: their page, their picture and the errors behind intervals
	@$(PYTHON) scripts/setup.py test
	$(VENV)/python -m meshwave bench published --out docs/published.json
	mv docs/published.json engine/predict/published_errors.json
	$(VENV)/python -m meshwave.engine.bench.published.left_out

quick: # the tests that need neither torch, a browser nor seconds: make quick ARGS="-k hanayo"
	@$(PYTHON) scripts/setup.py test
	@exec env HYPOTHESIS_PROFILE=quick $(VENV)/python -m pytest -q -n 2 --dist loadfile -m "not torch and not browser and not slow" \
		--ignore tests/browser --ignore tests/engine/runtime $(ARGS)

nightly: # new seeds, more sizes, a slow connection, other Pythons: make nightly ARGS="--only explore,full --seed 7"
	@$(PYTHON) scripts/setup.py nightly
	@exec $(VENV)/python scripts/nightly.py $(ARGS)

check: # rules, layout, types and imports: make check ARGS=types
	@$(PYTHON) scripts/setup.py test
	@$(VENV)/python scripts/check.py $(ARGS)

check-js: node_modules/.package-lock.json # format, lint, types, bundle and unit tests of static/; the only target that needs Node
	npm run --silent check

node_modules/.package-lock.json: package-lock.json
	npm ci --silent

fuzz: # damaged inputs of every kind: make fuzz ARGS="--inputs 1000 --seed 7 --only designs,gestures"
	@$(PYTHON) scripts/setup.py test
	@exec $(VENV)/python -m tests.fuzz $(ARGS)

gpu: # all that wants a GPU, checked and measured in ten minutes: make gpu ARGS="FOLDER"
	@$(PYTHON) scripts/setup.py test
	$(VENV)/python scripts/gpu.py $(or $(ARGS),build/gpu)

clean: # the environment and what tools left behind; never your runs
	rm -rf .venv node_modules static/bundle.js build dist .pytest_cache .hypothesis .ruff_cache .mypy_cache
