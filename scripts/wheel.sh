#!/bin/bash
# Builds the release wheel into dist/ and installs it into .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf dist
.venv/bin/maturin build --release --quiet --out dist
.venv/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps dist/*.whl
