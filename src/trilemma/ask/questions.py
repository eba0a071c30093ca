"""The seven questions: `fit`, `check`, `plan`, `train`, `compare`, `recommend`, `upgrade`.

Options are keywords named as on the command line.

Each takes words, numbers or nouns: a model is a name, hub id, path or `Model`; cards are ``"h200-sxm:8"``, an accelerator or
a `Cluster`. Each raises `InputError` for what cannot be, naming the option and what would be right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trilemma.ask.options import CHECK, COMPARE, FIT, OPTIONS, PLAN, RECOMMEND, UPGRADE, settled
from trilemma.ask.purchase_options import PURCHASE
from trilemma.ask.training_options import TRAINING
from trilemma.errors import InputError
from trilemma.plans import Plan
from trilemma.question import Question

if TYPE_CHECKING:
    from trilemma.ask.answers import Answer
    from trilemma.ask.compared import CardsCompared, TrainingCardsCompared, VersionsCompared
    from trilemma.ask.recommended import CardsRecommended
    from trilemma.ask.replayed import PlansRanked
    from trilemma.ask.searched import ServingPlans, TrainingPlans

#: The words that ask for training instead of serving.
_TRAINS = ("seq", "train")


def fit(model: Any, gpu: Any = None, *, plan: Any = None, workload: Any = None, **options: Any) -> Answer:
    """One plan in full: memory line by line, KV capacity, speed, cost, verdict, and what would make it fit.

    ``fit("llama-3.1-70b", "h200-sxm:8", isl=4096, osl=1024, concurrency=64)``. With ``seq`` and ``global_batch`` it is a plan
    of training. ``plan`` and ``workload`` are nouns in place of the options that make them; a `Question` says everything.
    """
    if isinstance(model, Question):
        return _of_question(model, gpu, options)
    if gpu is None:
        raise InputError("`gpu` is missing; name the cards, such as h200-sxm:8, or auto")
    gpu = named_cards(gpu)
    if _trains(options) or (plan is not None and not isinstance(plan, Plan)):
        from trilemma.ask.training import one_plan as one_training_plan

        return one_training_plan(model, gpu, settled(FIT, options, TRAINING), plan=plan, workload=workload)
    from trilemma.ask.serving import one_plan

    asked = settled(FIT, options)
    return one_plan(model, gpu, asked, plan=plan, workload=workload)


def plan(model: Any, gpu: Any, *, workload: Any = None, **options: Any) -> ServingPlans | TrainingPlans | PlansRanked:
    """The best plans of all layouts, precisions and loads, and why the others lose.

    ``plan("llama-3.1-70b", "h200-sxm:8", isl=4096, osl=1024, ttft=1000).best``. With ``seq`` it is `train`; with a
    ``trace`` plans are ranked by what its users see.
    """
    if _trains(options):
        return train(model, gpu, workload=workload, **options)
    from trilemma.ask.serving import search

    asked = settled(PLAN, options)
    if asked.trace is not None and workload is None:
        from trilemma.ask.replayed import ranked_under_trace

        return ranked_under_trace(model, named_cards(gpu), asked)
    return search(model, named_cards(gpu), asked, workload=workload)


def train(model: Any, gpu: Any, *, workload: Any = None, **options: Any) -> TrainingPlans:
    """The best training plans of all layouts.

    ``train("llama-3.1-8b", "h100-sxm:16", seq=8192, global_batch=128).plans[0]``.
    """
    from trilemma.ask.training import search

    return search(model, named_cards(gpu), settled(PLAN, options, TRAINING), workload=workload)


def check(command: str | Sequence[str], gpu: Any = None, **options: Any) -> Answer:
    """An engine's own command: will it start, at which stage does it die, and what would make it?

    ``check("vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 8", gpu="h200-sxm:8").remedies``. ``command`` is text or
    a list of words, as it is run or deployed.
    """
    from trilemma.ask.checking import checked, with_pasted, words_of

    asked, words = settled(CHECK, options), words_of(command)
    if not words and asked.log is not None:
        from trilemma.diagnosis.start_log import start_in
        from trilemma.engines import started_command

        words = started_command(*start_in(asked.log))
    if not words:
        raise InputError("no engine command given; give one such as vllm serve MODEL")
    answer = checked(words, named_cards(gpu), asked)
    return with_pasted(answer, command)


def compare(
    model: Any, gpus: Sequence[Any], *, workload: Any = None, **options: Any
) -> CardsCompared | TrainingCardsCompared:
    """GPUs side by side for one job, each with its best plan: ``compare("qwen3-32b", ["h100-sxm:2", "l40s:4"])``.

    With ``seq`` and ``global_batch`` it is a job of training.
    """
    if _trains(options):
        from trilemma.ask.training import side_by_side as trained

        cards = [named_cards(gpu) for gpu in ([gpus] if isinstance(gpus, str) else gpus)]
        return trained(model, cards, settled(PLAN, options, TRAINING), workload=workload)
    from trilemma.ask.serving import side_by_side

    asked = settled(COMPARE, options)
    if workload is None and asked.serve is None and asked.isl is None and asked.osl is None:
        asked.serve = "1024/1024"
    cards = [named_cards(gpu) for gpu in ([gpus] if isinstance(gpus, str) else gpus)]
    return side_by_side(model, cards, asked, workload=workload)


def recommend(
    model: Any, *, progress: Callable[[int, int, str], None] | None = None, **options: Any
) -> CardsRecommended:
    """Which cards to take for a load or a training job, and how many: the cheapest of the whole catalogue.

    ``recommend("llama-3.1-70b", isl=4096, osl=1024, rate=5).choices[0]``; with ``seq`` and ``global_batch`` it is for training.
    ``progress`` is told how many cards of how many were laid out, and the next.
    """
    from trilemma.ask.recommending import for_serving, for_training

    if _trains(options):
        return for_training(model, settled(RECOMMEND, options, (*TRAINING, *PURCHASE)), progress)
    return for_serving(model, settled(RECOMMEND, options, (*OPTIONS, *PURCHASE)), progress)


def upgrade(command: str | Sequence[str], gpu: Any = None, **options: Any) -> VersionsCompared:
    """What version ``new`` of the engine changes for a command that runs under version ``old``: flags, rules, memory."""
    from trilemma.ask.checking import upgraded, words_of

    asked, words = settled(UPGRADE, options), words_of(command)
    if not words:
        raise InputError("no engine command given; give one such as vllm serve MODEL")
    for name in ("old", "new"):
        if getattr(asked, name) is None:
            raise InputError(f"`{name}` is missing; name the versions to compare, such as old='0.19', new='0.21'")
    return upgraded(words, named_cards(gpu), asked)


def _of_question(question: Question[Any, Any], gpu: Any, options: dict[str, Any]) -> Answer:
    if gpu is not None or options:
        raise InputError("a Question says everything; give it alone")
    if isinstance(question.plan, Plan):
        from trilemma.ask.serving import judged

        return judged(question)
    from trilemma.ask.training import judged as judged_training

    return judged_training(question)


def named_cards(gpu: Any) -> Any:
    """``gpu`` as it is, or this machine's cards where it says "auto". Raises `InputError` where none of them is known."""
    if not isinstance(gpu, str) or gpu.strip().lower() != "auto":
        return gpu
    from trilemma.machine.machine import this_machine

    return this_machine().gpu_words


def _trains(options: dict[str, Any]) -> bool:
    return any(options.get(name) is not None for name in _TRAINS)
