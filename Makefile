# Scree. `make demo` and `make test` do their own setup.

SHELL := /bin/bash
TARGET := $(or $(CARGO_TARGET_DIR),target)
MINUTES ?= 5
ROUNDS ?= 200
WITH_DEBUG_BUILD := SCREE_BINARY=$(abspath $(TARGET))/debug/scree

.PHONY: help demo test test-engines bench bench-service reports traces fuzz soak loss chaos api-test build debug-build deb package-test openapi references fmt clippy licenses scripts clean-demo

help: ## list the targets
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 18
	@echo "demo and test install the packages of the distribution that they need."

demo: ## boot a guest from a Scree disk, break things, show that nothing is lost (3 min)
	@tools/packages build guest
	@$(MAKE) --no-print-directory debug-build
	@tools/guest
	@$(WITH_DEBUG_BUILD) tools/run demo

test: ## format, lints, all tests, and short runs of demo, bench, fuzz, soak, loss and chaos
	@tools/test

test-engines: ## test units on Ceph and GlusterFS while their daemons are killed (15 min, root)
	@tools/packages build test ceph gluster
	@$(MAKE) --no-print-directory debug-build
	@$(WITH_DEBUG_BUILD) tools/run check engines

bench: ## compare Scree with qcow2, raw, nbdkit and Ceph; writes docs/benchmarks*.md (45 min)
	@tools/packages build guest bench
	@$(MAKE) --no-print-directory build
	@cargo build --release -p nbd --example nbd_delay -p chain --example small_files
	@tools/guest
	@tools/run bench --write docs

bench-service: ## measure the API with 10,000 volumes; writes docs/benchmarks-service.md
	@tools/packages build guest test
	@$(MAKE) --no-print-directory build
	@tools/guest
	@tools/run bench.service --write docs/benchmarks-service.md

reports: ## compare the models with measurements; writes docs/reports (40 min)
	@tools/packages build guest reports
	@$(MAKE) --no-print-directory build
	@tools/guest
	@tools/run report

traces: ## record the traces for cache policies again (30 min, root)
	@tools/packages build traces
	@$(MAKE) --no-print-directory build
	@tools/run traces

fuzz: ## fuzz every parser, and a unit daemon over TLS, for MINUTES=5 each
	@tools/packages build
	@tools/fuzz --minutes $(MINUTES)
	@SCREE_FUZZ_SECONDS=$$((60 * $(MINUTES))) cargo test -p unit-daemon --test daemon -- --nocapture fuzz::

soak: ## ROUNDS=200 of random writes, each ended by kill -9, with a check of every block
	@tools/packages build test
	@$(MAKE) --no-print-directory debug-build
	@$(WITH_DEBUG_BUILD) tools/run check soak --rounds $(ROUNDS)

loss: ## kill each pair of eight unit daemons under writes, and verify each block (20 min)
	@tools/packages build test
	@$(MAKE) --no-print-directory debug-build
	@$(WITH_DEBUG_BUILD) tools/run check loss

api-test: ## compare the API with docs/openapi.json for MINUTES=5, and test a generated client
	@tools/packages build test
	@$(MAKE) --no-print-directory debug-build
	@$(WITH_DEBUG_BUILD) tools/run check api --seconds $$((60 * $(MINUTES)))

chaos: ## MINUTES=5 of requests to two controllers that are killed repeatedly
	@tools/packages build test
	@$(MAKE) --no-print-directory debug-build
	@$(WITH_DEBUG_BUILD) tools/run check chaos --minutes $(MINUTES)

# The binary of the debug build. Its dependencies are optimized, its own code a little (see
# [profile.dev] in Cargo.toml), and `make test` uses all of it again.
debug-build:
	@cargo build -p scree

build: ## build the release binary, target/release/scree
	@cargo build --release -p scree

deb: ## build the Debian package of the release build, in target/deb
	@tools/packages build
	@$(MAKE) --no-print-directory build
	@packaging/build-deb

package-test: ## install, upgrade and purge the package, and run the example of three hosts
	@tools/packages build guest test
	@$(MAKE) --no-print-directory build
	@tools/run check package
	@tools/run check example

fmt: ## format the code
	@cargo fmt --all

clippy: ## run the lints of make test
	@cargo clippy --workspace --all-targets -- -D warnings

licenses: ## check the dependencies' licenses, sources and bans against deny.toml
	@tools/deny

scripts: ## check the shell and Python scripts
	@shellcheck tools/packages tools/deny tools/guest tools/run tools/test tools/fuzz tools/venv tools/object-speed tools/clusters/* .ci/run \
	  crates/agent/tests/agent/fake-virsh packaging/build-deb packaging/debian/postinst packaging/debian/prerm packaging/debian/postrm
	@ruff="$$(tools/venv ruff)/bin/ruff" && for verb in check "format --check"; do \
	  $$ruff $$verb --quiet --config tools/ruff.toml tools packaging/third-party crates || exit 1; \
	done

openapi: ## write docs/openapi.json from the handlers
	@SCREE_WRITE_OPENAPI=1 cargo test -q -p control --test control -- the_committed_description_matches

references: ## write docs/reference/{cli,configuration,metrics}.md from the sources
	@SCREE_WRITE_REFERENCES=1 cargo test -q -p scree --bin scree -- reference::

clean-demo: ## stop the demo's Scree and delete its folder
	@$(WITH_DEBUG_BUILD) tools/run demo --clean
