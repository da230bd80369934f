# Scree. `make demo` and `make test` do all their own set-up.

SHELL := /bin/bash
TARGET := $(or $(CARGO_TARGET_DIR),target)
MINUTES ?= 5
ROUNDS ?= 200
WITH_DEBUG_BUILD := SCREE_BINARY=$(abspath $(TARGET))/debug/scree

.PHONY: help demo test test-engines bench bench-service reports traces fuzz soak loss chaos api-test build debug-build deb package-test openapi references fmt clippy licenses scripts clean-demo

help: ## show this
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 18
	@echo "demo and test install what they need from the distribution's packages."

demo: ## boot a guest from a Scree disk, break things, show that nothing is lost (3 min)
	@tools/packages build guest
	@$(MAKE) --no-print-directory debug-build
	@tools/guest
	@$(WITH_DEBUG_BUILD) tools/run demo

test: ## format, lints, all tests, and short runs of demo, bench, fuzz, soak, loss and chaos
	@tools/test

test-engines: ## units on a real Ceph and a real GlusterFS whose daemons are killed (15 min, root)
	@tools/packages build test ceph gluster
	@$(MAKE) --no-print-directory debug-build
	@$(WITH_DEBUG_BUILD) tools/run check engines

bench: ## measure Scree beside qcow2, raw, nbdkit, Ceph; writes docs/benchmarks*.md (45 min)
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

reports: ## what the models say, beside what was tried; writes docs/reports (40 min)
	@tools/packages build guest reports
	@$(MAKE) --no-print-directory build
	@tools/guest
	@tools/run report

traces: ## record anew what policies of caches are compared with (30 min, root)
	@tools/packages build traces
	@$(MAKE) --no-print-directory build
	@tools/run traces

fuzz: ## fuzz every parser, and a unit daemon over TLS, for MINUTES=5 each
	@tools/packages build
	@tools/fuzz --minutes $(MINUTES)
	@SCREE_FUZZ_SECONDS=$$((60 * $(MINUTES))) cargo test -p unit-daemon --test daemon -- --nocapture fuzz::

soak: ## ROUNDS=200 of random writes, each ended by kill -9, and a check of every block
	@tools/packages build test
	@$(MAKE) --no-print-directory debug-build
	@$(WITH_DEBUG_BUILD) tools/run check soak --rounds $(ROUNDS)

loss: ## kill each pair of eight unit daemons while a volume is written, and verify each block (20 min)
	@tools/packages build test
	@$(MAKE) --no-print-directory debug-build
	@$(WITH_DEBUG_BUILD) tools/run check loss

api-test: ## compare the API with docs/openapi.json for MINUTES=5, and use a client made from that
	@tools/packages build test
	@$(MAKE) --no-print-directory debug-build
	@$(WITH_DEBUG_BUILD) tools/run check api --seconds $$((60 * $(MINUTES)))

chaos: ## MINUTES=5 of requests to two controllers that are killed again and again
	@tools/packages build test
	@$(MAKE) --no-print-directory debug-build
	@$(WITH_DEBUG_BUILD) tools/run check chaos --minutes $(MINUTES)

# The binary of the debug build. Its dependencies are optimized, its own code a little (see
# [profile.dev] in Cargo.toml), and `make test` uses all of it again.
debug-build:
	@cargo build -p scree

build: ## the release binary, target/release/scree
	@cargo build --release -p scree

deb: ## the Debian package of the release build, in target/deb
	@tools/packages build
	@$(MAKE) --no-print-directory build
	@packaging/build-deb

package-test: ## install, upgrade and purge that package, and run the example of three hosts
	@tools/packages build guest test
	@$(MAKE) --no-print-directory build
	@tools/run check package
	@tools/run check example

fmt: ## format the code
	@cargo fmt --all

clippy: ## lints, as in test
	@cargo clippy --workspace --all-targets -- -D warnings

licenses: ## check the dependencies' licenses, sources and bans against deny.toml
	@tools/deny

scripts: ## check the shell scripts and the Python ones
	@shellcheck tools/packages tools/deny tools/guest tools/run tools/test tools/fuzz tools/venv tools/object-speed tools/clusters/* .ci/run \
	  crates/agent/tests/agent/fake-virsh packaging/build-deb packaging/debian/postinst packaging/debian/prerm packaging/debian/postrm
	@ruff="$$(tools/venv ruff)/bin/ruff" && for verb in check "format --check"; do \
	  $$ruff $$verb --quiet --config tools/ruff.toml tools packaging/third-party crates || exit 1; \
	done

openapi: ## write docs/openapi.json anew, from the handlers
	@SCREE_WRITE_OPENAPI=1 cargo test -q -p control --test control -- the_committed_description_is

references: ## write docs/reference/{cli,configuration,metrics}.md from the sources
	@SCREE_WRITE_REFERENCES=1 cargo test -q -p scree --bin scree -- --include-ignored reference::

clean-demo: ## stop the demo's Scree and delete its folder
	@$(WITH_DEBUG_BUILD) tools/run demo --clean
