# Two commands on a machine with Python >= 3.11, g++, make and git: `make demo` and `make test`.
PYTHON ?= python3
# uv lives in a virtual environment of its own; it installs exactly what uv.lock says.
UV := .uv/bin/uv
RUN := .venv/bin
export UV_PYTHON_DOWNLOADS := never
# Otherwise each process compiles TensorFlow's 10,000 files anew where Python may not write bytecode: 12 s instead of 5.
export UV_COMPILE_BYTECODE := 1
# The same of our own modules, which every process of a test imports.
unexport PYTHONDONTWRITEBYTECODE
# TensorFlow's start-up chatter hides what a test prints.
export TF_CPP_MIN_LOG_LEVEL ?= 2

# The longest files first (tests/conftest.py), then in the order of their folders: the quick ones last, so that both processes
# end together.
# A process that hangs or dies is replaced once, since the next one begins with the same test.
# Which tests, files and folders took longest stands in what the run prints.
TESTS := -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 1 --durations 50

.PHONY: demo docs gpu-check test test-all test-fast test-matrix release sweep fuzz faults check install install-nccl dist setup-requirements protos format clean

demo: install
	$(RUN)/python benchmarks/demo.py

test: install
	$(RUN)/python $(TESTS)

# The same and what takes too long for every change: see `thorough` in tests/conftest.py, and tests/fidelity/selection.py.
test-all: install
	FDT_ALL_TESTS=1 $(RUN)/python $(TESTS)

test-fast: install
	$(RUN)/python -m pytest tests/unit -q

check: install
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/mypy --config-file benchmarks/mypy.ini benchmarks
	$(RUN)/mypy --config-file tests/mypy.ini tests
	$(RUN)/lint-imports

format: install
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

install: .venv/installed

$(UV):
	$(PYTHON) -m venv .uv
	.uv/bin/pip install --quiet --disable-pip-version-check "uv>=0.9"

.venv/installed: pyproject.toml uv.lock $(wildcard fdt/base/horovod_patches/*.patch) | $(UV)
	$(UV) sync --locked --extra pool --group horovod --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')"
	$(SETUP)
	@touch $@

# Horovod and our own operations, as in any environment; it installs with uv, since this one has no pip.
SETUP = PATH="$(abspath .uv/bin):$$PATH" $(RUN)/fdt setup

# On machines with GPUs: the same, with Horovod's operations on the GPU through NCCL (needs CUDA and NCCL installed).
install-nccl: | $(UV)
	$(UV) sync --locked --extra pool --group horovod --inexact
	HOROVOD_GPU_OPERATIONS=NCCL $(SETUP) --rebuild
	@touch .venv/installed

# What is given away: sources and wheel, in dist/; and what the image installs beside them, with hashes.
dist: | $(UV)
	$(UV) build --quiet
	$(UV) export --quiet --locked --no-dev --no-emit-project --extra pool --no-annotate --no-header -o dist/requirements.txt

# The lock's versions, where it has them: it does not know what Horovod is built with.
setup-requirements: | $(UV)
	@{ echo "# What \`fdt setup\` installs: Horovod, and what its build needs, by their files' hashes; by \`make setup-requirements\`."; \
		{ printf '%s\n' "horovod==0.28.1" pip "setuptools<81" wheel "cmake<4"; \
		$(UV) export --quiet --locked --no-dev --only-group horovod --no-annotate --no-header --no-hashes | \
			grep -E "^(cloudpickle|packaging|psutil|pyyaml)=="; } | $(UV) pip compile - --quiet --no-deps \
		--generate-hashes --universal --python-version 3.11 --no-annotate --no-header; } > fdt/cli/installation/requirements.txt

# By an old compiler: stubs work with every protobuf from theirs on, and TensorFlow 2.16 takes none above 4.
protos: | $(UV)
	$(UV) run --no-project --isolated --python 3.11 --with grpcio-tools==1.62.3 --with "setuptools<81" \
		python -m grpc_tools.protoc -I protos --python_out=. --pyi_out=. --grpc_python_out=. protos/fdt/v1/*.proto

# Clients on other versions of TensorFlow and Python: installs each, which takes a while.
test-matrix: install
	FDT_UV="$(abspath $(UV))" $(RUN)/python -m pytest tests/matrix

# What is given away, built and tried in empty environments of each Python.
release: dist docs | $(UV)
	PATH="$(abspath .uv/bin):$$PATH" $(RUN)/fdt setup --wheel dist
	FDT_UV="$(abspath $(UV))" FDT_DIST="$(abspath dist)" $(RUN)/python -m pytest tests/matrix/test_release.py

# Random input for what reads bytes of strangers, for some minutes; `make test` takes a few seconds for it.
fuzz: install
	FDT_FUZZ_EXAMPLES=$${FDT_FUZZ_EXAMPLES:-5000} $(RUN)/python -m pytest tests/fuzz

# The faults that tests/faults has a few of, many times: kills while snapshots are written, jobs and clients on one pool, lost
# workers of every kind of training.
faults: install
	FDT_ALL_TESTS=1 FDT_SNAPSHOT_KILLS=500 FDT_LEAK_JOBS=200 FDT_LEAK_CLIENTS=20 $(RUN)/python -m pytest \
		tests/faults/test_snapshots.py tests/faults/test_leaks.py tests/faults/test_lost_rank.py -s

# On a machine with an NVIDIA GPU: plain python's figures, memory, kills; then steps a second. Some ten minutes.
gpu-check: install
	$(RUN)/python -m pytest tests/gpu
	$(RUN)/python benchmarks/gpu.py

# The documentation site, into site/; a broken link fails it.
docs: install
	$(RUN)/mkdocs build --strict

clean:
	rm -rf .venv .uv

# Public scripts under plain python and under fdt (tests/sweep); their repositories are checked out in CHECKOUTS, as OWNER+NAME.
sweep: install
	$(RUN)/python -m tests.sweep "$(CHECKOUTS)" --mode sync async
