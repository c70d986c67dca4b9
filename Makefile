# The two commands of the README are `make demo` and `make test`; each sets up what it needs.

.PHONY: demo test soak lint rust-test python-test notebooks wheel bench-pgbench bench-mysqlslap bench-metrics clean
.DEFAULT_GOAL := demo

# Images of PostgreSQL with page sizes that specs and tests need.
PAGES := postgres-block-1kB-wal-1kB postgres-block-8kB-wal-8kB
MORE_PAGES := postgres-block-4kB-wal-4kB postgres-block-32kB-wal-32kB

export PATH := $(CURDIR)/.venv/bin:$(PATH)

demo:
	scripts/setup.sh demo
	scripts/wheel.sh
	scripts/demo.sh

# One case of every kind; what CI runs.
test:
	scripts/setup.sh test
	$(MAKE) lint
	scripts/wheel.sh
	bedplate images build
	bedplate images build $(PAGES)
	$(MAKE) rust-test python-test notebooks

lint:
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
	cargo fetch --locked --quiet
	cargo deny --offline --log-level error check bans licenses sources
	ruff check .
	ruff format --check .
	pyright --warnings

rust-test:
	cargo nextest run --workspace --locked
	cargo test --workspace --doc --locked --quiet

python-test:
	pytest

notebooks:
	pytest --no-header notebooks

# What takes longer: the kill drills in full.
soak:
	scripts/setup.sh test
	scripts/wheel.sh
	bedplate images build
	bedplate images build $(PAGES) $(MORE_PAGES)
	cargo nextest run --workspace --locked
	pytest -s -m "soak or not soak"

# Ours and pgbench in turns on one server; writes a table with ratios and intervals.
bench-pgbench:
	scripts/setup.sh test
	scripts/wheel.sh
	python bench/pgbench.py

# Likewise ours, mysqlslap and sysbench on a MariaDB server.
bench-mysqlslap:
	scripts/setup.sh test
	scripts/wheel.sh
	python bench/mysqlslap.py

# Trials with and without metrics.
bench-metrics:
	scripts/setup.sh test
	scripts/wheel.sh
	python bench/metrics.py

wheel:
	scripts/setup.sh build
	scripts/wheel.sh

clean:
	cargo clean
	rm -rf .venv dist
