# Everything a developer or CI runs. A virtual environment is made in .venv on first use; it needs Python >= 3.10 with
# venv and pip, and a C++ compiler.  Installing llama-cpp-python compiles llama.cpp once (pip keeps the wheel).

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
LLAMA  := llama-cpp-python>=0.3.36,<0.3.37
TORCH  := torch==2.13.0
SOURCES := $(shell find cpp python third_party -type f) CMakeLists.txt pyproject.toml

# llama.cpp's threads spin while they wait for each other, which takes minutes where others use the same cores; the
# package sees to that (python/dspark_cpp/_openmp.py), but tests import llama_cpp before it
TEST_ENV := GOMP_SPINCOUNT=1000

.PHONY: demo test consumers san tsan valgrind coverage fuzz cross bench parity check fmt clean

$(VENV)/.base:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q '$(LLAMA)' 'scikit-build-core>=0.10' 'cffi>=1.16' 'cmake>=3.26' ninja 'pybind11>=2.13'
	touch $@

# no build isolation: the headers come from the llama-cpp-python that is installed here
$(VENV)/.demo: $(VENV)/.base $(SOURCES)
	$(BIN)/python -m pip install -q --no-build-isolation '.[demo]'
	touch $@

# torch is pinned to a release whose wheel for CPUs is all that is downloaded
$(VENV)/.test: $(VENV)/.base $(SOURCES)
	$(BIN)/python -m pip install -q --no-build-isolation -Ccmake.define.DSPARK_PROBE=ON '$(TORCH)' '.[test,dev]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/python -m dspark_cpp demo

test: $(VENV)/.test
	$(TEST_ENV) $(BIN)/python -m pytest -q
	$(MAKE) check

# langchain, llama-index, instructor, outlines, lm-format-enforcer with our Llama; installing them takes a minute or two
consumers: $(VENV)/.test
	$(BIN)/python -m pip install -q --no-build-isolation '$(TORCH)' '.[test,consumers]'
	$(TEST_ENV) $(BIN)/python -m pytest -q tests/python/test_consumers_llama.py

parity: $(VENV)/.test
	$(TEST_ENV) $(BIN)/python -m pytest -q tests/parity

# the C++ tests, and some thousand inputs of each fuzz target, under AddressSanitizer and UndefinedBehaviorSanitizer
san: $(VENV)/.base
	$(BIN)/cmake -S . -B build/san -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	    -DPython_EXECUTABLE=$(abspath $(BIN))/python -DDSPARK_TESTS=ON -DDSPARK_SANITIZE=address,undefined
	$(BIN)/cmake --build build/san
	cd build/san && $(abspath $(BIN))/ctest --output-on-failure

# the C++ tests that run threads, under ThreadSanitizer, with ggml on one thread each: libgomp is not built for it
tsan: $(VENV)/.base
	$(BIN)/cmake -S . -B build/tsan -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	    -DPython_EXECUTABLE=$(abspath $(BIN))/python -DDSPARK_TESTS=ON -DDSPARK_SANITIZE=thread
	$(BIN)/cmake --build build/tsan --target test_threads test_session
	cd build/tsan && $(abspath $(BIN))/ctest -R "^test_(threads|session)$$" --output-on-failure

# the demo pair under valgrind's memcheck, some minutes a run.  Valgrind has no AVX-512, which pip's build of llama.cpp takes
# where the machine has it: another one is compiled, once (pip's cache would give the first one, and keep this one)
VALGRIND := $(abspath build/valgrind)
$(VALGRIND)/.base:
	$(PYTHON) -m venv $(VALGRIND)/venv
	$(VALGRIND)/venv/bin/python -m pip install -q --upgrade pip
	CMAKE_ARGS=-DGGML_NATIVE=OFF $(VALGRIND)/venv/bin/python -m pip wheel -q --no-cache-dir --no-deps \
	    --no-binary llama-cpp-python -w $(VALGRIND)/wheels '$(LLAMA)'
	$(VALGRIND)/venv/bin/python -m pip install -q $(VALGRIND)/wheels/*.whl 'scikit-build-core>=0.10' 'cffi>=1.16' 'cmake>=3.26' ninja
	touch $@

$(VALGRIND)/.demo: $(VALGRIND)/.base $(SOURCES)
	$(VALGRIND)/venv/bin/python -m pip install -q --no-build-isolation -Ccmake.build-type=RelWithDebInfo '.[demo]'
	touch $@

MEMCHECK := PYTHONMALLOC=malloc DSPARK_KERNELS_ISA=avx2 valgrind -q --error-exitcode=9 \
	--suppressions=tests/valgrind/third_parties.supp $(VALGRIND)/venv/bin/python tests/valgrind/demo_pair.py
valgrind: $(VALGRIND)/.demo
	$(MEMCHECK) off
	$(MEMCHECK) on

# the lines of C++ and Python that the tests run, in build/coverage: a build of its own that counts them.  Each file of tests is a
# part: called again it goes on behind those that are done (`rm -r build/coverage` begins anew), -j runs several at once.  What fails
# under the counters, as on a disk that is full, is told and counted all the same: whether tests pass is for `make test`
COVERAGE := $(abspath build/coverage)
COVERAGE_PARTS := $(patsubst %.py,$(COVERAGE)/done/%,$(shell find tests -name 'test_*.py'))
COVERAGE_ENV := PYTHONPATH=$(COVERAGE)/site COVERAGE_FILE=$(COVERAGE)/python/data $(TEST_ENV)
$(COVERAGE)/.built: $(VENV)/.test
	$(BIN)/python -m pip install -q 'gcovr>=8' 'coverage>=7.10'
	rm -rf $(COVERAGE)
	$(BIN)/python -m pip install -q --no-build-isolation --no-deps --target $(COVERAGE)/site -Cbuild-dir=build/coverage/cmake \
	    -Ccmake.define.DSPARK_PROBE=ON -Ccmake.define.DSPARK_TESTS=ON -Ccmake.define.CMAKE_C_FLAGS=--coverage \
	    -Ccmake.define.CMAKE_CXX_FLAGS=--coverage .
	mkdir -p $(COVERAGE)/python
	touch $@

$(COVERAGE)/done/ctest: $(COVERAGE)/.built
	cd $(COVERAGE)/cmake && $(abspath $(BIN))/ctest --output-on-failure
	mkdir -p $(@D) && touch $@

$(COVERAGE)/done/%: | $(COVERAGE)/.built
	mkdir -p $(@D)
	$(COVERAGE_ENV) $(BIN)/coverage run -m pytest -q $*.py > $@.log 2>&1 || { echo "$*:"; tail -n 3 $@.log; }
	touch $@

coverage: $(COVERAGE)/done/ctest $(COVERAGE_PARTS)
	-$(COVERAGE_ENV) $(BIN)/coverage combine -q --append
	$(COVERAGE_ENV) $(BIN)/coverage report --show-missing --skip-covered --sort=miss
	$(BIN)/gcovr --root . --filter cpp/src --exclude-throw-branches --gcov-ignore-parse-errors=negative_hits.warn_once_per_file \
	    --gcov-ignore-parse-errors=suspicious_hits.warn_once_per_file --sort uncovered-number --txt-metric line --merge-lines \
	    $(COVERAGE)/cmake

# libFuzzer and atheris on everything that reads files or arguments, each target for FUZZ_SECONDS; needs clang, on Linux
FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.test
	$(BIN)/python -m pip install -q 'atheris>=3.0'
	$(BIN)/cmake -S . -B build/fuzz -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	    -DPython_EXECUTABLE=$(abspath $(BIN))/python -DDSPARK_TESTS=ON -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
	    -DDSPARK_SANITIZE=address,undefined,fuzzer-no-link
	$(BIN)/cmake --build build/fuzz --target write_seeds fuzz_draft fuzz_saved fuzz_capi
	$(BIN)/python tests/fuzz/run_fuzz.py build/fuzz $(FUZZ_SECONDS)

# on any Linux machine: the kernels for ARM in an emulator, and the library compiled for Windows.  Needs g++-aarch64-linux-gnu,
# qemu-user-static and g++-mingw-w64-x86-64-posix
CROSS = $(BIN)/cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DPython_EXECUTABLE=$(abspath $(BIN))/python
cross: $(VENV)/.base
	$(CROSS) -B build/arm -DDSPARK_TESTS=ON -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	    -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
	    '-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static;-L;/usr/aarch64-linux-gnu'
	$(BIN)/cmake --build build/arm --target dspark test_kernel_tables test_attention_steps
	cd build/arm && $(abspath $(BIN))/ctest -R "kernel_tables|attention_steps" --output-on-failure
	$(CROSS) -B build/windows -DCMAKE_SYSTEM_NAME=Windows -DCMAKE_SYSTEM_PROCESSOR=AMD64 \
	    -DCMAKE_C_COMPILER=x86_64-w64-mingw32-gcc-posix -DCMAKE_CXX_COMPILER=x86_64-w64-mingw32-g++-posix
	$(BIN)/cmake --build build/windows --target dspark

bench: $(VENV)/.test
	$(BIN)/python bench/round_cost.py

check: $(VENV)/.test
	$(BIN)/ruff check python tests bench
	$(BIN)/ruff format --check python tests bench
	$(BIN)/mypy

fmt: $(VENV)/.test
	$(BIN)/ruff check --fix python tests bench
	$(BIN)/ruff format python tests bench

clean:
	rm -rf build $(VENV)
