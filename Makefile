# Two commands do everything: `make run` opens the designer, `make test` runs all tests.
# Both set up .venv first, once. Another Python than python3: make run PYTHON=/path/to/python
PYTHON ?= python3
VENV := .venv/bin

.PHONY: run test check clean

run: # make run ARGS="--port 5007"
	@$(PYTHON) scripts/setup.py run
	@exec $(VENV)/meshwave serve $(ARGS)

test: # make test ARGS="-k hanayo"
	@$(PYTHON) scripts/setup.py test
	@exec $(VENV)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

check: # what a reviewer would say about form
	@$(PYTHON) scripts/setup.py test
	$(VENV)/python -m ruff check .
	$(VENV)/python -m ruff format --check .

clean: # the environment and what tools left behind; never your runs
	rm -rf .venv build dist .pytest_cache .hypothesis .ruff_cache .mypy_cache
