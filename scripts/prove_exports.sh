#!/usr/bin/env bash
# Proves that exported plans do in real packages what was emulated: llm-compressor and torchao, each in an environment of
# its own (llm-compressor pins an older transformers). Takes minutes of downloads (about 3 GB on disk) and a minute of computing.
# usage: scripts/prove_exports.sh [FOLDER FOR THE ENVIRONMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."
root=${1:-build/proof}
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
made() { # made NAME PACKAGE…: an environment with PyTorch first, so that nothing replaces it
  local name=$1
  shift
  if [ ! -x "$root/$name/bin/python" ]; then
    python3 -m venv "$root/$name"
    "$root/$name/bin/python" -m pip install -q "torch==2.13.0"
    "$root/$name/bin/python" -m pip install -q "$@"
  fi
  "$root/$name/bin/python" -m pip install -q --no-deps -e .
}
made llm-compressor "llmcompressor==0.14.0.1"
made torchao "torchao==0.18.0" "transformers==5.24.0" accelerate pyyaml
status=0
"$root/llm-compressor/bin/python" studies/prove_exports.py llm-compressor || status=1
"$root/torchao/bin/python" studies/prove_exports.py torchao || status=1
exit $status
