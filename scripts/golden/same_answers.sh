#!/usr/bin/env bash
# Do the golden questions get the same answers, to the last digit, as at another revision?
# Usage: scripts/golden/same_answers.sh REVISION [--only COMMAND]. Answers of a revision are kept in ${TRILEMMA_GOLDEN:-a temporary folder}.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
revision=$(git rev-parse "${1:?a revision to compare with}"); shift
store=${TRILEMMA_GOLDEN:-$(mktemp -d)}; before=$store/$revision; now=$(mktemp -d)
trap 'rm -rf "$now"' EXIT
questions=$PWD/scripts/golden
if [ ! -d "$before" ]; then
  tree=$(mktemp -d); git worktree add -q --detach "$tree" "$revision"
  PYTHONPATH=$tree/src python3 "$questions/answers.py" "$before" 
  git worktree remove --force "$tree"
fi
PYTHONPATH=$PWD/src python3 "$questions/answers.py" "$now" "$@"
changed=0
for file in "$now"/*.txt; do
  diff -u "$before/$(basename "$file")" "$file" || changed=$((changed + 1))
done
echo "$changed of $(ls "$now" | wc -l) answers differ from ${revision:0:8}"
[ "$changed" -eq 0 ]
