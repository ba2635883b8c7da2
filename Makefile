# Every target is complete on a fresh machine that has Python 3.11 or newer with venv, a C compiler and make.
#
#   make demo     compile and run the examples       make lint    style, types, import rules
#   make test     lint, then the whole suite         make bench   the benchmark table
#   make test-long  what takes too long for that: tests marked so, interruptions and forks in the midst of compilations
#   make test-gpu, make bench-gpu   the same on an NVIDIA GPU; PYTHONPATH=. python -m pytest tests/gpu needs no network
#   make test-dist-gpu   training over NCCL on as many GPUs as there are; skipped where there are fewer than two
#   make sanitize-gpu  kernels under NVIDIA's compute-sanitizer, which must be on PATH
#   make sanitize the tests of the C extension under gcc's address and undefined-behaviour sanitizers
#   make test-matrix   a smoke on each supported Python and torch, in environments of its own
#   make wheels        the sdist and wheels in dist/
#   make check-wheels  tries them in fresh environments without a compiler
#
# PYTHON, VENV, VENV_FLAGS and TORCH can be set from outside: see CONTRIBUTING.md.

PYTHON ?= python3
VENV ?= .venv
VENV_FLAGS ?=
TORCH ?= $(shell grep '^torch==' constraints.txt)
JOBS ?= 2

# Another torch than the pinned one chooses its triton.
OTHER_TORCH := $(if $(filter $(TORCH),$(shell grep '^torch==' constraints.txt)),,-e '/^triton==/d')

RUN := $(VENV)/bin/python
STAMP := $(VENV)/ingot-installed
BUILT_FROM := $(wildcard ingot/native/*.c ingot/native/*.h)

.PHONY: demo test test-matrix test-long lint types house bench sanitize test-gpu bench-gpu
.PHONY: sanitize-gpu test-dist-gpu wheels check-wheels

demo: $(STAMP)
	$(RUN) -m examples.demo

# Each of the processes would compile the tests and what was changed of Ingot, where it may write no bytecode.
test test-long: export PYTHONDONTWRITEBYTECODE =

test: lint
	$(RUN) -m pytest -n $(JOBS) --ignore tests/test_house.py  # lint has run it

test-long: $(STAMP)
	$(RUN) -m pytest -n $(JOBS) -m long
	$(RUN) -m tests.interruptions --interruptions 1000 --forks 200

# MATRIX="python3.12:torch==2.11.0 /some/bin/python" chooses environments: see tests/matrix.py.
MATRIX ?=
test-matrix:
	$(PYTHON) -m tests.matrix $(MATRIX)

# PYTHONS="python3.12 /some/venv/bin/python" chooses others than the supported ones on PATH, and WHEEL_TORCH another torch.
PYTHONS ?=
WHEEL_TORCH ?= $(TORCH)
wheels:
	$(PYTHON) -m tests.wheels build $(PYTHONS)

check-wheels: wheels
	$(PYTHON) -m tests.wheels check $(PYTHONS) --torch '$(WHEEL_TORCH)'

lint: $(STAMP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format -q --check .
	$(VENV)/bin/clang-format --dry-run -Werror $(wildcard ingot/native/*.[ch] ingot/artifacts/*.h tests/artifacts/*.c)
	$(MAKE) --no-print-directory --output-sync -j $(JOBS) types house

# Each takes half a minute of one processor.
types: $(STAMP)
	$(RUN) -m mypy

house: $(STAMP)
	$(RUN) -m pytest tests/test_house.py

# Python takes each object from malloc, so that the sanitizer sees every one of them end.
SANITIZED ?= tests/native tests/test_guards_hold.py tests/test_modules.py tests/test_threads.py
sanitize: $(STAMP)
	INGOT_SANITIZE=address,undefined $(RUN) setup.py -q build_ext --inplace --force
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" PYTHONMALLOC=malloc \
		ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 $(RUN) -X faulthandler -m pytest $(SANITIZED); \
		status=$$?; $(RUN) setup.py -q build_ext --inplace --force; exit $$status

bench: $(STAMP)
	$(RUN) -m benchmarks

test-gpu: $(STAMP)
	$(RUN) -m pytest -n $(JOBS) tests/gpu

test-dist-gpu: $(STAMP)
	$(RUN) -m pytest -rs tests/gpu/test_many_gpus.py

sanitize-gpu: $(STAMP)
	$(RUN) -m tests.gpu.sanitize

bench-gpu: $(STAMP)
	$(RUN) -m benchmarks.gpu
	$(RUN) -m benchmarks.gpu_launches
	$(RUN) -m benchmarks.gpu_models

# torch comes first and alone, so that nothing else can choose its version. Bytecode is written here, as an editable
# install does not: where Python may write none, each process would compile what it imports.
$(STAMP): constraints.txt pyproject.toml setup.py $(BUILT_FROM)
	test -x $(RUN) || $(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	sed -e 's/^torch==.*/$(TORCH)/' $(OTHER_TORCH) constraints.txt > $(VENV)/constraints.txt
	$(RUN) -m pip install -q -c $(VENV)/constraints.txt '$(TORCH)'
	$(RUN) -m pip install -q -c $(VENV)/constraints.txt setuptools
	$(RUN) -m pip install -q -c $(VENV)/constraints.txt --no-build-isolation -e '.[test]'
	$(RUN) -m compileall -q ingot
	touch $@
