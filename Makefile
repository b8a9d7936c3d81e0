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
COMPILE = $(BIN)/python -m compileall -q -j 0 -x '/($(SELDOM))/' $(VENV)/lib > /dev/null  # on all cores, as pip does not
# Which tests share a worker: integration/conftest.py says it.
BY_WORKER := --dist loadfile --no-loadscope-reorder

# What the runs of pytest have done, for the page at the end of make test.
RESULTS := $(VENV)/results

.PHONY: setup demo-setup demo test test-all test-rest test-core test-quick test-proof test-docker test-slow test-units test-integration test-oldest test-long test-cluster test-spark test-python test-one image constraints prepare prepare-tests prepare-tools prepare-spark prepare-client soak histories lint lint-quick bench docs map pictures dist wheels clean

setup: $(VENV)/.ready

# The packages of kshare alone, which is what the demo needs. pyspark has no wheel, so pip builds one:
# compressing it would take longer than all the rest, and its jars are compressed already.
demo-setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kshare needs Python >= 3.11; name one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --config-settings=--build-option=--compression=stored pyspark
	$(BIN)/python -m pip install --quiet --no-compile --editable .
	touch $@

# What make test needs.
$(VENV)/.test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --no-compile --group test
	-$(COMPILE)
	touch $@

# What all else needs.
$(VENV)/.ready: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --no-compile --group dev
	-$(COMPILE)
	touch $@

demo: demo-setup
	$(BIN)/kshare demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The same, but for the types of what needs more packages.
lint-quick: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --exclude tests/docker kshare spark_plugin pyspark_kshare.py tests
	$(BIN)/lint-imports

# Less than eight minutes on two cores, set-up included; a page at the end says what was shown. Many
# tests wait for timeouts, so there are more workers than cores.
test:
	rm -rf $(RESULTS)
	$(MAKE) $(VENV)/.test
	$(MAKE) --keep-going --jobs=4 test-proof test-quick test-core lint-quick; \
		status=$$?; $(BIN)/python -m tests.support.shown $(RESULTS); exit $$status

# The core decides what is read: every branch of it is tested. Only its tests are traced: that is slow.
test-core: $(VENV)/.test
	$(BIN)/python -m pytest -q --hypothesis-profile=quick --results $(RESULTS)/core.json --cov=kshare/core --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100 tests/core

test-quick: $(VENV)/.test
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "not long and not slow" --hypothesis-profile=quick --results $(RESULTS)/units.json --ignore=tests/core --ignore=tests/docker tests

test-proof: $(VENV)/.test
	$(BIN)/python -m integration.prepare --proof
	$(BIN)/python -m integration.proof -n 4 --results $(RESULTS)/proof.json $(BY_WORKER)

# All tests but those that show a fault once more, in another combination or for longer: they are
# for test-long.
test-all:
	$(MAKE) test
	$(MAKE) test-rest

# What make test leaves out: nothing runs twice, but small worlds one step deeper, and laws with more
# and new examples. The integration tests begin with the files that take longest
# (integration/conftest.py).
test-rest:
	$(MAKE) --jobs=2 setup prepare-spark
	$(MAKE) --jobs=5 lint docs test-docker test-slow prepare
	$(MAKE) --jobs=2 test-integration test-oldest

test-slow: setup prepare-tests
	$(BIN)/python -m pytest -n 6 --dist worksteal -m "not long and (slow or deep or hypothesis)" --hypothesis-profile=all --results $(RESULTS)/slow.json --ignore=tests/docker tests

test-docker: setup
	$(BIN)/python -m pytest -q --results $(RESULTS)/docker.json tests/docker

test-integration: setup
	$(BIN)/python -m pytest -n 5 -m "not long and not proof" --results $(RESULTS)/integration.json $(BY_WORKER) --ignore=integration/alone integration

test-units: setup prepare-tests
	$(BIN)/python -m pytest -n 6 --dist worksteal -m "not long" --hypothesis-profile=all tests

test-oldest: setup
	$(BIN)/python -m integration.spark_versions --short 4.0.2

# What make test-all leaves out; at the end a stream, a consumer and a processor, for so many minutes.
RESIDENT_MINUTES ?= 85
test-long: setup prepare prepare-client $(VENV)/.wheels
	$(BIN)/python -m pytest -n 4 --dist worksteal -m long --hypothesis-profile=all tests
	$(BIN)/python -m pytest -n 4 -m long $(BY_WORKER) --ignore=integration/alone integration
	$(BIN)/python -m integration.residents --minutes $(RESIDENT_MINUTES)

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

# Histories in each mode of groups, each for so many minutes, and a verdict.
histories: setup
	$(BIN)/python -m integration.histories --minutes $(MINUTES)

bench: setup
	$(BIN)/python -m bench

# The documentation, as a site in site/; fails on a broken link, or a warning.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# After a module came or went, or its first line changed.
map: setup
	$(BIN)/python docs/map.py

# The commands of docker/Dockerfile, in a clean virtual environment.
# The packages of the image, the newest ones, each with its hashes. It needs the package index.
constraints: setup
	$(BIN)/python -m pip install --quiet uv
	head -n 2 docker/constraints.txt > docker/constraints.new
	$(BIN)/uv pip compile pyproject.toml --extra pandas --extra prometheus --python-version 3.11 --universal --generate-hashes --no-header --quiet >> docker/constraints.new
	mv docker/constraints.new docker/constraints.txt

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
	$(BIN)/cyclonedx-py requirements docker/constraints.txt --pyproject pyproject.toml --output-reproducible --output-file dist/kshare.cdx.json

# The wheels of all platforms, made on this one, and looked at: a minute and a half of CPU time.
wheels: $(VENV)/.wheels
	$(BIN)/python -m integration.wheels dist

# Zig links for machines that are not this one: 420 MB.
$(VENV)/.wheels: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --no-compile --group wheels
	touch $@

clean:
	rm -rf dist site $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
