"""What preference and reinforcement training holds beside the model that it trains, from what a trainer's flags say."""

from __future__ import annotations

from trilemma.engines.transformers.formats import recipe_of
from trilemma.engines.transformers.run import TrainerRun
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.models.naming import without_url
from trilemma.models.parameters import count
from trilemma.models.resolve import load_model
from trilemma.plans.companions import Companion, Frees, Role

#: What a step's seconds leave out where a trainer also generates and scores.
UPDATE_ONLY = PlanWarning(
    code="update-only",
    message="seconds are those of the update: generation, rewards and passes of frozen models come on top",
)


#: A copy of the trained model: how it is held changed with releases.
BESIDE = PlanWarning(
    code="copy-beside",
    message="a frozen copy of the model runs beside; how it is loaded and sharded differs by release; its logits are not counted",
)


def frozen(
    run: TrainerRun, name: str, *, of: str | None = None, offloaded: bool = False, sharded: bool | None = None
) -> None:
    """Add a model that only runs: a copy of the trained one, or the one called ``of``.

    Frameworks shard it where they shard weights (ZeRO-3, FSDP) and hold it whole on each GPU otherwise; in 16 bits under
    DeepSpeed, else in the format in which the trained model is held.
    """
    if of is None:
        run.warnings.append(BESIDE)
    held = recipe_of(run)
    narrow = run.sharding.by == "deepspeed" or held.weights in ("bf16", "fp16")
    spread = run.sharding.zero == 3 if sharded is None else sharded
    run.companions += _companion(
        run, name, "frozen", of, fmt="bf16" if narrow or of is not None else "fp32", sharded=spread, offloaded=offloaded
    )


def trained(run: TrainerRun, name: str, *, of: str | None = None, offloaded: bool = False) -> None:
    """Add another model that is trained beside, its state spread as that of the first."""
    run.companions += _companion(run, name, "trained", of, sharded=run.sharding.zero == 3, offloaded=offloaded)


def generating(run: TrainerRun, share: float, *, asleep: bool, where: str, frees: Frees = "nothing") -> None:
    """Add an inference engine on the same cards that takes ``share`` of each. Raises `InputError`."""
    if not 0 < share < 1:
        raise InputError(
            f"{where} {share:g} is not a share of the card's memory; give one between 0 and 1, such as 0.3"
        )
    run.companions.append(Companion(name="generation engine", role="engine", share=share, asleep=asleep, frees=frees))
    run.warnings.append(beside_share(asleep=asleep))


def gathering(run: TrainerRun) -> None:
    """Where a model generates by itself under ZeRO-3, its weights are gathered whole on every card first (TRL
    models/utils.py, unwrap_model_for_generation; ``ds3_gather_for_generation``)."""
    if run.sharding.zero == 3:
        run.companions.append(Companion(name="weights gathered to generate", role="gathered", format="bf16"))


def beside_share(*, asleep: bool) -> PlanWarning:
    """What no line counts of an engine on the same cards."""
    text = (
        "what a sleeping engine leaves on the card (graphs, its own communicators) is not counted"
        if asleep
        else "what the engine holds beside its share (graphs, its own communicators) is not counted"
    )
    return PlanWarning(code="not-counted", message=text)


def _companion(
    run: TrainerRun,
    name: str,
    role: Role,
    of: str | None,
    *,
    fmt: str = "bf16",
    sharded: bool = False,
    offloaded: bool = False,
) -> list[Companion]:
    parameters = None
    if of is not None and without_url(of) != without_url(run.model):
        try:
            parameters = float(count(load_model(of)).total)
        except InputError:
            text = f"{name} {shorten(of)} is not a known model; counted as large as the one that is trained"
            run.warnings.append(PlanWarning(code="not-counted", message=text))
    return [Companion(name=name, role=role, parameters=parameters, format=fmt, sharded=sharded, offloaded=offloaded)]
