"""Watching a module that Lightning trains: its training step is the pass, and the optimizer runs it as a closure."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning")

import trilemma  # noqa: E402

#: Lightning warns of what its environment lacks.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Regression(lightning.LightningModule):
    """Calls its parts, not itself, as most modules for Lightning do; ``bad_from`` is the batch whose loss is broken."""

    def __init__(
        self, *, calls_itself: bool = False, bad_from: int = 10**9, fault: str = "log", lr: float = 1e-2
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 1)
        self.calls_itself, self.bad_from, self.fault, self.lr = calls_itself, bad_from, fault, lr

    def forward(self, x: Any) -> Any:
        return self.second(torch.nn.functional.gelu(self.first(x)))

    def training_step(self, batch: Any, index: int) -> Any:
        x, y = batch
        made = self(x) if self.calls_itself else self.forward(x)
        loss = torch.nn.functional.mse_loss(made, y)
        if index >= self.bad_from:
            worn = torch.zeros_like(made) * made
            loss = loss + (torch.log(worn).sum() if self.fault == "log" else worn.abs().sqrt().sum())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def fit(model: Any, folder: Path, *, steps: int = 21, **settings: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(400, 16, generator=generator)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=10)
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, **settings,
    )  # fmt: skip
    with trilemma.watch_numerics(model, recipe="fp8-current", every=5) as watch:
        trainer.fit(model, data)
    return watch


@pytest.mark.parametrize("calls_itself", [False, True])
def test_every_training_step_is_one_pass(calls_itself: bool, tmp_path: Path) -> None:
    model = Regression(calls_itself=calls_itself)
    watch = fit(model, tmp_path)
    assert (watch.passes, watch.steps) == (21, 21)
    assert watch.findings == [], watch.report()
    assert {role for _, role in watch.history[20]} == {"x", "w", "g"}
    assert "training_step" not in vars(model)


def test_bad_log_is_named_in_the_step_that_took_it(tmp_path: Path) -> None:
    watch = fit(Regression(bad_from=7), tmp_path, steps=9)
    bad = watch.findings[0]
    assert (bad.kind, bad.step) == ("not_finite", 7)
    assert "log" in bad.says
    assert "clamp" in bad.remedy


def test_broken_gradient_is_seen_though_the_optimizer_computes_it(tmp_path: Path) -> None:
    watch = fit(Regression(bad_from=7, fault="sqrt"), tmp_path, steps=8)
    assert [(finding.kind, finding.module, finding.step) for finding in watch] == [("gradient_not_finite", "second", 7)]


def test_dead_updates_of_bf16_weights(tmp_path: Path) -> None:
    model = Regression(lr=1e-7).to(torch.bfloat16)
    watch = fit(model, tmp_path, steps=12, precision="bf16-true")
    assert {finding.kind for finding in watch} == {"dead_update"}
    assert {finding.module for finding in watch} == {"first", "second"}


def test_accumulated_batches_are_passes_of_one_step(tmp_path: Path) -> None:
    watch = fit(Regression(), tmp_path, steps=6, accumulate_grad_batches=3)
    assert (watch.passes, watch.steps) == (18, 6)
