"""Variants of a model, one matrix group in another format each, carried through its layers together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from trilemma.precision.emulation import Emulator, MatrixGroup


def variant_pass(
    emulator: Emulator,
    batch: Sequence[tuple[MatrixGroup, str]],
    reference: torch.Tensor,
    saved: tuple[int, torch.Tensor] | None,
    upcoming: MatrixGroup | None,
    losses: dict[tuple[str, str], tuple[float, float]],
) -> tuple[int, torch.Tensor] | None:
    """Carry the variants of ``batch`` through the layers. Gives the clean state at the layer in which the next pass begins."""
    from trilemma.precision.decoder import apply_layer

    depth = emulator.shape.layers
    states = _before_layers(emulator, batch, reference)
    table = emulator.tensor("model.embed_tokens.weight")
    first, clean = saved if saved is not None else (0, emulator.embedded(table))
    if states and first > 0 and any(group.role == "embedding" for group, _ in batch):
        first, clean = 0, emulator.embedded(table)
    next_first = depth if upcoming is None or upcoming.layer is None else upcoming.layer
    kept = (first, clean)
    for index in range(first, depth):
        if index == next_first:
            kept = (index, clean)
        own = [(group, fmt) for group, fmt in batch if group.layer == index]
        later = any(group.layer is not None and group.layer > index for group, _ in batch)
        if not (states or own or later) and (upcoming is None or index >= next_first):
            break
        weights = emulator.layer(index)
        prefix = f"model.layers.{index}."
        for key, state in states.items():
            if key[0] != "head":
                states[key] = apply_layer(state, weights, emulator.shape, emulator.rotation)
        for group, fmt in own:
            changed_weights = {
                name.removeprefix(prefix): value for name, value in emulator.in_format(group, fmt).items()
            }
            states[group.name, fmt] = apply_layer(clean, weights | changed_weights, emulator.shape, emulator.rotation)
        clean = apply_layer(clean, weights, emulator.shape, emulator.rotation)
    if next_first >= depth:
        kept = (depth, reference)
    _compare_all(emulator, reference, states, losses)
    return kept


def _before_layers(
    emulator: Emulator, batch: Sequence[tuple[MatrixGroup, str]], reference: torch.Tensor
) -> dict[tuple[str, str], torch.Tensor]:
    """States of the variants that no layer makes: embeddings in a format, and those of the head, which sees the reference."""
    states: dict[tuple[str, str], torch.Tensor] = {}
    for group, fmt in batch:
        if group.role == "embedding":
            states[group.name, fmt] = emulator.embedded(emulator.in_format(group, fmt)[group.tensors[0]])
        elif group.layer is None:
            states[group.name, fmt] = reference
    return states


def _compare_all(
    emulator: Emulator,
    reference: torch.Tensor,
    states: Mapping[tuple[str, str], torch.Tensor],
    losses: dict[tuple[str, str], tuple[float, float]],
) -> None:
    """What each variant loses, by its state after the last layer."""
    matrix = emulator.head_matrix()
    for (name, fmt), state in states.items():
        # made again rather than kept: large vocabularies take gigabytes for each format
        own_head = name == "head" or (name == "embedding" and emulator.shape.tied)
        changed = next(iter(emulator.in_format(emulator.groups[name], fmt).values())) if own_head else matrix
        quality = emulator.compare(reference, state, matrix, changed)
        losses[name, fmt] = (quality.kl, quality.perplexity)
