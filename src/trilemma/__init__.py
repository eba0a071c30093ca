"""Trilemma: memory capacity, memory bandwidth and precision of language models on GPUs.

Questions (``fit``, ``check``, ``plan``, ``train``, ``compare``, ``recommend``, ``upgrade``, ``simulate``, ``diagnose`` …) and
the nouns that they are asked with and answered in. Names are looked up where they live when they are asked for, so that importing
the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trilemma.ask.answers import Answer
    from trilemma.ask.audited import audit
    from trilemma.ask.diagnosed import diagnose
    from trilemma.ask.examined import doctor
    from trilemma.ask.facility import facility
    from trilemma.ask.here import here, which
    from trilemma.ask.linted import lint
    from trilemma.ask.questions import check, compare, fit, plan, recommend, train, upgrade
    from trilemma.ask.simulate import simulate
    from trilemma.ask.simulate_cluster import simulate_cluster
    from trilemma.errors import InputError, TrilemmaError
    from trilemma.estimate.estimate import Estimate
    from trilemma.hardware.accelerator import Accelerator
    from trilemma.hardware.catalogue import find as gpu
    from trilemma.hardware.cluster import Cluster
    from trilemma.intervals import Interval
    from trilemma.models.architecture import Model
    from trilemma.models.resolve import load_model
    from trilemma.plans.plan import Draft, EngineRef, Layout, Plan, Pool, ServeOptions
    from trilemma.plans.training import TrainingPlan
    from trilemma.precision.watch import watch_numerics
    from trilemma.question import Question
    from trilemma.runs.callbacks import lightning_callback, trainer_callback
    from trilemma.runs.recording import record
    from trilemma.workloads import Serving, TrainingWorkload

__all__ = [
    "Accelerator", "Answer", "Cluster", "Draft", "EngineRef", "Estimate", "InputError", "Interval", "Layout", "Model",
    "Plan", "Pool", "Question", "ServeOptions", "Serving", "TrainingPlan", "TrainingWorkload", "TrilemmaError",
    "__version__", "audit", "check", "compare", "diagnose", "doctor", "facility", "fit", "gpu", "here", "lightning_callback",
    "lint", "load_model", "plan", "recommend", "record", "simulate",
    "simulate_cluster", "train", "trainer_callback", "upgrade", "watch_numerics", "which",
]  # fmt: skip

#: Name → where it lives, and what it is called there.
_HOMES = {
    "Accelerator": "hardware.accelerator",
    "Answer": "ask.answers",
    "Cluster": "hardware.cluster",
    "Draft": "plans.plan",
    "EngineRef": "plans.plan",
    "Estimate": "estimate.estimate",
    "InputError": "errors",
    "Interval": "intervals",
    "Layout": "plans.plan",
    "Model": "models.architecture",
    "Plan": "plans.plan",
    "Pool": "plans.plan",
    "Question": "question",
    "ServeOptions": "plans.plan",
    "Serving": "workloads",
    "TrainingPlan": "plans.training",
    "TrainingWorkload": "workloads",
    "TrilemmaError": "errors",
    "audit": "ask.audited",
    "check": "ask.questions",
    "compare": "ask.questions",
    "diagnose": "ask.diagnosed",
    "doctor": "ask.examined",
    "facility": "ask.facility",
    "fit": "ask.questions",
    "gpu": "hardware.catalogue:find",
    "here": "ask.here",
    "lightning_callback": "runs.callbacks",
    "lint": "ask.linted",
    "load_model": "models.resolve",
    "plan": "ask.questions",
    "recommend": "ask.questions",
    "record": "runs.recording",
    "simulate": "ask.simulate",
    "simulate_cluster": "ask.simulate_cluster",
    "train": "ask.questions",
    "trainer_callback": "runs.callbacks",
    "upgrade": "ask.questions",
    "watch_numerics": "precision.watch",
    "which": "ask.here",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, _, original = _HOMES[name].partition(":")
    return getattr(import_module(f"{__name__}.{home}"), original or name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    """Package metadata is slow to read."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trilemma")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"
