# Everything a newcomer or CI does. `make run` needs Python 3.11 or newer and nothing else.
PYTHON ?= python3
BIN := .venv/bin
N ?= 200
CONFIG ?= configs/quickstart.yaml
STAMP := .venv/installed
PEERS := build/peers

# Prefect keeps its database here, and tells nobody.
export PREFECT_HOME ?= $(CURDIR)/.prefect
export DO_NOT_TRACK := 1

.PHONY: run up down corpora finetune pairs chat chats harness tasks test test-deep test-machines test-cluster test-peers test-long soak outages stops check bench docs screenshots reference clean

# STORE=s3 starts an S3 server on this machine, whose data is kept in data/s3, and runs the same against it.
run: $(STAMP) corpora
	$(BIN)/python -m $(if $(filter s3,$(STORE)),tests.s3) flows.command run $(CONFIG) $(if $(filter s3,$(STORE)),store=s3://headrace/store)

# A Prefect server and a worker on this machine, with every flow deployed.
up: $(STAMP) corpora
	@$(BIN)/python deployments/local.py up

down: $(STAMP)
	@$(BIN)/python deployments/local.py down

corpora: data/raw/planted/evaluation.txt

data/raw/planted/evaluation.txt: | $(STAMP)  # written last
	@$(BIN)/python -m trainer.sample_corpora data/raw

finetune: $(STAMP) pairs
	$(BIN)/python -m flows.data_to_model configs/functions.yaml
	$(BIN)/python -m flows.finetune configs/finetune.yaml

pairs: $(STAMP)
	@$(BIN)/python -m trainer.sample_pairs data/pairs

# lm-eval measures a small model on a task that is made here.
harness: $(STAMP) pairs tasks
	$(BIN)/python -m flows.data_to_model configs/harness.yaml

tasks: $(STAMP) pairs
	@$(BIN)/python -m trainer.sample_tasks data/tasks

chat: $(STAMP) chats
	$(BIN)/python -m flows.data_to_model configs/chat-base.yaml
	$(BIN)/python -m flows.finetune configs/chat.yaml

chats: $(STAMP)
	@$(BIN)/python -m trainer.sample_chats data/chats

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadgroup

test-deep: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "deep and not long"

# Two machines in network namespaces of their own; needs root.
test-machines: $(STAMP)
	$(BIN)/python -m tests.machines

test-long: $(STAMP)
	$(BIN)/python -m pytest -m long
	$(MAKE) test-cluster
	$(MAKE) test-peers

# A cluster of two nodes on this machine; installs Ray.
test-cluster: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[ray]'
	$(BIN)/python -m pytest -m cluster tests/cluster

# Against other projects, which are installed in an environment of their own.
test-peers: $(STAMP) $(PEERS)/installed
	$(BIN)/python -m pytest -m peers tests/peers

soak: $(STAMP)
	$(BIN)/python -m tests.soak $(N)

outages: $(STAMP)
	$(BIN)/python -m tests.outages 5 s3
	$(BIN)/python -m tests.outages 60 s3
	$(BIN)/python -m tests.outages 60 disk

stops: $(STAMP)
	$(BIN)/python -m tests.stops $(N)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -c "import prefect.server.api.server"

bench: $(STAMP) corpora
	$(BIN)/python -m benchmarks

# The site in build/site; a link or an anchor that leads nowhere fails.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The pictures in docs/images, of a quickstart that is run for them; needs Chromium.
screenshots: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[screenshots]'
	$(BIN)/python -m docs.screenshots

# The pages of docs/reference that are made from the code.
reference: $(STAMP)
	$(BIN)/python -m docs.making

clean:
	rm -rf .venv .prefect data build *.egg-info

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(PEERS)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --constraint constraints.txt pip
	$(PEERS)/bin/python -m pip install --quiet --constraint constraints.txt --group peers
	touch $@
