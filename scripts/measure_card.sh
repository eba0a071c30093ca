#!/usr/bin/env bash
# Everything that is measured on a card, in one go: what it reaches, real training steps and generation of a model with random
# weights beside what is predicted, the low-precision lab, and what watching numerics costs.
#
#     scripts/measure_card.sh FOLDER            on the first card: 8B shape, about ten minutes on an H200
#     scripts/measure_card.sh FOLDER --small    the same on the processor with a small model, in a few minutes
#
# Each part writes FOLDER/PART.json (the last is text) and its seconds; one that fails leaves PART.err, and the others go on.
set -euo pipefail
folder=${1:?"name a folder for the results"}; mkdir -p "$folder"
if [ "${2:-}" = --small ]; then
    device=(--device cpu --threads 1); model=qwen3-0.6b; small=(--layers 2 --hidden 256); kind=--quick
    lengths=(64 128); batches=(1 2); lab=(--device cpu --steps 20 --seeds 0); watch=(--rounds 3 --sizes 1)
else
    device=(--device cuda); model=llama-3.1-8b; small=(); kind=--full
    lengths=(512 4096); batches=(1 8 32); lab=(--device cuda); watch=(--device cuda)
fi
# one measured card serves every prediction: nothing is measured twice
card="$folder/card.toml"

part() { # NAME COMMAND…
    local name=$1 started=$SECONDS; shift
    if "$@" > "$folder/$name.json" 2> "$folder/$name.err"; then rm -f "$folder/$name.err"; else
        echo "$name: exit $? (see $folder/$name.err)"; fi
    echo "$name: $((SECONDS - started)) s"
}

part card trilemma measure $kind "${device[@]}" -o "$card" --json
pilot=(trilemma measure pilot "$model" "${small[@]}" "${device[@]}" --gpu "$card" --json)
for recompute in none full; do
    part "step-$recompute" "${pilot[@]}" --only training --recompute $recompute --seq "${lengths[0]}" --micro-batch 1
done
for batch in "${batches[@]}"; do
    for isl in "${lengths[@]}"; do
        part "generation-$batch-$isl" "${pilot[@]}" --only generation --batch "$batch" --isl "$isl" --osl 32
    done
done
part lab trilemma precision train-lab "${lab[@]}" --json
part watch python "$(dirname "$0")/../benchmarks/watch_overhead.py" "${watch[@]}"
