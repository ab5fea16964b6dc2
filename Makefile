# What a developer types. `make` lists it.

PYTHON ?= python3
VENV := $(abspath .venv)
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
PACKAGES := pipeline exporters runtimes devices
STORY := The engineer opens the box. The engineer takes the board out of the box. The engineer puts the board on the \
	table. The engineer connects the board to the computer. The engineer loads the program into the board.

.PHONY: help setup demo demo-text demo-image test test-slow test-all lint format clean distclean

help: ## list these targets
	@sed -n 's/^\([a-z%-]*\):.*## /\1\t/p' Makefile | expand -t 14

setup: $(INSTALLED) ## make .venv with everything that a developer needs

# torch goes first and alone: its plain version is the one without CUDA on machines that serve such a build.
$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: demo-text demo-image ## export, run and measure a language model, then a vision model

demo-text: $(INSTALLED) ## export SmolLM2-135M, let it answer, measure it
	@$(BIN)/edgepipe run build/demo --verify 2>/dev/null \
		|| $(BIN)/edgepipe export --target smollm2-135m --draft smollm2-135m-draft -o build/demo --force
	$(BIN)/edgepipe run build/demo "What is photosynthesis?" --policy h2o --budget 96 --max-new-tokens 150
	$(BIN)/edgepipe run build/demo "Rewrite this text in the past tense: $(STORY)" --policy h2o --budget 96
	$(BIN)/edgepipe measure build/demo --policy h2o --budget 256 --against plain -o build/report \
		|| test $$? -eq 5  # the machine is not quiet: the report says so

demo-image: $(INSTALLED) ## train a reader of digits, fit it into 32 KiB, let it read one, measure it
	@$(BIN)/edgepipe run build/digits --verify 2>/dev/null \
		|| $(BIN)/edgepipe export --vision digits --sram 32K -o build/digits --force
	$(BIN)/python examples/draw_digit.py 4 build/four.png
	$(BIN)/edgepipe run build/digits --image build/four.png
	$(BIN)/edgepipe measure build/digits -o build/report-digits || test $$? -eq 5

test: lint ## lint, then the tests that are quick
	$(BIN)/pytest

test-slow: $(INSTALLED) ## the tests that are slow
	$(BIN)/pytest -m slow

test-all: lint ## lint, then all tests
	$(BIN)/pytest -m "slow or not slow"

# mypy and import-linter see the packages under their imported names in build/lint.
lint: $(INSTALLED) ## ruff, mypy and the rules of the architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/lint && mkdir -p build/lint
	cp -R edgepipe build/lint/ && cp -R $(PACKAGES) build/lint/edgepipe/
	$(BIN)/mypy
	cd build/lint && $(BIN)/lint-imports --no-logo ../../pyproject.toml

format: $(INSTALLED) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-%: $(INSTALLED) ## run benchmarks/%.py
	$(BIN)/python benchmarks/$*.py

clean: ## remove what was built
	rm -rf build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

distclean: clean ## remove .venv too
	rm -rf $(VENV)

# What the benchmarks measure.
bench-attention_memory: build/smollm2-fp32
bench-engine_profile: build/engines
bench-stream_memory bench-quality bench-peers bench-speculation: build/demo

build/demo: | $(INSTALLED)
	$(BIN)/edgepipe export --target smollm2-135m --draft smollm2-135m-draft -o $@

build/smollm2-fp32: | $(INSTALLED)
	$(BIN)/edgepipe export --target smollm2-135m --precision fp32 -o $@

build/engines: | $(INSTALLED)
	$(BIN)/edgepipe export --target smollm2-135m --formats onnx,tflite,executorch -o $@
