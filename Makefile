# The two commands of the README are `make demo` and `make test`; each sets up what it needs.

.PHONY: demo test soak lint rust-test python-test notebooks wheel bench-pgbench bench-mysqlslap clean
.DEFAULT_GOAL := demo

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
	$(MAKE) rust-test python-test notebooks

lint:
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
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

wheel:
	scripts/setup.sh build
	scripts/wheel.sh

clean:
	cargo clean
	rm -rf .venv dist
