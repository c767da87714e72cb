# Everything runs on a clean machine with Go, git and make. What else tests need
# (databases, brokers, their clients, a C compiler for the race detector) is
# installed by internal/testserver; the linters are built into .tools.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Pinned, never @latest: the same commit lints the same everywhere.
GOLANGCI_LINT := v2.14.0
GOFUMPT := v0.12.0
GOVULNCHECK := v1.8.0
TOOLS := $(CURDIR)/.tools/bin-golangci-lint-$(GOLANGCI_LINT)-gofumpt-$(GOFUMPT)-govulncheck-$(GOVULNCHECK)

APIDIFF := v0.0.0-20260709172345-9ea1abe57597
APIDIFF_TOOL := $(CURDIR)/.tools/apidiff-$(APIDIFF)/apidiff

FUZZTIME ?= 30s

# No version control stamp: builds in containers often run as another user than
# the checkout's, and git then refuses to answer. Without its path a checkout
# uses what the compiler made for another one. What the caller's environment says
# about flags and workspaces would change what is tested.
export GOFLAGS := -buildvcs=false -trimpath
export GOWORK := $(wildcard $(CURDIR)/go.work)

# Built and then run, rather than "go run": that would pass on neither SIGTERM
# nor the exit code. exec, so that make's signals reach it and not a shell.
TESTSERVER := exec $(CURDIR)/.tools/testserver
WITH_SERVERS := $(TESTSERVER) run --no-sync --race-tools --also postgres18 --
WITH_BROKERS := $(TESTSERVER) run --no-sync --race-tools --only postgres,redis,rabbitmq,kafka,pulsar --
WITH_ALL := $(TESTSERVER) run --no-sync --race-tools --only postgres,mariadb,mysql,redis,rabbitmq,kafka,pulsar --
# Foreign code that takes four times the CPU under the race detector, and runs in one goroutine
# at a time: SQLite translated from C, Go's parser, regular expressions. SQLite's Go driver,
# which shares memory with the store, keeps the detector.
NO_RACE := $(patsubst %,-gcflags=%=-race=false,modernc.org/sqlite/lib modernc.org/libc go/... regexp/...)
# Three packages at a time: most of them wait for servers. make lint has vet. Without symbols
# for debuggers a test links in half the time; stacks have their names all the same.
RACE := env CGO_ENABLED=1 go test -race $(NO_RACE) -count=1 -vet=off -ldflags=-s -p 3 -parallel 4 -timeout 40m

# The folders whose tests need the brokers that take long to start. make test
# builds them, too, and there they skip: internal/e2e/brokers wants Kafka for
# all its tests, so that the streams over Redis and the like do not run twice.
BROKER_TESTS := internal/e2e/kafkabroker broker/pulsarbroker internal/e2e/brokers cmd/waybill/internal/doctor
# Of these folders make test runs all tests but those of the brokers.
SOME_BROKER_TESTS := cmd/waybill/internal/command internal/testserver/private

# The folders whose tests take minutes. They go first, so that none of them runs
# by itself at the end.
SLOW_TESTS := store/mysqlstore store/pgstore cmd/waybill/internal/command internal/e2e/process store/sqlitestore internal/e2e/chaos

# It needs the core module only, and has to work while go.work does not.
RELEASE := GOWORK=off go run ./internal/release/cmd/release

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: testserver ## test all modules with the race detector, against real servers
	go test -count=1 -vet=off -run '^TestCases$$' ./internal/sim # they skip with the race detector
	go test -count=1 -vet=off ./internal/e2e/artifacts # so do these
	$(WITH_SERVERS) $(RACE) $(patsubst %,./%/...,$(SLOW_TESTS)) work
	@$(MAKE) --no-print-directory test-deploy

# A module of its own, outside of go.work: internal/deploycheck/doc.go.
.PHONY: test-deploy
test-deploy: ## check the files of deploy: compose, systemd, Helm, Dockerfile
	cd internal/deploycheck && GOWORK=off go test -count=1 -vet=off ./...

.PHONY: test-brokers
test-brokers: testserver ## test what needs Kafka and Pulsar, which make test leaves out
	$(WITH_BROKERS) sh -c '$(RACE) $(patsubst %/.,./%/...,$(wildcard $(addsuffix /.,$(BROKER_TESTS)))) && \
		$(RACE) -run "EverySink|BrokersComeBack" $(patsubst %/.,./%,$(wildcard $(addsuffix /.,$(SOME_BROKER_TESTS))))'

.PHONY: test-postgres-versions
test-postgres-versions: testserver ## run the store's suite on every major version of PostgreSQL, besides the system's
	@for version in 14 16 17 18; do \
		echo "PostgreSQL $$version"; \
		.tools/testserver run --no-sync --race-tools --only postgres$$version -- env CGO_ENABLED=1 go test -race -count=1 -vet=off -timeout 40m \
			-run '^TestConformanceNew$$' ./store/pgstore; \
	done

.PHONY: test-stores-full
test-stores-full: testserver ## run every store's suite in full over every way to connect: poolers, protocols, clocks; longer runs of chaos and crashes
	$(WITH_SERVERS) env WAYBILL_TEST_FULL=1 $(RACE) ./store/pgstore ./store/mysqlstore ./store/sqlitestore ./internal/e2e/chaos ./internal/e2e/process

FAILURES ?= 20
.PHONY: test-clusters
test-clusters: testserver ## break the leaders of clusters under load, and check every promise: FAILURES=20; ONLY=Postgres limits it
	@mkdir -p .tools/clusters
	go test -c -vet=off -o .tools/clusters/clusters.test ./cmd/waybill/internal/clusters
	$(TESTSERVER) run --no-sync --only postgres -- env WAYBILL_TEST_FAILURES=$(FAILURES) WAYBILL_TEST_REPORTS=$(CURDIR)/.tools/clusters \
		.tools/clusters/clusters.test -test.v -test.timeout 0 -test.run '$(ONLY)'

.PHONY: test-all
test-all: test test-brokers ## make test and make test-brokers

.PHONY: lint
lint: tools ## check formatting, and lint every module
	@unformatted=$$($(TOOLS)/gofumpt -l .); \
	if [ -n "$$unformatted" ]; then \
		echo "not formatted (make fmt mends it):"; echo "$$unformatted"; exit 1; \
	fi
	$(TOOLS)/golangci-lint run $$(go list -m -f '{{.Dir}}/...')
	cd internal/deploycheck && GOWORK=off $(TOOLS)/golangci-lint run

.PHONY: fmt
fmt: tools ## format all Go files
	@$(TOOLS)/gofumpt -l -w .

.PHONY: bench
bench: testserver ## measure writes against real servers
	$(TESTSERVER) run --only postgres,mariadb,mysql -- go run ./internal/e2e/bench write

.PHONY: benchmarks
benchmarks: ## measure the numbers of docs/benchmarks.md again; ONLY=^drain limits it
	go run ./internal/e2e/bench page -only '$(ONLY)' docs/benchmarks.md

.PHONY: mutants
mutants: testserver ## break the code on purpose, and see that tests notice; MUTANTS='-only ^relay' limits it
	$(WITH_ALL) go run ./internal/mutants/cmd/mutants $(MUTANTS)

SIM ?= 2m
.PHONY: sim
sim: ## simulate crashes, pauses, lost answers and late commits in virtual time for SIM (2m); SIM_FLAGS=-sim.seed=7
	go test -count=1 -timeout 0 -run '^TestSim$$' ./internal/sim -v -sim.for=$(SIM) -sim.tally=$(CURDIR)/.tools/sim-tally.json $(SIM_FLAGS)

HUGO := hugo --source site --noBuildLock
.PHONY: site
site: ## build the documentation's site into .tools/site; needs hugo
	$(HUGO) --destination $(CURDIR)/.tools/site --cleanDestinationDir --panicOnWarning

.PHONY: site-serve
site-serve: ## show the documentation's site, and follow changes; needs hugo
	$(HUGO) serve --renderToMemory

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (30s)
	@found=; while read -r dir package; do \
		for target in $$(cat "$$dir"/*_test.go 2>/dev/null | sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p'); do \
			found=1; echo "fuzz: $$package $$target"; \
			go test -run='^$$' -fuzz="^$$target\$$" -fuzztime=$(FUZZTIME) "$$package"; \
		done; \
	done < <(go list -f '{{.Dir}} {{.ImportPath}}' work); \
	[ -n "$$found" ] || echo "there are no fuzz targets"

.PHONY: servers
servers: testserver ## start servers and leave them running: eval "$(make -s servers)"
	@$(TESTSERVER) start

.PHONY: servers-stop
servers-stop: testserver ## stop what make servers started
	@$(TESTSERVER) stop

.PHONY: tidy
tidy: ## go mod tidy in every module; repairs the list in go.work
	@$(RELEASE) tidy
	@cd internal/deploycheck && GOWORK=off go mod tidy

# VERSION and BASE come from the command line.
.PHONY: release
release: ## make the release commit and its tags here: VERSION=v0.1.0; pushes nothing
	@$(RELEASE) tag "$(VERSION)"

# VERSION is that of HEAD's tag unless the command line has one.
.PHONY: artifacts artefacts
artifacts: ## build archives, images, checksums and bills of materials into dist: VERSION=v0.1.0; ARTIFACTS='-only host'
	@go run ./internal/e2e/artifacts -version '$(VERSION)' $(ARTIFACTS)
artefacts: artifacts

.PHONY: apidiff
apidiff: $(APIDIFF_TOOL) ## compare the API of the released modules with the last tag, or with BASE
	@$(RELEASE) apidiff $(APIDIFF_TOOL) $(BASE)

.PHONY: newest
newest: ## build and test with every direct dependency at its newest release
	@.ci/newest

.PHONY: vuln
vuln: $(TOOLS)/govulncheck ## look for known vulnerabilities; needs the vulnerability database
	@GOVULNCHECK=$(TOOLS)/govulncheck .ci/vuln

# Without cgo: this is the program that installs the C compiler.
.PHONY: testserver
testserver:
	@CGO_ENABLED=0 go build -o .tools/testserver ./internal/testserver/cmd/testserver

.PHONY: tool-path
tool-path:
	@echo $(TOOLS)

.PHONY: tools
tools: $(TOOLS)/golangci-lint $(TOOLS)/gofumpt $(TOOLS)/govulncheck

$(TOOLS)/golangci-lint:
	@echo "building golangci-lint $(GOLANGCI_LINT), once: this takes a few minutes"
	GOBIN=$(TOOLS) CGO_ENABLED=0 go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT)

$(TOOLS)/gofumpt:
	GOBIN=$(TOOLS) CGO_ENABLED=0 go install mvdan.cc/gofumpt@$(GOFUMPT)

$(TOOLS)/govulncheck:
	GOBIN=$(TOOLS) CGO_ENABLED=0 go install golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK)

$(APIDIFF_TOOL):
	GOBIN=$(@D) CGO_ENABLED=0 go install golang.org/x/exp/cmd/apidiff@$(APIDIFF)
