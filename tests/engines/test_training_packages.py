"""Emitted options against the frameworks themselves, on the CPU; each test needs its package installed."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from trilemma.engines.megatron.write import write as write_megatron
from trilemma.engines.torchtitan.write import write as write_torchtitan
from trilemma.engines.training import framework_facts
from trilemma.engines.training_files import low_precision_snippet, training_files
from trilemma.engines.transformers.write import accelerate_yaml, deepspeed_json
from trilemma.models.resolve import load_model
from trilemma.plans.plan import Layout
from trilemma.plans.recipes import optimizer, recipe
from trilemma.plans.training import Offload, Recompute, TrainingPlan
from trilemma.workloads import TrainingWorkload

WORKLOAD = TrainingWorkload(seq=8192, global_batch=64)


def titan(**fields: object) -> TrainingPlan:
    given = {"implementation": "torchtitan", "zero": 3, "recipe": recipe("fsdp"), "loss": "chunked", "attention": "sdpa",
             "optimizer": optimizer("adamw-like-weights"), **fields}  # fmt: skip
    return TrainingPlan(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "plan",
    [
        titan(layout=Layout(tp=8, dp=4), recompute=Recompute(mode="full"), compiled=True),
        titan(
            layout=Layout(dp=32), shard_group=8, recompute=Recompute(mode="op"), offload=Offload(optimizer=1, weights=1)
        ),
        titan(layout=Layout(tp=4, pp=2, dp=4, vpp=2), schedule="interleaved", sp=False, reshard=False),
        titan(layout=Layout(pp=8, dp=4, vpp=5), schedule="interleaved", reshard=False, recipe=recipe("pure-bf16")),
    ],
)
def test_torchtitan_takes_the_words(plan: TrainingPlan, tmp_path: Path) -> None:
    pytest.importorskip("torchtitan")
    words = write_torchtitan(model=load_model("llama-3.1-70b"), plan=plan, workload=WORKLOAD)
    script = (
        "import json, sys\nfrom torchtitan.config.manager import ConfigManager\n"
        "found = ConfigManager().parse_args(sys.argv[1:])\n"
        "p, t = found.parallelism, found.training\n"
        "print(json.dumps([p.tensor_parallel_degree, p.pipeline_parallel_degree, p.data_parallel_shard_degree,"
        " p.data_parallel_replicate_degree, t.local_batch_size, t.global_batch_size, t.seq_len,"
        " type(found.activation_checkpoint).__qualname__.partition('.')[0]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    tp, pp, shard, replicate, local, batch, seq, policy = json.loads(done.stdout.splitlines()[-1])
    layout = plan.layout
    assert (tp, pp, shard * replicate, batch, seq) == (layout.tp, layout.pp, layout.dp, 64, 8192)
    assert local == (plan.micro_batch if pp == 1 else 64 // layout.dp)
    assert policy == {"none": "NoneType", "op": "SelectiveAC", "full": "FullAC"}[plan.recompute.mode]


def test_torchtitan_keys_are_those_of_the_package() -> None:
    manager = pytest.importorskip("torchtitan.config")
    fields = {f"parallelism.{name}" for name in manager.ParallelismConfig.__dataclass_fields__}
    fields |= {f"training.{name}" for name in manager.TrainingConfig.__dataclass_fields__}
    assert fields <= set(framework_facts("torchtitan")["keys"])


@pytest.mark.parametrize(
    "plan",
    [
        TrainingPlan(recipe=recipe("zero-bf16"), zero=3, offload=Offload(optimizer=0.5, weights=1)),
        TrainingPlan(recipe=recipe("zero-bf16"), zero=2, layout=Layout(dp=8)),
        TrainingPlan(recipe=recipe("zero-bf16"), zero=1, layout=Layout(dp=2), micro_batch=4),
    ],
)
def test_deepspeed_takes_the_file(plan: TrainingPlan) -> None:
    deepspeed = pytest.importorskip("deepspeed")
    document = json.loads(deepspeed_json(plan=plan, workload=WORKLOAD))
    found = deepspeed.DeepSpeedConfig({**document, "train_batch_size": document["train_micro_batch_size_per_gpu"],
                                       "gradient_accumulation_steps": 1})  # fmt: skip
    assert found.zero_optimization_stage == plan.zero
    if plan.offload.optimizer:
        assert found.zero_config.offload_optimizer.ratio == plan.offload.optimizer
    facts = framework_facts("deepspeed_keys")
    assert set(document) <= set(facts["top"])
    assert set(document["zero_optimization"]) <= set(facts["zero_optimization"])


def test_accelerate_takes_the_file(tmp_path: Path) -> None:
    config = pytest.importorskip("accelerate.commands.config.config_args")
    plan = TrainingPlan(recipe=recipe("fsdp"), zero=3, layout=Layout(dp=16), shard_group=8)
    file = tmp_path / "accelerate.yaml"
    file.write_text(accelerate_yaml(plan=plan, gpus=16, gpus_per_node=8))
    found = config.load_config_from_file(str(file))
    assert found.num_processes == 16
    assert found.fsdp_config["fsdp_version"] == 2
    assert set(yaml.safe_load(file.read_text())) <= set(framework_facts("accelerate")["top"])


def test_megatron_core_takes_the_options() -> None:
    transformer = pytest.importorskip("megatron.core.transformer")
    plan = TrainingPlan(
        layout=Layout(tp=4, pp=8, vpp=5, dp=2), schedule="interleaved", recipe=recipe("fp8"),
        recompute=Recompute(mode="selective", parts=("core_attn", "mlp")), optimizer=optimizer("adamw"),
    )  # fmt: skip
    words = write_megatron(model=load_model("llama-3.1-70b"), plan=plan, workload=WORKLOAD)
    options = dict(pairwise(words))
    config = transformer.TransformerConfig(
        num_layers=int(options["--num-layers"]),
        hidden_size=int(options["--hidden-size"]),
        ffn_hidden_size=int(options["--ffn-hidden-size"]),
        num_attention_heads=int(options["--num-attention-heads"]),
        num_query_groups=int(options["--num-query-groups"]),
        kv_channels=int(options["--kv-channels"]),
        gated_linear_unit="--swiglu" in words,
        add_bias_linear="--disable-bias-linear" not in words,
        tensor_model_parallel_size=int(options["--tensor-model-parallel-size"]),
        pipeline_model_parallel_size=int(options["--pipeline-model-parallel-size"]),
        virtual_pipeline_model_parallel_size=int(options["--num-virtual-stages-per-pipeline-rank"]),
        sequence_parallel="--sequence-parallel" in words,
        recompute_granularity=options["--recompute-granularity"],
        recompute_modules=["core_attn", "mlp"],
        fp8=options["--fp8-format"],
        fp8_recipe=options["--fp8-recipe"],
        bf16=True,
        pipeline_dtype=__import__("torch").bfloat16,
    )
    assert config.num_layers == 80
    facts = framework_facts("megatron_flags")
    known = {*facts["switches"], *facts["values"], *facts["lists"]}
    assert {word.removeprefix("--") for word in words if word.startswith("--")} <= known


def test_torchao_snippet_converts_a_model() -> None:
    pytest.importorskip("torchao")
    torch = pytest.importorskip("torch")
    code = low_precision_snippet(titan(recipe=recipe("fsdp-fp8")))
    scope: dict[str, object] = {}
    exec(compile(code, "low_precision.py", "exec"), scope)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32))
    assert type(scope["convert"](model)[0]).__name__ == "Float8Linear"  # type: ignore[operator]


def test_launchers_are_well_formed() -> None:
    plan = TrainingPlan(layout=Layout(tp=4, pp=8, dp=16), optimizer=optimizer("adamw"), recipe=recipe("bf16"))
    files = training_files(
        to="megatron", model=load_model("llama-3.1-70b"), plan=plan, workload=TrainingWorkload(seq=8192, global_batch=512),
        gpus_per_node=8,
    )  # fmt: skip
    jobset = yaml.safe_load(files["jobset.yaml"])
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (jobset["kind"], job["parallelism"], job["completions"]) == ("JobSet", 64, 64)
    assert job["template"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert "#SBATCH --nodes=64" in files["slurm.sbatch"]
    for name in ("train.sh", "slurm.sbatch"):
        assert subprocess.run(["bash", "-n"], input=files[name], text=True, check=False).returncode == 0
    racked = training_files(
        to="megatron", model=load_model("llama-3.1-70b"), plan=plan, workload=TrainingWorkload(seq=8192, global_batch=512),
        gpus_per_node=4, domain=64,
    )  # fmt: skip
    assert "#SBATCH --segment=16" in racked["slurm.sbatch"]
