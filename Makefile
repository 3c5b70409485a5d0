# The tasks of the project. Every broker they need they start themselves, and stop again (tests/broker/with-brokers).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Where rustup and Go install themselves, which not every shell knows.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/go/bin

# What a test says of a change depends on the change alone: property tests get the same inputs each time.
export PROPTEST_RNG_SEED ?= 0

VERSION ?= 4.3
WITH_BROKERS := tests/broker/with-brokers
BROKER := tests/broker/broker

# The languages whose bindings bring an executable `test`, each with the tool it cannot do without.
LANGUAGES := python:python3 node:npm go:go
# Runs a command for a language where its tool is: $(call where,LANGUAGE,COMMAND).
where = tool=$$(sed -n 's/.*\<$1:\([a-z0-9]*\).*/\1/p' <<<"$(LANGUAGES)"); \
	if command -v "$$tool" >/dev/null; then $2; else echo "$1: not measured, because $$tool is missing"; fi

.PHONY: help
help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z -]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: cargo ## watch messages fail, wait, come back and be parked on a real RabbitMQ
	@echo "building the demo; with nothing built yet this takes some minutes"
	@cargo build --quiet -p retryrmq-demo
	@RETRYRMQ_DEMO_WORKERS="$$(examples/demo/workers/prepare)" \
		$(WITH_BROKERS) --versions 4.3 --one -- cargo run --quiet -p retryrmq-demo

# 0 is until Ctrl-C.
SECONDS ?= 0

.PHONY: serve-demo
serve-demo: cargo ## watch `retryrmq serve` retry messages that three native clients reject: make serve-demo SECONDS=30
	@FOR="$(SECONDS)" $(WITH_BROKERS) --versions 4.3 --one -- examples/serve/demo/run

.PHONY: serve-rate
serve-rate: cargo ## forty failures a second with five delays, for ten minutes, through `retryrmq serve`
	@$(WITH_BROKERS) --versions "$(VERSION)" -- cargo test -p retryrmq-serve --test serve -- --ignored --nocapture for_ten_minutes

.PHONY: check
check: cargo ## everything that needs no broker: lint, unit tests and the examples in the documentation
	@tests/run check

.PHONY: test
test: cargo ## everything: lint, unit tests, and all tests on RabbitMQ, each on a version and queue type that its name chooses
	@tests/run test

.PHONY: test-all
test-all: cargo ## the same, with every test on RabbitMQ 3.10, 4.0 and 4.3 and both queue types: more than an hour
	@tests/run test-all

# How long, and from which seed on.
SECONDS_OF_SEEDS ?= 600
SEED ?= 0

.PHONY: simulate
simulate: cargo ## simulate lives of consumers against the model of the broker: make simulate SECONDS_OF_SEEDS=600 SEED=0
	RETRYRMQ_SIMULATE_SECONDS=$(SECONDS_OF_SEEDS) RETRYRMQ_SIMULATE_FROM=$(SEED) \
		cargo test --release -p retryrmq --lib -- --nocapture engine::fault_simulation

# How long for each target; `make check` gives ten thousand inputs to each, the same ones each time.
SECONDS_OF_FUZZING ?= 600

.PHONY: fuzz
fuzz: cargo ## fuzz everything that reads untrusted input: make fuzz SECONDS_OF_FUZZING=600
	RETRYRMQ_FUZZ_SECONDS=$(SECONDS_OF_FUZZING) \
		cargo test --release -p retryrmq -p retryrmq-bindings -p retryrmq-cli -p retryrmq-operator --all-features --lib --bins -- --nocapture :any_ :no_headers_ :no_stream_

# How many seeds, and on which versions.
SEEDS ?= 100
VERSIONS ?= 3.10 4.0 4.3

.PHONY: chaos
chaos: cargo ## kill and cut real consumers, brokers and clusters: make chaos SEEDS=100 SEED=0 VERSIONS="3.10 4.0 4.3"
	cargo build --quiet -p retryrmq-chaos
	@$(WITH_BROKERS) --versions "$(VERSIONS)" -- cargo run --quiet -p retryrmq-chaos -- --seeds $(SEEDS) --seed $(SEED)

# How many messages; `make test` has the short form.
COUNT ?= 100000

.PHONY: serve-ledger
serve-ledger: cargo ## check that a fleet behind the service loses nothing while its parts are killed: make serve-ledger COUNT=100000
	@RETRYRMQ_LEDGER_COUNT=$(COUNT) $(WITH_BROKERS) --versions 4.3 -- \
		cargo test -p retryrmq-serve --test ledger -- --include-ignored --nocapture --test-threads 1

# How many on all ways together, and that one in so many may be unreadable where the library takes them out of the way.
MESSAGES ?= 100000
RARE ?= 100

.PHONY: messages
messages: cargo ## send random messages of AMQP 1.0, MQTT and STOMP through everything: make messages MESSAGES=100000 RARE=100 SEED=0
	@RETRYRMQ_TEST_LIMIT=7200 RETRYRMQ_STRANGE_MESSAGES=$(MESSAGES) RETRYRMQ_STRANGE_RARE=$(RARE) RETRYRMQ_STRANGE_SEED=$(SEED) $(WITH_BROKERS) --versions "4.0 4.3" -- \
		cargo test -p retryrmq-serve --test messages -- --nocapture --test-threads 1

# How many, and for how many seconds.
WAITING ?= 1000000
WAIT ?= 3600

.PHONY: serve-waiting
serve-waiting: cargo ## let a million messages wait for an hour in waiting queues and in Redis: make serve-waiting WAITING=1000000 WAIT=3600
	@RETRYRMQ_WAITING_COUNT=$(WAITING) RETRYRMQ_WAITING_SECONDS=$(WAIT) $(WITH_BROKERS) --versions 4.3 -- \
		cargo test --release -p retryrmq-serve --test serve --test redis -- --ignored --nocapture a_million_that_waits

# Every figure is a ratio of one run. The languages' take RETRYRMQ_BENCH_COUNT and RETRYRMQ_BENCH_ROUNDS to be shorter.
.PHONY: bench
bench: bench-core bench-python bench-node bench-go ## measure the core and every binding, compared with their peers: hours

# What is measured; none: what each of them measures by itself.
bench-storm: GROUPS := storm outage
bench-memory: GROUPS := memory

.PHONY: bench-core
bench-core: cargo ## measure the core: throughput, lateness and memory on one broker
	cargo build --release -p retryrmq-bench
	@$(WITH_BROKERS) --versions "$(VERSION)" --one -- cargo run --release -p retryrmq-bench -- $(GROUPS)

.PHONY: bench-storm
bench-storm: bench-core bench-python bench-node bench-go ## measure a storm of retries and an outage, compared with other ways to retry: hours

.PHONY: bench-memory
bench-memory: bench-core bench-python bench-node ## measure what a message that waits costs its client in memory

.PHONY: bench-http
bench-http: cargo ## measure `consume --http`, compared with a loop by hand and a plain load by the same HTTP client
	cargo build --release -p retryrmq-cli
	cargo build --release -p retryrmq-bench
	@$(WITH_BROKERS) --versions "$(VERSION)" --one -- target/release/retryrmq-bench http

.PHONY: bench-python bench-node bench-go
bench-python bench-node bench-go: bench-%: cargo ## measure one binding beside its peers on one broker
	@$(call where,$*,$(WITH_BROKERS) --versions "$(VERSION)" --one -- tests/bench/$*/run $(GROUPS))

.PHONY: bench-quick
bench-quick: cargo ## the main table, in about seven minutes once everything is built: consume and acknowledge, fail once
	@$(WITH_BROKERS) --versions "$(VERSION)" --one -- tests/bench/quick

# Not part of `make test`: it takes long, and what it tells of others changes with their releases, not with ours.
PEERS_ON := $(WITH_BROKERS) --versions "4.3 4.0 3.10" -- tests/peers/run

.PHONY: peers
peers: cargo ## observe what every peer does on failure, and write docs/comparison.md
	@$(PEERS_ON)

.PHONY: peers-check
peers-check: cargo ## observe every peer again, and fail if a cell of docs/comparison.md has changed
	@$(PEERS_ON) --check

# Minutes, for each of the languages.
MINUTES ?= 10

.PHONY: soak soak-python soak-node soak-go
soak: soak-python soak-node soak-go ## run every binding's consumer under load, cuts and interrupts: MINUTES=10 each

soak-python soak-node soak-go: soak-%: cargo
	@$(call where,$*,$(WITH_BROKERS) --versions "$(VERSION)" --one -- tests/bench/$*/run soak $(MINUTES))

.PHONY: wheel
wheel: cargo ## build a wheel of the Python package into bindings-python/dist
	@command -v python3 >/dev/null || { echo "python3 is missing: install Python 3.10 or later" >&2; exit 3; }
	python3 -m venv target/wheel-venv
	target/wheel-venv/bin/pip wheel --quiet --no-deps --wheel-dir bindings-python/dist ./bindings-python
	@ls bindings-python/dist/*.whl

.PHONY: go-lib
go-lib: cargo ## build the native library of the Go module for this machine into bindings-go/lib
	@command -v go >/dev/null || { echo "go is missing: install Go 1.24 or later" >&2; exit 3; }
	bindings-go/library

.PHONY: go-module
go-module: go-lib ## assemble the Go module, with the libraries in bindings-go/lib, into bindings-go/dist
	bindings-go/module

.PHONY: dist
dist: cargo ## build all packages that this system can build, for every architecture, into target/dist: takes long
	dist/build

.PHONY: dist-check
dist-check: ## test the packages in target/dist in clean roots; as root on Debian
	dist/check

.PHONY: broker
broker: ## start a broker and leave it running: make broker VERSION=3.10|4.0|4.3
	@$(BROKER) start $(VERSION)
	@$(BROKER) url $(VERSION) | { read -r amqp; read -r management; read -r tls; \
		echo "with TLS: $$tls"; echo "in every terminal:"; \
		echo "export RETRYRMQ_URL=$$amqp"; echo "export RETRYRMQ_MANAGEMENT_URL=$$management"; }
	@echo "management page: the second address, user guest, password guest; its data is kept until make clean"
	@echo "stop it with: make broker-stop VERSION=$(VERSION)"

.PHONY: cluster
cluster: ## start a cluster of three nodes and leave it running: make cluster VERSION=…
	@$(BROKER) cluster $(VERSION)
	@for n in 1 2 3; do $(BROKER) url $(VERSION) $$n; done
	@echo "kill one of them with: $(BROKER) kill $(VERSION) 2; stop all with: make broker-stop VERSION=$(VERSION)"

.PHONY: broker-stop
broker-stop: ## stop what `make broker` or `make cluster` started: make broker-stop VERSION=…
	@$(BROKER) down $(VERSION)
	@echo "$(VERSION) stopped, its data is kept"

.PHONY: lint
lint: cargo ## check formatting, clippy, the documentation, the versions, workflows and licences, without a warning
	@tests/run lint

.PHONY: lint-docs
lint-docs: cargo ## check every link, anchor and snippet of the Markdown pages
	cargo run --quiet -p retryrmq-docs -- check

.PHONY: docs
docs: lint-docs ## build the site into target/docs, and check its links
	@docs/book/build

# What is written into pages from elsewhere: parts of tested files, and tables out of the code.
.PHONY: docs-renew
docs-renew: cargo ## write snippets and reference tables into the pages
	cargo run --quiet -p retryrmq-docs -- renew
	RETRYRMQ_RENEW=1 cargo test --quiet -p retryrmq-docs --lib -- reference

.PHONY: lint-workflows
lint-workflows: ## check the workflows in .github
	go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.8

.PHONY: lint-deploy
lint-deploy: ## check the Helm chart, the examples for Kubernetes and the Compose project
	tests/deploy/test -short

# Against which commit; the last version, or else the last commit.
BASE ?= $(shell git describe --tags --abbrev=0 2>/dev/null || echo HEAD)

.PHONY: api
api: cargo ## show what the changes since BASE do to the public Rust API: make api BASE=v0.1.0
	@command -v cargo-semver-checks >/dev/null || { \
		echo "cargo-semver-checks is missing: cargo install cargo-semver-checks --locked" >&2; exit 3; }
	cargo semver-checks -p retryrmq --baseline-rev "$(BASE)" --only-explicit-features --features log-lines --release-type minor

.PHONY: clean
clean: ## remove build results, and the brokers of `make broker` with their data
	-$(BROKER) purge
	cargo clean

.PHONY: cargo
cargo:
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust 1.90 or later with rustup" >&2; exit 3; }
