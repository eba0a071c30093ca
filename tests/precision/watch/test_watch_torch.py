"""Watching a small Llama of Transformers: planted faults are found and named, healthy runs stay quiet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import trilemma  # noqa: E402
from trilemma.errors import InputError  # noqa: E402
from trilemma.report.schemas import schema_of  # noqa: E402

VOCAB, LENGTH, BATCH = 96, 32, 4


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def llama(seed: int = 0, dtype: Any = None) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).train()
    return model.to(dtype) if dtype is not None else model


def batches(seed: int, count: int) -> Iterator[Any]:
    """Counting sequences with a random start and stride: something a model can learn."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        start = torch.randint(0, VOCAB, (BATCH, 1), generator=generator)
        stride = torch.randint(1, 4, (BATCH, 1), generator=generator)
        yield (start + stride * torch.arange(LENGTH)) % VOCAB


def train(
    model: Any, *, steps: int, recipe: str = "fp8-delayed", lr: float = 1e-3, seed: int = 0, loss_scale: float = 1.0,
    before: Callable[[int], None] | None = None, every: int = 5, optimizer: Any = None,
) -> Any:  # fmt: skip
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=lr)
    with trilemma.watch_numerics(model, recipe=recipe, every=every) as watch:
        for step, tokens in enumerate(batches(seed, steps)):
            if before is not None:
                before(step)
            loss = model(input_ids=tokens, labels=tokens).loss
            (loss * loss_scale).backward()
            optimizer.step()
            optimizer.zero_grad()
    return watch


@pytest.mark.parametrize("seed", range(10))
def test_healthy_runs_stay_quiet(seed: int) -> None:
    watch = train(llama(seed), steps=41, seed=seed)
    assert watch.findings == [], watch.report()
    assert watch.steps == watch.passes == 41
    assert len(watch.history) == 5  # passes before the 16th only fill the histories
    assert "no alarm in 41 passes" in watch.report()


def test_planted_overflow_is_named() -> None:
    model = llama()

    def plant(step: int) -> None:
        if step == 8:
            with torch.no_grad():
                model.model.layers[1].mlp.up_proj.weight.mul_(3e4)

    watch = train(model, steps=11, recipe="fp8-naive", before=plant)
    overflows = [finding for finding in watch if finding.kind == "overflow"]
    assert {finding.module for finding in overflows} >= {"model.layers.1.mlp.down_proj", "model.layers.1.mlp.up_proj"}
    assert all("layers.0" not in finding.module for finding in overflows)


def test_overflow_of_a_stale_scale_is_named() -> None:
    """Under delayed scaling a tensor that grows a hundredfold between two passes is beyond the scale of its past."""
    model = llama()

    def plant(step: int) -> None:
        if step == 19:
            with torch.no_grad():
                model.model.layers[0].mlp.up_proj.weight.mul_(1e3)

    watch = train(model, steps=21, before=plant)
    assert "model.layers.0.mlp.down_proj" in {finding.module for finding in watch if finding.kind == "overflow"}


def test_planted_underflow_is_named() -> None:
    watch = train(llama(), steps=11, recipe="fp16-unscaled", loss_scale=1e-6)
    underflows = [finding for finding in watch if finding.kind == "underflow"]
    assert {finding.tensor for finding in underflows} == {"g"}
    assert "model.layers.0.self_attn.q_proj" in {finding.module for finding in underflows}
    assert "scale the loss" in underflows[0].remedy


def test_dead_updates_of_bf16_weights_are_named() -> None:
    watch = train(llama(dtype=torch.bfloat16), steps=11, recipe="bf16", lr=1e-6)
    dead = [finding for finding in watch if finding.kind == "dead_update"]
    assert "model.layers.0.mlp.gate_proj" in {finding.module for finding in dead}
    assert all(finding.tensor == "weight" for finding in dead)
    assert train(llama(dtype=torch.bfloat16), steps=11, recipe="bf16", lr=3e-3).findings == []


class LogGate(torch.nn.Module):
    """A gate that takes the logarithm of something that may reach zero."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.floor = 1.0

    def forward(self, x: Any) -> Any:
        return self.inner(x) + 1e-3 * torch.log(torch.relu(x) + self.floor)


def test_bad_log_is_named_with_a_rewrite() -> None:
    model = llama()
    model.model.layers[1].mlp = LogGate(model.model.layers[1].mlp)

    def plant(step: int) -> None:
        model.model.layers[1].mlp.floor = 1.0 if step < 7 else 0.0

    watch = train(model, steps=9, before=plant)
    bad = next(finding for finding in watch if finding.kind == "not_finite")
    assert bad.module == "model.layers.1.mlp"
    assert "log" in bad.says
    assert "clamp" in bad.remedy
    assert bad.step == 7
    jsonschema.validate(watch.to_json(), schema_of("watch"))


def test_broken_gradient_names_the_parameter_nearest_the_loss() -> None:
    class Root(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            # The root of an exact zero has an infinite slope though its value is fine.
            return (self.b(torch.relu(self.a(x))) * 0.0).abs().sqrt().sum()

    model = Root().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trilemma.watch_numerics(model) as watch:
        model(torch.randn(4, 8)).backward()
        optimizer.step()
    assert [finding.kind for finding in watch] == ["gradient_not_finite"]
    assert watch.findings[0].module == "b"


def test_masks_of_minus_infinity_are_no_fault() -> None:
    from trilemma.precision.watch.first_bad import first_bad_operator

    class Masked(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            mask = torch.full((4, 4), float("-inf")).triu(1)
            return torch.log(torch.softmax(x @ x.mT + mask, -1)[..., 0] - 2.0)

    found = first_bad_operator(Masked(), (torch.randn(2, 4, 4),), {})
    assert found is not None
    assert found.operator == "log"


def test_hooks_are_gone_afterwards_and_evaluation_is_not_watched() -> None:
    model = llama()
    with trilemma.watch_numerics(model) as watch:
        model.eval()
        with torch.no_grad():
            model(input_ids=next(batches(0, 1)))
    assert watch.passes == 0
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not model.model.layers[0].mlp.up_proj._forward_hooks


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(InputError, match="no linear layer"):
        trilemma.watch_numerics(torch.nn.ReLU())
    with pytest.raises(InputError, match="unknown recipe"):
        trilemma.watch_numerics(llama(), recipe="fp7")


def test_trainer_of_transformers_needs_no_line_more(tmp_path: Any) -> None:
    pytest.importorskip("accelerate")
    rows = [{"input_ids": tokens, "labels": tokens} for batch in batches(0, 6) for tokens in batch]
    model = llama()
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=11, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no", logging_strategy="no", dataloader_pin_memory=False,
    )  # fmt: skip
    with trilemma.watch_numerics(model, every=5) as watch:
        transformers.Trainer(model=model, args=arguments, train_dataset=rows).train()
    assert watch.steps == 11
    assert watch.findings == [], watch.report()


class Wrapper(torch.nn.Module):
    """Holds a model whose parts the loop calls itself, and an embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(50, 8, sparse=True)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, words: Any) -> Any:
        return self.head(self.words(words))


def test_a_loop_that_never_calls_the_model_is_told() -> None:
    model = Wrapper()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trilemma.watch_numerics(model) as watch:
        model.head(model.words(torch.arange(5))).sum().backward()
        optimizer.step()
    assert "never called" in watch.report()
    assert watch.to_json()["passes"] == 0


def test_sparse_gradients_and_every_pass() -> None:
    model = Wrapper()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trilemma.watch_numerics(model, recipe="fp8-current", every=1) as watch:
        for step in range(4):
            loss = model(torch.arange(step, step + 5)).square().sum()
            (loss * (float("inf") if step == 3 else 1.0)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert sorted(watch.history) == [1, 2, 3, 4]
    assert [finding.kind for finding in watch] == ["gradient_not_finite"]


def test_passes_that_are_not_sampled_carry_no_hook_on_layers() -> None:
    model = llama()
    hooked: list[int] = []
    layer = model.model.layers[0].mlp.up_proj
    layer.register_forward_pre_hook(lambda *_: hooked.append(len(layer._forward_hooks)))
    train(model, steps=11, recipe="fp8-current")
    assert hooked == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]
    assert not layer._forward_hooks


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"])
def test_only_what_is_not_finite_is_bad(dtype: str) -> None:
    from trilemma.precision.watch.finite import all_finite, is_bad

    kind = getattr(torch, dtype)
    # The sum leaves the range of every type but FP8, no number does.
    large = torch.full((64,), torch.finfo(kind).max, dtype=kind)
    assert not is_bad(large)
    assert all_finite([large, large[:0], torch.ones(3)])
    for broken in (float("nan"), float("inf")) if dtype != "float8_e4m3fn" else (float("nan"),):
        numbers = torch.tensor([1.0, broken, -broken, 2.0]).to(kind)
        assert is_bad(numbers)
        assert not all_finite([torch.ones(3), numbers])
    assert not is_bad(torch.tensor([0.0, float("-inf")]), minus_infinity_is_fine=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_modules_run_as_written_while_they_are_looked_into() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), LogGate(torch.nn.Linear(16, 16)), torch.nn.Linear(16, 4))
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trilemma.watch_numerics(compiled, recipe="fp8-current", every=5) as watch:
        for step in range(13):
            model[1].floor = 1.0 if step < 12 else 0.0
            compiled(torch.randn(6, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert sorted(watch.history) == [5, 10]
    assert len(watch.history[10]) == 9
    bad = watch.findings[0]
    assert (bad.kind, bad.module, bad.step) == ("not_finite", "_orig_mod.1", 12)
    assert "from log " in bad.says


def test_a_watch_on_what_was_compiled_around_says_that_it_saw_nothing() -> None:
    model = llama()
    with trilemma.watch_numerics(model, recipe="fp8-current", every=2) as watch:
        watch._layers.clear()
        for tokens in batches(0, 3):
            model(input_ids=tokens).logits.sum().backward()
    assert "no layer was seen in 1 sampled passes" in watch.report()
