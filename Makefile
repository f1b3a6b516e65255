# Everything a developer or a CI runs. Needs make and a Python; the rest is put into .venv.

PYTHON ?= python3
PYTEST_ARGS ?=
# Some at a time: tests wait more than they compute. tests/conftest.py says what stays together.
WORKERS ?= 3
PARALLEL ?= -n $(WORKERS) --dist loadscope --no-loadscope-reorder
DEMO_ARGS ?=
MINUTES ?= 30
SEED ?= 1
KINDS ?=
SOAK_ARGS ?=
TAG ?=
REPOSITORY_URL ?=
RELEASE_ARGS ?=
BIN := .venv/bin

# Some images set it. A start without compiled modules costs twice the time (pandas ten times), in the demo as in each test.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup runtime browser helm validators kubernetes minio servers jar demo check format test verify nightly containers soak bench docs screenshots release release-check clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

setup: ## make .venv with everything in it; quick and without network when nothing has changed
	@$(PYTHON) tools/setup_environment.py

runtime:
	@$(PYTHON) tools/setup_environment.py --no-tools

browser: ## Chromium for the tests of the page, by Debian's packages; without it they are skipped
	@command -v chromium >/dev/null || { apt-get -qq update && \
		DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null; }

helm: setup ## Helm and the schemas of Kubernetes, for the tests of the chart; without them they are skipped
	@[ -x .cache/helm/bin/kubernetes-validate ] || { $(BIN)/uv venv --quiet --clear --python $(BIN)/python .cache/helm && \
		$(BIN)/uv pip install --quiet --python .cache/helm helm-python-sdk==0.2.2 kubernetes-validate==1.37.0; }

validators: setup ## kubeconform and checkov for tests of the chart, generators of clients for those of the API; what cannot be had is left out, its tests skipped
	@sh tools/install_validators.sh

kubernetes: ## an API server of Kubernetes, compiled in a quarter of an hour, for tests of the chart; without it they are skipped
	@sh tools/build_kubernetes.sh

minio: setup ## a server of MinIO (AGPL), compiled in minutes, for tests of S3 on another maker's server; without it they are skipped
	@sh tools/build_minio.sh

servers: setup ## Prometheus, Redis with TLS, a browser, Helm, Kafka, Kerberos, servers of S3, Azure, GCS and HDFS, for the tests that use them; what cannot be had is left out
	@sh tools/unpack_servers.sh
	@$(MAKE) --no-print-directory browser || echo "== no Chromium could be installed: the tests that need one are skipped"
	@$(MAKE) --no-print-directory helm || echo "== no Helm could be installed: the tests of the chart that need it are skipped"
	@$(BIN)/python -m tools.prefetch

jar: setup ## the accelerator jar of the aligned source, into its package; needs a JDK of 17 or newer
	@$(BIN)/python -m tools.build_jar

native: setup ## the library that takes Kafka records without Python objects, into its package; needs a C compiler
	@$(BIN)/python -m tools.build_native

demo: runtime ## the main job: a query over real flights, three nodes, two routers; Ctrl-C stops it
	@$(BIN)/understudy demo $(DEMO_ARGS)

check: setup ## lint, format, types, who may import whom, and plain prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.check_prose

format: setup ## rewrite the code as `make check` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: setup ## the tests, one case for each claim
	$(BIN)/pytest $(PARALLEL) -m "not full" --hypothesis-profile=repeatable $(PYTEST_ARGS)

# What `brief` marks has a longer case of the same claim. The proof comes first and alone: its faults last seconds, and a
# node that waits for a processor looks like one that has none to offer.
VERIFIED = -m "not brief and not nightly" --ignore-glob='tests/system/test_containers*.py'
verify: check servers validators ## everything: the checks, and the tests with their full matrices
	@failed=0; \
	$(BIN)/pytest $(VERIFIED) $(PYTEST_ARGS) tests/system/test_proof.py || failed=$$?; \
	$(BIN)/pytest $(PARALLEL) $(VERIFIED) $(PYTEST_ARGS) --ignore=tests/system/test_proof.py || failed=$$?; \
	exit $$failed

# Each night: random cases of which `make verify` has some, and whether the proof finds the bugs that are planted for it.
nightly: servers ## random cases beyond those of make verify, and the proof against planted bugs
	$(BIN)/pytest $(PARALLEL) -m nightly $(PYTEST_ARGS)

containers: setup ## the images built and the compose file run in a Docker Engine, by TLS too, under faults, alone; skipped where none starts
	$(BIN)/pytest -m full -rs tests/system/test_containers.py tests/system/test_containers_tls.py

soak: setup ## random faults under load for MINUTES=30, of SEED=1, and every claim about what readers saw; KINDS=1: of every kind of state, KINDS=scattered: in any partition
	@$(BIN)/python -m tests.system.proof run --schedule random --minutes $(MINUTES) --seed $(SEED) $(if $(KINDS),--kinds$(if $(filter scattered,$(KINDS)), scattered)) $(SOAK_ARGS)

bench: setup ## the benchmarks: ratios taken in one run on this machine
	$(BIN)/python -m benchmarks

docs: setup ## the documentation as a site, in dist/docs: without network, broken links are errors
	@$(BIN)/sphinx-build -q -W --keep-going -c docs -b html . dist/docs
	@echo "dist/docs/index.html"

screenshots: setup ## the pictures of the admin page, in docs/images
	$(BIN)/python -m tools.screenshots

release: setup ## build wheels and source archives into dist/, check them, and say what was built
	rm -rf dist
	@$(BIN)/python -m tools.build_jar || echo "== the wheel gets no accelerator jar"
	@$(BIN)/python -m tools.build_native || echo "== the wheel gets no native library"
	$(BIN)/uv build --quiet --all-packages --out-dir dist
	$(BIN)/python tools/check_release.py dist

release-check: setup ## all that must hold before a version is tagged, with a table; TAG=v0.1.0: is published now. REPOSITORY_URL has the links of the wheels
	@$(BIN)/python -m tools.build_jar || echo "== the wheel gets no accelerator jar"
	@REPOSITORY_URL=$(REPOSITORY_URL) $(BIN)/python -m tools.release $(if $(TAG),--tag $(TAG)) $(RELEASE_ARGS)

clean: ## remove the environment and every cache
	rm -rf .venv .cache dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
