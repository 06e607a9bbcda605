# make demo         install, then compare local training, two methods and a blend on built-in real data, five seeds
# make test         install, then lint, type-check and test
# make test-slow    the statistical and learning checks that take longer; pages too, where Debian's chromium is installed
# make mutants      break the code of privacy and of methods in many ways and see that the tests notice; RESUME=1 goes on
#                   with an interrupted run
# make audit        attack what every method claims, in each variant, at three epsilons: a table
# make faults       kill runs, damage stores, fuzz input, fill disks, restore sites: no promise breaks, half an hour
# make deployments  kill deployments at 200 random moments, restore 50 sites, send sites and servers 10,000 hostile
#                   messages and flip 1,000 bits
# make bench        speed against bare PyTorch loops and what was aimed at, about a quarter of an hour
# make bench-scale  how time and memory grow with clients, rounds and parameters
# make bench-peers  the same against Flower, pfl and Opacus, each in an environment of its own under .bench/
# make docs         build the documentation into build/docs, from the pages of docs/ and from the code, without network
# make screenshots  pictures of pages in a browser, into build/screenshots: needs Debian's package chromium
# make constraints  write constraints.txt anew: the newest releases that pyproject.toml admits, torch as it is
# make readme       write the README's table of methods anew, from the code's own declarations

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
EXTRAS := report,data,cluster,docs,dev

.PHONY: demo test test-slow mutants audit faults deployments bench bench-scale bench-peers docs screenshots readme constraints \
	format clean

demo: $(INSTALLED)
	$(BIN)/sordino compare experiments/demo.toml --methods "local,dp-fedavg,feddpa[tau=0.8],dp-fedavg[personal=blend]" --seeds 5 --store .sordino/demo

test: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

test-slow: $(INSTALLED)
	$(BIN)/pytest -n 2 -m slow

mutants: $(INSTALLED)
	$(BIN)/python tests/mutants.py $(if $(RESUME),--resume)

audit: $(INSTALLED)
	PYTHONPATH=tests $(BIN)/python tests/audits.py

faults: $(INSTALLED)
	PYTHONPATH=tests $(BIN)/python -m faults

deployments: $(INSTALLED)
	PYTHONPATH=tests:tests/deploy $(BIN)/python -m kill_points 200
	PYTHONPATH=tests:tests/deploy $(BIN)/python -m restored 50
	SORDINO_FUZZ=10000 $(BIN)/pytest -n 0 --timeout 0 -m "slow or not slow" tests/deploy/test_fuzz.py tests/deploy/test_damage.py

bench: $(INSTALLED)
	$(BIN)/python benchmarks/bench.py

bench-scale: $(INSTALLED)
	$(BIN)/python benchmarks/scale.py

bench-peers: $(INSTALLED)
	$(BIN)/python benchmarks/bench_peers.py

docs: $(INSTALLED)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "build/docs/index.html opens in any browser."

screenshots: $(INSTALLED)
	@command -v chromium >/dev/null || { echo "Pictures of pages need Debian's package chromium: apt-get install chromium"; exit 2; }
	PYTHONPATH=tests:tests/deploy:tests/board $(BIN)/python tests/screenshots.py build/screenshots

readme: $(INSTALLED)
	$(BIN)/python -c "from pathlib import Path; from sordino.report.terminal.catalogue import with_table; \
	  readme = Path('README.md'); readme.write_text(with_table(readme.read_text()))"

constraints:
	$(PYTHON) -m venv --clear build/newest
	build/newest/bin/pip install --quiet --disable-pip-version-check -e ".[$(EXTRAS)]" $$(grep '^torch==' constraints.txt)
	{ grep '^#' constraints.txt; build/newest/bin/pip freeze --exclude-editable | sed 's/+cpu$$//'; } > build/constraints.txt
	mv build/constraints.txt constraints.txt

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[$(EXTRAS)]" -c constraints.txt
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) .sordino .bench build docs/made *.egg-info
