#!/usr/bin/env bash
# Documents, plans, names and tables whose words are hostile, fed to everything that writes files: nothing foreign runs, all of it
# parses. tests/fuzz holds the same to a few each. About 25 minutes of one core for 2,000 a writer.
# usage: scripts/fuzz_writers.sh [HOW MANY EACH] [FURTHER WORDS FOR PYTEST, SUCH AS -k kubernetes]
set -euo pipefail
cd "$(dirname "$0")/.."
export TRILEMMA_ATTACKS=${1:-2000}
exec python -m pytest -q -p no:cacheprovider tests/fuzz/test_hostile_exports.py tests/fuzz/test_hostile_precision_exports.py \
  tests/fuzz/test_hostile_pages.py tests/fuzz/test_hostile_tables.py "${@:2}"
