# Everything a newcomer or CI does. `make run` needs Python 3.11 or newer and nothing else.
PYTHON ?= python3
BIN := .venv/bin
N ?= 200
CONFIG ?= configs/quickstart.yaml
STAMP := .venv/installed
DEV := $(STAMP)-dev
PEERS := build/peers

# $(call install,PYTHON,WHAT): by uv, in seconds, or by pip, in minutes, where uv cannot be had or fails. uv reads none of pip's
# settings, so they are passed on; their lists are separated by spaces, the links of uv's by commas.
pip_setting = $${PIP_$(1):-$$($(BIN)/python -m pip config get global.$(2) 2>/dev/null)}
UV = UV_FIND_LINKS="$${UV_FIND_LINKS:-$$(echo "$(call pip_setting,FIND_LINKS,find-links)" | xargs | tr ' ' ,)}" \
  UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$(call pip_setting,INDEX_URL,index-url)}" \
  UV_INDEX="$${UV_INDEX:-$(call pip_setting,EXTRA_INDEX_URL,extra-index-url)}" UV_INDEX_STRATEGY=unsafe-best-match $(BIN)/uv
PIP = -m pip install --quiet --constraint constraints.txt
define install
@echo "installing $(2)"
@$(UV) pip install --quiet --python $(1) --constraint constraints.txt $(2) || { $(1) $(PIP) pip && $(1) $(PIP) $(2); }
endef

# Prefect keeps its database here, and sends nobody figures of use: no server that a test starts does either.
export PREFECT_HOME ?= $(CURDIR)/.prefect
export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false

# Libraries are compiled once. Where the environment forbids that, as images of containers do, each process takes twice as long to
# load them.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run up down corpora finetune pairs chat chats preference preferences harness tasks test test-deep test-machines test-cluster test-gpu test-peers test-long soak outages stops power-cuts simulate proof check bench docs screenshots reference clean

# STORE=s3 starts an S3 server on this machine, whose data is kept in data/s3, and runs the same against it.
run: $(if $(filter s3,$(STORE)),$(DEV)) $(STAMP) corpora
	$(BIN)/python -m $(if $(filter s3,$(STORE)),tests.s3) flows.command run $(CONFIG) $(if $(filter s3,$(STORE)),store=s3://headrace/store)

# A Prefect server and a worker on this machine, with every flow deployed.
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

# lm-eval measures a small model on a task that is made here.
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

# Two processes with two threads each would wait for each other.
test: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

test-deep: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -m "deep and not long"

# Two machines in network namespaces of their own; needs root.
test-machines: $(DEV)
	$(BIN)/python -m tests.machines

test-long: $(DEV)
	$(BIN)/python -m pytest -m long
	$(MAKE) test-cluster
	$(MAKE) test-peers

# A cluster of two nodes on this machine; installs Ray.
test-cluster: $(DEV) $(STAMP)-ray
	$(BIN)/python -m pytest -m cluster tests/cluster

# On a machine with a GPU.
test-gpu: $(DEV)
	$(BIN)/python -m pytest -m gpu

# Against other projects, which are installed in an environment of their own.
test-peers: $(DEV) $(PEERS)/installed
	$(BIN)/python -m pytest -m peers tests/peers

soak: $(DEV)
	$(BIN)/python -m tests.soak $(N)

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

# All of these and the tests that kill, once, with one table; SHARE=0.01 does less of what can be more or less. Needs root.
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

# The site in build/site; a link or an anchor that leads nowhere fails.
docs: $(STAMP)-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The pictures in docs/images, of a quickstart that is run for them; needs Chromium.
screenshots: $(DEV) $(STAMP)-screenshots
	$(BIN)/python -m docs.screenshots

# The pages of docs/reference that are made from the code.
reference: $(DEV)
	$(BIN)/python -m docs.making

clean:
	rm -rf .venv .prefect data build *.egg-info

# What runs a job; `$(STAMP)-EXTRA` is an extra of pyproject.toml besides.
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
