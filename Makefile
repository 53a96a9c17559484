# `make demo` shows vipwire at work, `make test` checks everything. Both set up what they need; see scripts/setup.
# The demo and the tests make network namespaces, which needs root: they ask sudo when you are not root.

SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
BIN := .venv/bin
export PATH := $(PATH):/usr/sbin:/sbin

.PHONY: help demo check test quick debian haproxy lint types imports pytest attack fuzz soak bench build deb tree image release release-test lock man docs diagrams recording site clean

help:
	@echo "make demo    build a small cluster out of network namespaces and watch Services at work"
	@echo "make check   linters, types, layers, unit tests and laws: under two minutes of CPU"
	@echo "make test    linters, types, layers, and all tests; HOUSE=l7 those of one house (proxy, l7, up, lab, project)"
	@echo "make haproxy SUITE=sid  the tests of layer 7 with the HAProxy of another suite of Debian's"
	@echo "make attack  hostile clients, tenants, servers, users, disks and clocks against vipwire; SEED=7 draws others"
	@echo "make fuzz    a million inputs for everything that reads what others write"
	@echo "make soak    ten minutes of changes while everything goes wrong"
	@echo "make bench   the benchmarks behind docs/performance.md"
	@echo "make build   the wheel, in dist/"
	@echo "make deb     the packages for Debian 12 and 13, in dist/"
	@echo "make tree    vipwire with its own Python, for any other Linux, and install.sh, in dist/"
	@echo "make image   the images for amd64 and arm64, in dist/; make image-test runs every Pod from them"
	@echo "make release the wheel, sdist, packages, trees, Helm chart and checksums, built twice and compared, in dist/"
	@echo "make release-test  install, use, upgrade and remove dist/'s packages on fresh systems with systemd; run its images; try its chart"
	@echo "make lock    pin the newest versions of all dependencies in requirements/"
	@echo "make man     the manual pages, in build/man8/"
	@echo "make docs    write docs/annotations.md, configuration.md and metrics.md anew, after a change of what they list"
	@echo "make diagrams  draw docs/diagrams/ anew"
	@echo "make recording  record the demo for the README"
	@echo "make site    the documents as pages with a search, in build/site/"
	@echo "make clean   remove what these have made"

demo:
	@scripts/setup demo
	@$(SUDO) $(BIN)/vipwire lab demo

check: lint types imports quick

# mypy has one process: what else takes no tests runs beside it.
test: .venv/ready-for-test
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint types imports rewritten
	@$(MAKE) --no-print-directory debian haproxy pytest

lint: .venv/ready-for-test
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: .venv/ready-for-test
	@$(BIN)/mypy

imports: .venv/ready-for-test
	@if [ -e .importlinter ]; then $(BIN)/lint-imports; fi

# Order and examples of the tests are random, and the same for everybody. To draw others: make test SEED=7
SEED ?= 104521296

# Most tests start vipwire, and guests read its files slowly: with byte code each start costs a quarter less.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: compiled
compiled: .venv/ready-for-test
	@$(SUDO) $(BIN)/python -m compileall -q src tests

# pytest rewrites the asserts of each file that it loads, and keeps what it wrote: once, not in every process at a time.
HOUSES = attacks fuzz goldens l7 lab project proxy up
.PHONY: rewritten
rewritten: compiled
	@[ -n "$$(find tests -name '*-pytest-*.pyc' -print -quit)" ] || \
	printf 'tests/%s\n' $(HOUSES) | xargs -P 2 -n 4 $(SUDO) $(BIN)/python -m pytest --collect-only -qq >/dev/null

PYTEST = $(SUDO) $(BIN)/python -m pytest --randomly-seed=$(SEED) --hypothesis-seed=$(SEED)

# Packets, processes and kernels on a machine that others share: of ten thousand tests one may fail by luck. It is run
# once more, and the summary names it with what went wrong the first time. Both failed: red. A hanging test is not run again,
# because pytest-timeout does not end the second run.
AGAIN = --reruns 1 --rerun-except "Timeout .>" -rR --rerun-show-tracebacks

# `make test HOUSE=l7` runs one house with what it needs: proxy, l7, up, lab, or project (documents, deployment, build).
HOUSE ?=
UNITS = $(wildcard tests/$(or $(HOUSE),*)/unit)

# What starts a process or a server, draws many examples or takes a second is marked slow: `make test` runs it, and all
# examples of the laws.
quick: compiled
	@$(PYTEST:$(BIN)/%=env HYPOTHESIS_PROFILE=quick $(BIN)/%) -q -n $$(nproc) --dist loadscope -m 'not kernel and not slow' $(UNITS) tests/proxy/laws tests/proxy/cases tests/project

# The unit tests that meet processes, sockets, files and parsers, once more on the system's own Python, where that is
# another one: the texts of errors differ there, and groups of exceptions do. All else is the same in every Python, and
# tests/project/test_plain_errors_on_debian.py runs the commands themselves on it.
debian: compiled
	@if [ -x .venv-debian/bin/python ] && [ -n "$(UNITS)" ]; then $(PYTEST:$(BIN)/%=.venv-debian/bin/%) -q $(AGAIN) -n $$(($$(nproc) + 1)) --dist loadscope -m 'outside and not kernel and (attack or not slow)' $(UNITS); fi

# Layer 7 with the HAProxy of another suite of Debian's, which tests find by PATH. Without SUITE, only the tests whose result
# may depend on HAProxy's version, with that of Debian 13; on Debian 13, with that of Debian 12.
SUITE ?=
OTHER = $(or $(SUITE),$(shell grep -qs '^VERSION_CODENAME=trixie' /etc/os-release && echo bookworm || echo trixie))
haproxy: compiled
	@if [ -z "$(filter-out l7,$(HOUSE))" ]; then scripts/setup haproxy $(OTHER) && \
	$(PYTEST:$(BIN)/%=env PATH=$(CURDIR)/.venv/haproxy-$(OTHER):$(PATH) $(BIN)/%) -q $(AGAIN) -n $$(($$(nproc) + 1)) --dist loadscope $(if $(SUITE),,-m haproxy) tests/l7; fi

# Four processes more than cores: guests and packets are waited for (tests/shares.py). One by one: `python -m pytest`.
pytest: rewritten
	@$(PYTEST) $(AGAIN) -n $$(($$(nproc) + 4)) --dist loadscope $(if $(HOUSE),tests/$(HOUSE))

# What tests/attacks/README.md says was tried, from outside: by the command line, sockets and packets. SEED also draws the order,
# and more requests for layer 7 than `make test` sends.
ATTACKS = $(shell grep -rlw 'pytest\.mark\.attack' --include='test_*.py' tests)
attack: compiled
	@$(PYTEST:$(BIN)/%=env VIPWIRE_TEST_REQUESTS=all $(BIN)/%) -q $(AGAIN) -n $$(($$(nproc) + 4)) --dist loadscope -m attack $(ATTACKS)

# A million inputs for the fuzz tests, led by coverage (atheris): twenty minutes at most.
fuzz: .venv/ready-for-test
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/fuzz.lock || echo "without atheris: inputs are random"
	@$(BIN)/python -m tests.fuzz --inputs 1000000 --seconds 1200

# Everything goes wrong for ten minutes (bench/soak).
soak: .venv/ready-for-test
	@$(SUDO) $(BIN)/python -m bench.soak --minutes 10

bench: .venv/ready-for-test
	@$(SUDO) $(BIN)/python -m bench

build: .venv/ready-for-test
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

# What make deb and make tree need of Debian's programs, and no more.
.PHONY: wheel
wheel:
	@scripts/setup package
	@rm -f dist/vipwire-*.whl
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

deb: wheel
	@$(BIN)/python -m scripts.debian --wheel dist/vipwire-*.whl

tree: wheel
	@$(BIN)/python -m scripts.tree --wheel dist/vipwire-*.whl
	@cd dist && sha256sum vipwire-*-linux-*.tar.gz install.sh >SHA256SUMS

# What `make release` made: packages and tree on fresh systems (docs/install.md, "Tried"), images, chart, and the walk of
# docs/three-servers.md.
# BEFORE=FOLDER upgrades from the release in this folder, and goes back to it. UBUNTU_KEYS=FILE has the keys of Ubuntu's archive.
release-test: .venv/ready-for-test
	@$(SUDO) $(BIN)/python -m scripts.release_test $(if $(BEFORE),--before $(BEFORE)) $(if $(UBUNTU_KEYS),--ubuntu-keys $(UBUNTU_KEYS))
	@$(SUDO) $(BIN)/python -m scripts.images --images dist
	@$(PYTEST:$(BIN)/%=env VIPWIRE_TEST_CHART=$$(echo dist/vipwire-*.tgz) $(BIN)/%) -q tests/project/test_deploy_helm_release.py
	@$(SUDO) $(BIN)/python -m scripts.release_test --suite bookworm --way three-servers

# The same for arm64, by qemu's user mode: without systemd, and without rules in the kernel.
.PHONY: release-test-arm64
release-test-arm64: .venv/ready-for-test
	@$(SUDO) $(BIN)/python -m scripts.emulated

# The images as files, for amd64 and arm64 (docs/deploy.md): no engine, no registry, no emulator.
image:
	@scripts/setup package
	@$(BIN)/python -m scripts.images.build

# Each Pod of deploy/ run from the images of this machine's kind.
.PHONY: image-test
image-test: .venv/ready-for-test
	@$(SUDO) $(BIN)/python -m scripts.images

# The same commit gives the same bytes: everything is built twice and compared.
release:
	@scripts/setup release
	@rm -rf dist
	@$(BIN)/python -m scripts.release --twice $(if $(KEY),--key $(KEY))

# Pin anew what is installed: the newest versions that pyproject.toml allows, each file with its hash.
LOCK = build/tools/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade
lock:
	@python3 -m venv build/tools && build/tools/bin/python -m pip install --quiet --require-hashes -r requirements/tools.lock
	@$(LOCK) pyproject.toml --extra all --output-file requirements/run.lock
	@$(LOCK) pyproject.toml --constraint requirements/run.lock --output-file requirements/proxy.lock
	@$(LOCK) pyproject.toml --extra etcd --constraint requirements/run.lock --output-file requirements/etcd.lock
	@$(LOCK) pyproject.toml --extra all --group test --group lint --constraint requirements/etcd.lock --output-file requirements/test.lock
	@$(LOCK) --group fuzz --constraint requirements/test.lock --output-file requirements/fuzz.lock
	@$(LOCK) --group clients --output-file requirements/clients.lock
	@$(LOCK) --group plot --constraint requirements/test.lock --output-file requirements/plot.lock
	@$(LOCK) --group site --constraint requirements/test.lock --output-file requirements/site.lock
	@$(LOCK) requirements/build.in --constraint requirements/test.lock --output-file requirements/build.lock
	@$(LOCK) requirements/tools.in --constraint requirements/test.lock --output-file requirements/tools.lock
	@build/tools/bin/python scripts/wheels.py

man:
	@scripts/setup demo
	@$(BIN)/python -m scripts.man build/man8

.venv/ready-for-test: pyproject.toml scripts/setup requirements/test.lock
	@scripts/setup test

docs: .venv/ready-for-test
	@$(BIN)/python scripts/annotations.py
	@$(BIN)/python scripts/configuration.py
	@$(BIN)/python scripts/metrics.py
	@$(BIN)/python scripts/modes.py

# Pictures of the documents from their texts (D2, by npm).
diagrams: .venv/ready-for-test
	@$(BIN)/python scripts/diagrams.py

# The demo as a moving picture, docs/images/demo.svg.
recording: .venv/ready-for-test
	@$(SUDO) $(BIN)/python -m scripts.recording

site:
	@[ -e build/site-tools/ready ] || { python3 -m venv build/site-tools && build/site-tools/bin/python -m pip install --quiet --require-hashes -r requirements/site.lock && touch build/site-tools/ready; }
	@NO_MKDOCS_2_WARNING=1 build/site-tools/bin/mkdocs build --quiet --strict
	@echo "the pages are in build/site: python3 -m http.server --bind 127.0.0.1 --directory build/site"

clean:
	rm -rf .venv .venv-debian build dist .nox .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
