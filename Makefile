# Commands for users and CI. `make run` needs only Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
N ?= 200
CONFIG ?= configs/quickstart.yaml
STAMP := .venv/installed
DEV := $(STAMP)-dev
PEERS := build/peers

# $(call install,PYTHON,WHAT) installs with uv in seconds, or with pip in minutes if uv is missing or fails. uv does not read pip's
# settings, so they are passed on. pip separates the entries of a list by spaces, uv the links by commas.
pip_setting = $${PIP_$(1):-$$($(BIN)/python -m pip config get global.$(2) 2>/dev/null)}
UV = UV_FIND_LINKS="$${UV_FIND_LINKS:-$$(echo "$(call pip_setting,FIND_LINKS,find-links)" | xargs | tr ' ' ,)}" \
  UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$(call pip_setting,INDEX_URL,index-url)}" \
  UV_INDEX="$${UV_INDEX:-$(call pip_setting,EXTRA_INDEX_URL,extra-index-url)}" UV_INDEX_STRATEGY=unsafe-best-match $(BIN)/uv
PIP = -m pip install --quiet --constraint constraints.txt
define install
@echo "installing $(2)"
@$(UV) pip install --quiet --python $(1) --constraint constraints.txt $(2) || { $(1) $(PIP) pip && $(1) $(PIP) $(2); }
endef

# Prefect keeps its database here and sends no telemetry. This also applies to servers started by tests.
export PREFECT_HOME ?= $(CURDIR)/.prefect
export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false

# Allow Python to cache compiled libraries. Some container images forbid it, and then each process takes twice as long to load them.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run up down corpora finetune pairs chat chats preference preferences harness tasks test test-deep test-machines test-cluster test-gpu test-peers test-long soak random-jobs outages stops power-cuts simulate proof check bench docs screenshots reference clean

# STORE=s3 starts an S3 server on this machine, with its data in data/s3, and uses it as the store.
run: $(if $(filter s3,$(STORE)),$(DEV)) $(STAMP) corpora
	$(BIN)/python -m $(if $(filter s3,$(STORE)),tests.s3) flows.command run $(CONFIG) $(if $(filter s3,$(STORE)),store=s3://headrace/store)

# Starts a Prefect server and a worker on this machine and deploys every flow.
up: $(STAMP)
	@$(BIN)/headrace up

down: $(STAMP)
	@$(BIN)/headrace down

corpora: data/raw/planted/evaluation.txt

data/raw/planted/evaluation.txt: | $(STAMP)  # written last
	@$(BIN)/python -m samples.corpora data/raw

finetune: $(STAMP) pairs
	$(BIN)/python -m flows.data_to_model configs/functions.yaml
	$(BIN)/python -m flows.finetune configs/finetune.yaml

pairs: $(STAMP)
	@$(BIN)/python -m samples.pairs data/pairs

# Trains a small model and evaluates it with lm-eval on a task built from the standard library.
harness: $(STAMP)-harness pairs tasks
	$(BIN)/python -m flows.data_to_model configs/harness.yaml

tasks: $(STAMP) pairs
	@$(BIN)/python -m samples.tasks data/tasks

chat: $(STAMP) chats
	$(BIN)/python -m flows.data_to_model configs/chat-base.yaml
	$(BIN)/python -m flows.finetune configs/chat.yaml

chats: $(STAMP)
	@$(BIN)/python -m samples.chats data/chats

preference: preferences chat
	$(BIN)/python -m flows.finetune configs/preference.yaml

preferences: $(STAMP)
	@$(BIN)/python -m samples.preferences data/preferences

# One thread per process: two processes with two threads each would compete for two cores.
test: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

test-deep: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -m "deep and not long"

# Two machines, each in its own network namespace; needs root.
test-machines: $(DEV)
	$(BIN)/python -m tests.machines

test-long: $(DEV)
	$(BIN)/python -m pytest -m long
	$(MAKE) test-cluster
	$(MAKE) test-peers

# A Ray cluster of two nodes on this machine; installs Ray.
test-cluster: $(DEV) $(STAMP)-ray
	$(BIN)/python -m pytest -m cluster tests/cluster

# Needs a GPU.
test-gpu: $(DEV)
	$(BIN)/python -m pytest -m gpu

# Comparisons with other projects, which are installed in a separate environment.
test-peers: $(DEV) $(PEERS)/installed
	$(BIN)/python -m pytest -m peers tests/peers

soak: $(DEV)
	$(BIN)/python -m tests.soak $(N)

random-jobs: $(DEV)
	$(BIN)/python -m tests.random_jobs $(N)

outages: $(DEV)
	$(BIN)/python -m tests.outages 5 s3
	$(BIN)/python -m tests.outages 60 s3
	$(BIN)/python -m tests.outages 60 disk

stops: $(DEV)
	$(BIN)/python -m tests.stops $(N)

power-cuts: $(DEV)
	$(BIN)/python -m tests.power_cuts $(N)

simulate: $(DEV)
	$(BIN)/python -m tests.simulation $(N)

# Runs all of these and the kill tests once and prints one table. SHARE=0.01 runs a share of the parts that scale. Needs root.
SHARE ?= 1
proof: $(DEV) $(STAMP)-ray
	$(BIN)/python -m tests.proof $(SHARE)

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -c "import prefect.server.api.server"

bench: $(DEV) corpora
	$(BIN)/python -m benchmarks

# Builds the site in build/site; fails on a broken link or anchor.
docs: $(STAMP)-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Runs the quickstart and takes the pictures in docs/images; needs Chromium.
screenshots: $(DEV) $(STAMP)-screenshots
	$(BIN)/python -m docs.screenshots

# Generates the pages of docs/reference from the code.
reference: $(DEV)
	$(BIN)/python -m docs.making

clean:
	rm -rf .venv .prefect data build *.egg-info

# The core installation; `$(STAMP)-EXTRA` adds an extra of pyproject.toml.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	-$(BIN)/python $(PIP) uv
	$(call install,$(BIN)/python,--editable .)
	touch $@

$(STAMP)-%: $(STAMP)
	$(call install,$(BIN)/python,--editable '.[$*]')
	touch $@

$(PEERS)/installed: $(STAMP)
	$(PYTHON) -m venv $(PEERS)
	$(call install,$(PEERS)/bin/python,--group peers)
	touch $@
