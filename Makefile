# Each target sets up what it needs: scripts/in-environment runs a command in a suitable environment, and installs
# missing packages. CMake builds the library.

TORCH ?=
CUDA ?=
ARCH ?=
CMAKE_ARGS ?=
CTEST_ARGS ?=
PYTEST_ARGS ?=
ARGS ?=
CHECK_LINKS ?=
SECONDS ?= 60
SANITIZER ?= memcheck
TESTS ?=
CALLS ?= 800
TARGETS ?= all

BUILD := build$(if $(TORCH),-torch-$(TORCH))$(if $(ARCH),-$(ARCH))
# Use the package of this checkout, and the library that was just built.
export PYTHONPATH := $(CURDIR)/python$(if $(PYTHONPATH),:$(PYTHONPATH))
export LLTM_LIBRARY := $(CURDIR)/$(BUILD)/liblltm_ops.so

# The driver compiles the kernels of a library that has only PTX, and keeps them: they take more than its 256 MiB.
ifneq ($(ARCH),)
export CUDA_CACHE_MAXSIZE := 4294967296
endif

export TORCH
# $(call with,GOAL) COMMAND: requirements/GOAL.txt lists what the command needs.
with = scripts/in-environment $(1)
# $(call build,GOAL,OPTIONS OF CMAKE)
build = @$(call with,$(1)) sh -ec '\
  cmake -S . -B $(BUILD) $(2) $(if $(ARCH),-DLLTM_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=$(ARCH)) $(CMAKE_ARGS); \
  echo "-- Building in $(BUILD)$(if $(wildcard $(BUILD)/liblltm_ops.so),, (takes some minutes))"; \
  cmake --build $(BUILD) --target $(TARGETS)'
# Sources are joined into units of twenty, which compiles in a third of the time: PyTorch's headers take most of it.
# .ci/full compiles each by itself.
joined = -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=20
# To use the library: compiled in as short a time as possible, without tests, for the GPU that is present. An existing
# build folder keeps its options, because that of the tests serves as well, and other options would compile it anew.
for_use = -DBUILD_TESTING=OFF $(if $(CUDA),-DLLTM_CUDA=$(CUDA)) \
  $(if $(wildcard $(BUILD)/CMakeCache.txt),,$(joined))
# To test it: with CUDA if this machine can compile and run it. With the flags of a library to use, so that nothing is
# compiled twice: that warnings are errors is up to .ci/run and .ci/full.
for_tests = -DBUILD_TESTING=ON -DLLTM_CUDA=$(or $(CUDA),AUTO) $(joined)

# The options only apply to the build of this checkout, not to the builds of tests.
unexport CMAKE_ARGS TARGETS

.PHONY: help build build-tests demo stream rl quality docs check test test-cpp test-python coverage fuzz soak sanitize bench wheel release-check lint format clean distclean
.NOTPARALLEL:

# Times are those of two cores, without the first compilation.
help:
	@echo 'Use it'
	@echo '  make build          the library: $(BUILD)/liblltm_ops.so (some minutes)'
	@echo '  make demo           train a classifier of handwritten digits in Python, serve it from C++ (a minute)'
	@echo '  make stream         train byte-level models of Python source, complete lines in C++ (LINE="def read("; two minutes)'
	@echo '  make rl             train recurrent agents by reinforcement learning, draw how they learn (a minute)'
	@echo 'Change it'
	@echo '  make check          the CPU tests of values, gradients, errors and modules (a minute or so): for daily work'
	@echo '  make test           every test but those of a release (some minutes; one side: make test-cpp, make test-python)'
	@echo '  make lint           formatting, ruff, mypy, shellcheck, and the links and commands of the pages;  make format'
	@echo '  make docs           the documentation: $(BUILD)/docs/index.html (a minute; CHECK_LINKS=1: also links to other sites)'
	@echo '  make coverage       the lines of the CPU code and of the package that the tests reach (an hour)'
	@echo 'Look for rare faults'
	@echo '  make fuzz           random calls against the formula in float64 (SECONDS=600, ARGS="--device cuda")'
	@echo '  make soak           a million calls from eight threads (ARGS="--device cuda --calls 1000000")'
	@echo '  make sanitize       C++ tests of the CUDA kernels under compute-sanitizer (SANITIZER=racecheck, ...), or tests'
	@echo '                      of the CPU code under a sanitizer of GCC (SANITIZER=address, undefined or thread)'
	@echo 'Measure it'
	@echo '  make bench          this library and its peers (QUICK=1: in two minutes; see benchmark/README.md)'
	@echo '  make quality        train LLTMs, LSTMs and GRUs on small tasks (some minutes; docs/the-cell.md has the tables)'
	@echo 'Release it'
	@echo '  make wheel          one wheel for all supported versions of PyTorch, in dist/ (downloads 2 GB; CUDA=0: without CUDA)'
	@echo '  make release-check  install it beside each of them, and use it from Python and C++'
	@echo 'Remove it'
	@echo '  make clean          what was built;  make distclean the environments (.venv*) too'
	@echo
	@echo 'TORCH=2.11.0                  with this PyTorch, in an environment and a build folder of their own'
	@echo 'CUDA=1 or CUDA=0              with the CUDA kernels, or without (default: with them if there is a GPU)'
	@echo 'ARCH=80-virtual               for this CUDA architecture, in a build folder of its own (docs/testing.md)'
	@echo 'CMAKE_ARGS=-DLLTM_WERROR=ON   options of CMake'
	@echo 'PYTEST_ARGS="-k forward"      options of pytest'
	@echo 'CTEST_ARGS="-R package"       options of ctest'
	@echo 'TARGETS="lltm_ops"            what CMake builds'
	@echo 'ARGS="--sequence"             options of the program that demo, fuzz, soak, bench, rl, quality, wheel or release-check runs'

build:
	$(call build,build,$(for_use))

build-tests:
	$(call build,test,$(for_tests))

ctest = @$(call with,test) ctest --test-dir $(BUILD) --parallel "$$(nproc)" --output-on-failure --no-tests=error
# Without the tests marked `release`, most of which build something for minutes: PYTEST_ARGS="-m ''" runs them, too.
pytest = @$(call with,test) python3 -m pytest -n auto --maxprocesses=8 --dist worksteal -m "not release"

# For daily work: at most 90 s on two cores once everything is built.
CHECKED := $(patsubst %,operators/test_%,contract derivatives errors gradients meta values workspace) \
  module/test_module module/test_module_errors
check: build-tests
	$(ctest) --label-regex check $(CTEST_ARGS)
	$(pytest) -m "not slow and not release" -k "not cuda" $(CHECKED:%=test/%.py) $(PYTEST_ARGS)

test: test-cpp test-python

test-cpp: build-tests
	@echo "-- Tests in C++"
	$(ctest) $(CTEST_ARGS)

test-python: build-tests
	@echo "-- Tests in Python (takes some minutes)"
	$(pytest) $(PYTEST_ARGS)

# Of the CPU code. Not optimized much, and with counters in every line. One process, because those of pytest-xdist end
# without writing their counters.
coverage:
	@$(call with,coverage) sh -ec '\
	  cmake -S . -B build-coverage -DLLTM_CUDA=OFF -DBUILD_TESTING=ON -DCMAKE_UNITY_BUILD=ON \
	    "-DCMAKE_CXX_FLAGS=--coverage -fprofile-update=atomic" "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG" $(CMAKE_ARGS); \
	  cmake --build build-coverage; \
	  find build-coverage -name "*.gcda" -delete; \
	  build-coverage/lltm_ops_test --gtest_brief=1 --gtest_filter=-*CUDA*; \
	  build-coverage/lltm_model_test --gtest_brief=1; \
	  LLTM_LIBRARY=$(CURDIR)/build-coverage/liblltm_ops.so python3 -m pytest -m "not release" -k "not cuda" \
	    --cov --cov-report=term-missing $(PYTEST_ARGS); \
	  gcovr --filter src/ --filter include/ --merge-lines --gcov-ignore-errors=all \
	    --gcov-ignore-parse-errors=suspicious_hits.warn_once_per_file build-coverage'

fuzz: build
	@$(call with,test) python3 test/property/fuzz.py --seconds $(SECONDS) $(ARGS)

soak: build
	@$(call with,test) python3 test/property/soak.py $(ARGS)

ifneq ($(filter memcheck racecheck synccheck initcheck,$(SANITIZER)),)
sanitize: build-tests
	@TESTS="$(TESTS)" $(call with,test) scripts/sanitize $(SANITIZER) $(BUILD)
else
# GCC's sanitizers, for the CPU code, in a separate build of what scripts/sanitize runs. It is not optimized, because it
# then compiles in a fraction of the time.
comma := ,
sanitize: INSTRUMENTED = build-sanitize-$(subst $(comma),-,$(SANITIZER))
sanitize:
	@$(call with,test) sh -ec '\
	  cmake -S . -B $(INSTRUMENTED) -DLLTM_CUDA=OFF -DBUILD_TESTING=ON -DLLTM_SANITIZER=$(SANITIZER) \
	    $(joined) "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG" $(CMAKE_ARGS); \
	  cmake --build $(INSTRUMENTED) --target lltm_ops_test; \
	  CALLS=$(CALLS) scripts/sanitize $(SANITIZER) $(INSTRUMENTED)'
endif

demo:
	$(call build,demo,$(for_use))
	@$(call with,demo) python3 examples/digits/demo.py --build-dir $(BUILD) $(ARGS)

stream:
	$(call build,demo,$(for_use))
	@$(call with,demo) python3 examples/stream/demo.py --build-dir $(BUILD) $(if $(LINE),"--line=$$LINE")

rl: build
	@$(call with,demo) python3 examples/rl/demo.py --output $(BUILD)/rl $(ARGS)

quality: build
	@$(call with,demo) python3 benchmark/quality/run.py --output $(BUILD)/quality/results.json $(ARGS)

# With the library that is built here or installed; only if there is none, it is built.
docs: find_library = $$(ls $(LLTM_LIBRARY) 2>/dev/null || \
  env -u PYTHONPATH -u LLTM_LIBRARY python3 -c 'import lltm; print(lltm.library_path)' 2>/dev/null)
docs:
	@test "$(find_library)" || $(MAKE) build
	@LLTM_LIBRARY="$(find_library)" $(call with,docs) python3 -m sphinx --fail-on-warning --keep-going --fresh-env docs $(BUILD)/docs
	$(if $(CHECK_LINKS),@LLTM_LIBRARY="$(find_library)" $(call with,docs) python3 -m sphinx -b linkcheck docs $(BUILD)/docs/links)

bench:
	$(call build,bench,$(for_use) -DLLTM_BENCHMARK=ON)
	@$(call with,bench) python3 benchmark/bench.py --build-dir $(BUILD) $(if $(QUICK),--quick) $(ARGS)

# For every GPU: LLTM_EVERY_GPU in cmake/CudaChoice.cmake, also where a GPU is present. A template's instances are in one
# file (joined): compressed together, the kernels take a sixth less.
wheel:
	@$(call with,wheel) sh -ec '\
	  cmake -S . -B build-wheel -DLLTM_CUDA=$(or $(CUDA),ON) $(joined) \
	    -DCMAKE_CUDA_ARCHITECTURES="80-real;90-virtual;90a-real" $(CMAKE_ARGS); \
	  cmake --build build-wheel --target lltm_wheel_parts; \
	  python3 scripts/make_wheel.py $(ARGS)'

release-check:
	@$(call with,wheel) python3 scripts/release_check.py $(ARGS)

# $(call formatters,CLANG-FORMAT'S OPTIONS,RUFF CHECK'S,RUFF FORMAT'S)
formatters = $(call with,lint) sh -ec '\
  clang-format $(1) $$(git ls-files "*.h" "*.cpp" "*.cu" "*.cuh"); \
  ruff check $(2) $$(git ls-files "*.py"); ruff format $(3) $$(git ls-files "*.py")'

SHELL_SCRIPTS := scripts/in-environment scripts/sanitize .ci/run .ci/full .ci/setup.sh

# mypy reads the types of PyTorch and onnxscript, so it needs an environment with them.
lint:
	@$(call formatters,--dry-run --Werror,,--check)
	@$(call with,lint) shellcheck --external-sources $(SHELL_SCRIPTS)
	@$(call with,lint) python3 scripts/check_repository.py
	@$(call with,types) mypy --cache-dir $(BUILD)/mypy python/lltm

format:
	@$(call formatters,-i,--fix,)

clean:
	rm -rf build build-[0-9]* build-torch-* build-sanitize-* build-coverage build-wheel dist build-debug

distclean: clean
	rm -rf .venv .venv-lint .venv-nvcc .venv-rl .venv-torch-*
