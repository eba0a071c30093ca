"""Callbacks that keep a run in the ledger from inside a trainer: of Transformers, and of Lightning.

A training that ends without its end (an exception, a process that leaves) is kept as crashed; one that is killed stays "running".
"""

from __future__ import annotations

import atexit
import math
import sys
import time
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any

from trilemma.errors import InputError
from trilemma.runs.recording import Recorder


class _Kept:
    """One recorder from the start of a training to its end, and what is done where no end comes."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name, self._options = name, dict(options)
        self.recorder: Recorder | None = None
        self._last: float | None = None
        self._leave = partial(_left, weakref.ref(self))  # what is registered keeps nothing alive

    def begin(self, config: Mapping[str, Any]) -> None:
        told = {**config, **self._options.pop("config", {})}
        self.recorder = Recorder(self._name, config=told, **self._options)
        atexit.register(self._leave)

    def stepped(self) -> None:
        now = time.perf_counter()
        if self.recorder is not None and self._last is not None:
            self.recorder.log(step_s=now - self._last)
        self._last = now

    def paused(self) -> None:
        """What comes now (an evaluation, a checkpoint) is no part of a step."""
        self._last = None

    def told(self, figures: Mapping[str, Any]) -> None:
        if self.recorder is None:
            return
        kept = {
            "".join(sign if sign.isalnum() else "_" for sign in str(name)): float(value)
            for name, value in figures.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        }
        if kept:
            self.recorder.log(**kept)

    def end(self, why: str = "") -> None:
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            atexit.unregister(self._leave)
            recorder.end(why)

    def __del__(self) -> None:
        self.end("training ended without its end")


def _left(of: weakref.ref[_Kept]) -> None:
    """The process leaves: with an exception that nobody caught, or without."""
    kept, error = of(), getattr(sys, "last_value", None)
    if kept is not None:
        kept.end(f"{type(error).__name__}: {error}" if error is not None else "the process left before training ended")


def trainer_callback(name: str, **options: Any) -> Any:
    """A callback for Transformers' Trainer (and TRL's, which take the same): ``Trainer(…, callbacks=[trainer_callback("sft")])``.

    ``options`` as of `trilemma.record`. Logged are ``step_s`` of every step and the numbers that the Trainer logs. Raises
    `InputError` where Transformers is missing.
    """
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise InputError("trainer_callback needs transformers; install trilemma[torch]") from None
    kept = _Kept(name, options)

    class LedgerCallback(TrainerCallback):
        """The run of one Trainer, on its first process."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                told = args.to_sanitized_dict() if hasattr(args, "to_sanitized_dict") else {}
                kept.begin({key: value for key, value in told.items() if value not in (None, "")})
                kept.stepped()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            kept.stepped()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            kept.told(logs or {})

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            kept.paused()

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if kept.recorder is not None:
                kept.recorder.event("checkpoint")
            kept.paused()

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            kept.end()

    return LedgerCallback()


def lightning_callback(name: str, **options: Any) -> Any:
    """A callback for Lightning: ``Trainer(callbacks=[lightning_callback("sft")])``; ``options`` as of `trilemma.record`.

    Raises `InputError` where Lightning is missing.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        raise InputError("lightning_callback needs lightning; install it beside PyTorch") from None
    kept = _Kept(name, options)

    class LedgerCallback(Callback):
        """The run of one Lightning trainer, on its first process."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.is_global_zero:
                kept.begin(dict(getattr(pl_module, "hparams", {}) or {}))
                kept.stepped()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            kept.stepped()
            if (batch_idx + 1) % max(trainer.log_every_n_steps, 1) == 0:
                kept.told({key: float(value) for key, value in trainer.callback_metrics.items()})

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            kept.paused()

        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
            if kept.recorder is not None:
                kept.recorder.event("checkpoint")
            kept.paused()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            kept.end(f"{type(exception).__name__}: {exception}")

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            kept.end()

    return LedgerCallback()
