# Everything a newcomer needs is `make demo` and `make test`; both install first.

BIN := .venv/bin
# Inside .venv, so that deleting .venv also forgets the install.
STAMP := .venv/.installed

.PHONY: help install demo test check

help:  ## List these targets.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

install: $(STAMP)  ## Make .venv and install Headway into it, unless that is already done.

# Touched last: an interrupted or failed install leaves no stamp and is done again.
$(STAMP): pyproject.toml constraints.txt
	@$(SHELL) scripts/install
	@touch $@

demo: install  ## Fetch the embedded model once, replay a short rush and say where the results are.
	@$(BIN)/headway fetch
	@$(BIN)/headway rush --quick

test: install  ## Run the whole test suite.
	$(BIN)/pytest -n 2 --dist loadfile -m "not alone"
	$(BIN)/pytest -m alone

check: install  ## Check lint, formatting, types and who imports whom.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
