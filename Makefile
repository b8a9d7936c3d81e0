# Everything a new clone needs is made here: the virtual environment and, for the tests, the jars
# of a real Kafka broker and of Spark's own kafka source. Needs Python >= 3.11 and Java >= 17.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYSPARK_PYTHON := $(abspath $(BIN)/kshare-python)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
# Spark finds its own pyspark, not one that happens to be set up on the machine.
unexport SPARK_HOME
# Every query starts fresh interpreters: let them keep what they compile.
unexport PYTHONDONTWRITEBYTECODE
# Large packages of which little is imported, or by few: Python compiles that when it is.
SELDOM := fontTools|grafana_foundation_sdk|matplotlib|mllib|mypyc?|numba|pip|playwright|pygments|pyspark/pandas|scipy|setuptools|tests
# Which tests share a worker: integration/conftest.py says it.
BY_WORKER := --dist loadfile --no-loadscope-reorder

.PHONY: setup demo test test-core test-units test-integration test-oldest test-long test-cluster test-spark test-python test-one image prepare prepare-tests prepare-tools prepare-spark prepare-client soak lint bench docs map pictures dist clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kshare needs Python >= 3.11; name one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --editable . --group dev
	-$(BIN)/python -m compileall -q -j 0 -x '/($(SELDOM))/' $(VENV)/lib > /dev/null  # on all cores, as pip does not
	touch $@

demo: setup
	$(BIN)/kshare demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Many tests wait for timeouts, so there are more workers than cores. The integration tests begin
# with the files that take longest (integration/conftest.py). Those that show a fault once more, in
# another combination or for longer, are for test-long.
test:
	$(MAKE) --jobs=2 setup prepare-spark
	$(MAKE) --jobs=5 lint docs test-core test-units prepare
	$(MAKE) --jobs=2 test-integration test-oldest

test-units: setup prepare-tests
	$(BIN)/python -m pytest -n 6 --dist worksteal -m "not long" tests

test-integration: setup
	$(BIN)/python -m pytest -n 5 -m "not long" $(BY_WORKER) --ignore=integration/alone integration

test-oldest: setup
	$(BIN)/python -m integration.spark_versions --short 4.0.2

# What make test leaves out.
test-long: setup prepare prepare-client
	$(BIN)/python -m pytest -n 4 --dist worksteal -m long tests
	$(BIN)/python -m pytest -n 4 -m long $(BY_WORKER) --ignore=integration/alone integration

# The core decides what is read: every branch of it is tested. Few examples show that, as tracing is
# slow; the other tests have all of them.
test-core: setup
	$(BIN)/python -m pytest -n 2 --hypothesis-profile=coverage --cov=kshare/core --cov-branch --cov-fail-under=100 tests/core

# Fetches a Kafka broker and Spark's own Kafka source, once, and compiles the tests, which each worker
# of pytest would do for itself. A test that cannot be collected is reported when the tests run.
prepare: prepare-tests prepare-tools prepare-spark

prepare-tests: setup
	-$(BIN)/python -m pytest --collect-only --quiet tests integration > /dev/null

prepare-tools: setup
	$(BIN)/python -m integration.prepare

# Needs no more than Python, so it is made while pip keeps one core busy.
prepare-spark:
	$(PYTHON) -m integration.spark_versions --install 4.0.2

prepare-client: setup
	$(BIN)/python -m integration.connect

# The parity scenarios on the newest Spark 4.0, 4.1, 4.2 and 4.3, each in an environment of its own.
test-spark: setup
	$(BIN)/python -m integration.spark_versions

# The unit tests, and streams through Spark, on each of these versions of Python that is installed.
PYTHONS ?= 3.11 3.12 3.13 3.14
test-python:
	for version in $(PYTHONS); do \
		if python$$version -c '' 2> /dev/null; \
		then $(MAKE) test-one VENV=.venv-$$version PYTHON=python$$version || exit 1; \
		else echo "python$$version is not installed"; fi; \
	done

# Those on $(PYTHON), in $(VENV).
test-one: test-units
	$(BIN)/python -m pytest integration/test_interpreter.py integration/test_keys.py

# What is measured on a cluster of Spark, and a packed environment: about four minutes, with nothing beside.
test-cluster: setup prepare
	$(BIN)/python -m pytest -s integration/alone

# Every fault of the project with a new seed, for so many minutes, and a verdict.
MINUTES ?= 10
soak: setup
	$(BIN)/python -m integration.soak --minutes $(MINUTES)

bench: setup
	$(BIN)/python -m bench

# The documentation, as a site in site/; fails on a broken link, or a warning.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# After a module came or went, or its first line changed.
map: setup
	$(BIN)/python docs/map.py

# The commands of docker/Dockerfile, in a clean virtual environment.
image: setup
	$(BIN)/python -m integration.image

# After a change of docs/pictures.py, docs/figures.toml or kshare/monitor/plot.py.
pictures: setup
	$(BIN)/python docs/pictures.py

# What is released: built, and installed in an environment that has nothing else.
dist: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m integration.clean_install dist

clean:
	rm -rf dist site $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
