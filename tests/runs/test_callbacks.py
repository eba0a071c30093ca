"""Runs kept from inside trainers: PyTorch's optimizers, Transformers' Trainer, Lightning."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import pytest

import trilemma as tl
from trilemma.runs.store import RunLedger

torch = pytest.importorskip("torch")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "runs.db")


def kept(path: str, name: str) -> Any:
    with RunLedger(path, must_exist=True) as ledger:
        return ledger.run(name)


def test_an_optimizer_is_watched(path: str) -> None:
    weights = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weights], lr=0.1)
    with tl.record("plain", ledger=path) as run:
        run.watch(optimizer)
        for _ in range(4):
            weights.grad = torch.ones(4)
            time.sleep(0.02)
            optimizer.step()
    assert kept(path, "plain").figures["step_s"] == pytest.approx(0.02, rel=0.9)
    with RunLedger(path) as ledger:
        assert len(ledger.points(1, "step_s")[1]) == 3


class Numbers(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    """Sequences of ones; the one at ``bad`` is no data."""

    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 12

    def __getitem__(self, at: int) -> dict[str, Any]:
        if self.bad == at:
            raise ValueError("the sample is broken")
        ids = torch.ones(8, dtype=torch.long)
        return {"input_ids": ids, "labels": ids}


def trainer(path: str, name: str, folder: Path, bad: int | None = None) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_attention_heads=2, num_hidden_layers=1, vocab_size=16
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=6, per_device_train_batch_size=2, logging_steps=2, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    return transformers.Trainer(
        model=transformers.LlamaForCausalLM(config), args=arguments, train_dataset=Numbers(bad),
        callbacks=[tl.trainer_callback(name, ledger=path, model="tiny", tags=("test",))],
    )  # fmt: skip


def test_a_trainer_of_transformers(path: str, tmp_path: Path) -> None:
    trainer(path, "sft", tmp_path / "out").train()
    run = kept(path, "sft")
    assert (run.status, run.model, run.tags) == ("done", "tiny", ("test",))
    assert run.config["max_steps"] == 6
    assert {"step_s", "loss", "learning_rate"} <= set(run.figures)
    with RunLedger(path) as ledger:
        assert len(ledger.points(run.id, "step_s")[1]) == 6
        assert len(ledger.points(run.id, "loss")[1]) == 3


def test_a_trainer_that_crashes_is_kept_as_crashed(path: str, tmp_path: Path) -> None:
    def crash() -> None:
        trainer(path, "bad", tmp_path / "out", bad=3).train()

    with pytest.raises(ValueError, match="broken"):
        crash()
    gc.collect()
    run = kept(path, "bad")
    assert run.status == "crashed"
    assert run.why


def test_lightning(path: str, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Line(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, bad: bool = False) -> None:
            super().__init__()
            self.weights, self.bad = torch.nn.Linear(8, 1), bad

        def training_step(self, batch: Any, at: int) -> Any:
            if self.bad and at == 2:
                raise RuntimeError("the gradient is lost")
            loss = self.weights(batch["input_ids"].float()).pow(2).mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def fitted(name: str, bad: bool) -> None:
        trainer = lightning.Trainer(
            max_steps=6, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, log_every_n_steps=2, default_root_dir=str(tmp_path),
            callbacks=[tl.lightning_callback(name, ledger=path)],
        )  # fmt: skip
        trainer.fit(Line(bad), torch.utils.data.DataLoader(Numbers(), batch_size=2))

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted("line", False)
        with pytest.raises(RuntimeError, match="lost"):
            fitted("torn", True)
    assert kept(path, "line").status == "done"
    assert {"step_s", "loss"} <= set(kept(path, "line").figures)
    assert (kept(path, "torn").status, kept(path, "torn").why) == ("crashed", "RuntimeError: the gradient is lost")


def test_a_step_costs_little(path: str) -> None:
    """A step of 50 ms may lose 1 %, 0.5 ms."""
    pytest.importorskip("transformers")
    import types

    callback = tl.trainer_callback("quick", ledger=path)
    state = types.SimpleNamespace(is_world_process_zero=True)
    callback.on_train_begin(types.SimpleNamespace(), state, None)
    began = time.process_time()
    for _ in range(2000):
        callback.on_step_end(None, state, None)
        callback.on_log(None, state, None, logs={"loss": 2.0, "grad_norm": 1.0})
    assert (time.process_time() - began) / 2000 < 0.5e-3
    callback.on_train_end(None, state, None)
    assert kept(path, "quick").status == "done"
