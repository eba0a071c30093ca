"""What the scripts behind published figures set and their rows do not say: ``data/validation/launch_scripts.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.data.files import read_data
from trilemma.hardware.accelerator import Accelerator
from trilemma.measured.tables import Row
from trilemma.plans import Layout


def as_launched(
    row: Row, layout: Layout, *, engine: str, accelerator: Accelerator, mixture: bool, assumed: list[str]
) -> Layout:
    """``layout`` as the row's script cut the model, where its columns say the ranks alone."""
    for script in read_data("validation/launch_scripts.toml")["script"]:
        alone = script.get("attends_alone") and layout.tp > 1 and layout.dp == 1
        if alone and mixture and _is_of(script, row, engine, accelerator):
            ranks = int(layout.tp)
            assumed.append(f"attention of its own on each of {ranks} ranks: {script['source']}")
            return Layout(tp=1, pp=layout.pp, dp=ranks, ep=ranks)
    return layout


def polls_every(row: Row, *, engine: str, accelerator: Accelerator, in_flight: float) -> float:
    """Passes from one look of the scheduler for new requests to the next; 1 where no script says otherwise."""
    for script in read_data("validation/launch_scripts.toml")["script"]:
        if "polls" in script and _is_of(script, row, engine, accelerator):
            return float(max((start, every) for start, every in script["polls"] if in_flight >= start)[1])
    return 1.0


def _is_of(script: Mapping[str, Any], row: Row, engine: str, accelerator: Accelerator) -> bool:
    generation = accelerator.architecture.split(" ")[0]
    return (
        script["engine"] == engine
        and row.text("source_ref").startswith(script.get("found_in", ""))
        and script.get("notes", "") in row.text("notes")
        and generation in script.get("architectures", (generation,))
    )
