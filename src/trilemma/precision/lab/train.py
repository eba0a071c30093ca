"""One run: a recipe, a regime and a seed in, losses and signals out."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TypeAlias

import torch

from trilemma.precision.lab.corpus import Corpus
from trilemma.precision.lab.model import TinyTransformer, low_precision_share, make_outliers, spared_layers
from trilemma.precision.lab.numerics import Numerics, store
from trilemma.precision.lab.recipes import LabRecipe
from trilemma.precision.lab.records import LabRun, Probe, Regime
from trilemma.precision.signals import frozen_update_percent, gradient_signals

Tensor: TypeAlias = torch.Tensor

_HELD_OUT_BATCHES = 8


def train(recipe: LabRecipe, regime: Regime, *, seed: int, corpus: Corpus, device: str = "cpu") -> LabRun:
    """Train the tiny transformer under ``recipe``; the same seed gives every recipe the same start and the same batches.

    A step whose loss or gradient is not finite ends the run, unless dynamic loss scaling skips it.
    """
    trial = _Trial(recipe, regime, seed=seed, corpus=corpus, device=device)
    start = time.process_time()
    stopped_at = next((step for step in range(regime.steps) if not trial.advance(step)), None)
    return LabRun(
        recipe=recipe,
        regime=regime,
        seed=seed,
        losses=tuple(trial.losses),
        probes=tuple(trial.probes),
        stopped_at=stopped_at,
        held_out_loss=trial.held_out_loss() if stopped_at is None else math.nan,
        skipped_steps=trial.skipped,
        low_precision_share=trial.low_precision_share,
        cpu_s=time.process_time() - start,
    )


class _Trial:
    def __init__(self, recipe: LabRecipe, regime: Regime, *, seed: int, corpus: Corpus, device: str) -> None:
        self.recipe, self.regime, self.device = recipe, regime, device
        torch.manual_seed(seed)
        self.numerics = Numerics(recipe, seed=seed, device=device)
        self.model = TinyTransformer(regime, corpus.vocabulary, self.numerics)
        if regime.outlier_gain > 1:
            make_outliers(self.model, regime.outlier_gain)
        self.model.to(device)
        spared = spared_layers(self.model, recipe.scope)
        self.numerics.spare(spared)
        self.low_precision_share = low_precision_share(self.model, spared) if recipe.low_precision else 0.0
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=regime.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
        )
        self.training_text = torch.from_numpy(corpus.training)
        self.held_out_text = torch.from_numpy(corpus.held_out)
        self.batches = torch.Generator().manual_seed(1_000_003 + seed)
        self.loss_scale = recipe.loss_scale
        self.losses: list[float] = []
        self.probes: list[Probe] = []
        self.skipped = 0
        self._store_start()

    def advance(self, step: int) -> bool:
        """One optimizer step; False where it cannot go on."""
        self.numerics.step = step
        self.numerics.remember()
        batch = self._batch(self.training_text, self.batches)
        probe = self._probe(step, batch) if self.regime.probed(step) else None
        if probe is None:
            self.numerics.watch(False)
            self.losses.append(self._gradients(batch, self.loss_scale))
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.regime.clip_norm))
        healthy = math.isfinite(self.losses[-1]) and math.isfinite(norm)
        if not healthy and probe is None:
            # Look again at the step that failed: it names the tensor.
            self.numerics.rewind()
            self.losses.pop()
            probe = self._probe(step, batch)
        skip = not healthy and self.recipe.dynamic_loss_scale and math.isfinite(self.losses[-1])
        if skip:
            # As torch.amp.GradScaler does: halve the scale and leave the weights alone.
            self.loss_scale, self.skipped = self.loss_scale / 2, self.skipped + 1
        frozen = self._update(step, probe is not None) if healthy else None
        if probe is not None:
            self.probes.append(replace(probe, frozen_percent=frozen))
        return healthy or skip

    def held_out_loss(self) -> float:
        """Mean loss of the final weights in BF16 on text that was never trained on."""
        generator = torch.Generator().manual_seed(7)
        self.numerics.watch(False)
        self.numerics.shadow = True
        with torch.no_grad():
            losses = [float(self.model(*self._batch(self.held_out_text, generator))) for _ in range(_HELD_OUT_BATCHES)]
        return sum(losses) / len(losses)

    def _batch(self, text: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        context = self.regime.context
        starts = torch.randint(0, len(text) - context - 1, (self.regime.batch,), generator=generator)
        taken = text[starts[:, None] + torch.arange(context + 1)].to(self.device)
        return taken[:, :-1], taken[:, 1:]

    def _gradients(self, batch: tuple[Tensor, Tensor], scale: float) -> float:
        """Fill the gradients of all parameters; returns the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(*batch)
        (loss * scale).backward()
        if scale != 1:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad /= scale
        return float(loss.detach())

    def _probe(self, step: int, batch: tuple[Tensor, Tensor]) -> Probe:
        """Gradients of this step and what they look like beside BF16."""
        shadow_loss, reference = self._shadow(batch)
        self.numerics.watch(True)
        loss = self._gradients(batch, self.loss_scale)
        self.losses.append(loss)
        return Probe(
            step=step,
            loss=loss,
            shadow_loss=shadow_loss,
            gradient=gradient_signals(self._current_gradients(), reference),
            tensors=dict(self.numerics.tensors),
            fill=self.numerics.fill,
            applied=not self.numerics.warming_up,
        )

    def _current_gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def _shadow(self, batch: tuple[Tensor, Tensor]) -> tuple[float, list[Tensor]]:
        """Loss and gradient of BF16 on the weights and the batch of this step."""
        self.numerics.watch(False)
        self.numerics.shadow = True
        loss = self._gradients(batch, 1.0)
        self.numerics.shadow = False
        return loss, self._current_gradients()

    def _update(self, step: int, probed: bool) -> float | None:
        """Step and store; where weights are not FP32 the share of them that stood still although they were asked to move."""
        warm_up = min(1.0, (step + 1) / max(1, self.regime.learning_rate_warm_up))
        for group in self.optimizer.param_groups:
            group["lr"] = self.regime.learning_rate * warm_up
        narrow = self.recipe.storage != "fp32"
        before = [parameter.detach().clone() for parameter in self.parameters] if narrow and probed else []
        self.optimizer.step()
        if self.recipe.moments == "bf16":
            for state in self.optimizer.state.values():
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name].copy_(store(state[name], "bf16", None))
        if not narrow:
            return None
        asked = [parameter.detach() - old for parameter, old in zip(self.parameters, before, strict=False)]
        self._store()
        if not probed:
            return None
        return frozen_update_percent(before, [parameter.detach() for parameter in self.parameters], asked=asked)

    def _store(self) -> None:
        generator = self.numerics.generator if self.recipe.stochastic_storage else None
        with torch.no_grad():
            for parameter in self.parameters:
                # Gains of norms are vectors: no recipe stores them in 8 bits.
                storage = "bf16" if parameter.dim() < 2 and self.recipe.storage != "fp32" else self.recipe.storage
                parameter.copy_(store(parameter, storage, generator))

    def _store_start(self) -> None:
        if self.recipe.storage != "fp32":
            self._store()
