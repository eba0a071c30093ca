"""The questions whose answers a refactoring may not change: every command, engine and kind of training."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

#: Files that questions read, written into the working folder first.
FILES: dict[str, str] = {
    "ds3.json": json.dumps(
        {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"},
         "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}
    ),
    "fsdp.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 1\n"
    "num_processes: 8\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n",
    "ax.yml": "base_model: NousResearch/Llama-2-7b-hf\nadapter: qlora\nload_in_4bit: true\nlora_r: 32\nlora_target_linear: true\n"
    "sequence_len: 4096\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\noptimizer: paged_adamw_32bit\nbf16: auto\n"
    "gradient_checkpointing: true\nflash_attention: true\n",
    "start.log": "INFO 11-02 10:00:01 [gpu_model_runner.py:1988] Starting to load model Qwen/Qwen3-32B...\n"
    "INFO 11-02 10:00:40 [gpu_model_runner.py:2007] Model loading took 61.0347 GiB memory and 34.1 seconds\n"
    "INFO 11-02 10:01:10 [gpu_worker.py:276] Available KV cache memory: 8.53 GiB\n"
    "INFO 11-02 10:01:11 [kv_cache_utils.py:864] GPU KV cache size: 34,928 tokens\n",
    "deploy.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  template:\n    spec:\n      containers:\n"
    "      - name: vllm\n        image: vllm/vllm-openai:v0.11.0\n        args: [--model, Qwen/Qwen3-32B, --tensor-parallel-size, '2']\n"
    "        resources: {limits: {nvidia.com/gpu: 2}}\n",
}  # fmt: skip

_MODELS = (
    "llama-3.1-70b", "qwen3-32b", "deepseek-v3", "gpt-oss-120b", "gemma-3-27b", "qwen3-32b-fp8", "qwen3-next-80b-a3b",
    "deepseek-v4-flash", "nemotron-h-56b", "llama-4-scout", "deepseek-v3.2", "mixtral-8x7b",
)  # fmt: skip
_CARDS = ("h200-sxm:8", "b200-sxm-180gb:8", "mi300x:8", "a100-sxm4-80gb:8")


def fits() -> Iterator[list[str]]:
    for model, card in itertools.product(_MODELS, _CARDS):
        yield ["fit", model, "--gpu", card, "--isl", "4096", "--osl", "1024", "--concurrency", "64"]
    for engine, model in itertools.product(
        ("sglang", "tensorrt-llm", "llama.cpp", "transformers"),
        ("llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-12b", "gpt-oss-20b", "deepseek-v2-lite", "mistral-7b-v0.1"),
    ):
        load = ["--isl", "1000", "--osl", "300", "--concurrency", "4"]
        yield ["fit", model, "--gpu", "h100-sxm", "--engine", engine, *load]
        cards = "rtx-4090" if engine == "transformers" else "rtx-4090:2"
        yield ["fit", model, "--gpu", cards, "--engine", engine, "--context", "8192"]
    for version in ("0.6.3", "0.8.5", "0.10.0", "0.11.0", "0.14.0", "0.19", "0.33"):
        yield ["fit", "llama-3.1-8b", "--gpu", "l40s", "--engine", f"vllm@{version}", "--isl", "512", "--osl", "512"]
        yield ["fit", "gemma-3-4b", "--gpu", "rtx-3090", "--engine", f"vllm@{version}", "--context", "8192"]
    for version in ("0.4.3", "0.5.5", "0.5.9"):
        yield [
            "fit",
            "qwen3-32b",
            "--gpu",
            "h100-sxm:2",
            "--engine",
            f"sglang@{version}",
            "--isl",
            "512",
            "--osl",
            "512",
        ]
    for precision in ("fp8", "int4", "nvfp4", "mxfp4", "int8", "awq"):
        for card in ("h100-sxm", "b200-sxm-180gb", "rtx-4090", "mi355x"):
            yield ["fit", "qwen3-32b", "--gpu", card, "--precision", precision, "--context", "16384"]
    for precision in ("Q4_K_M", "Q8_0", "Q6_K", "IQ4_XS"):
        for card in ("rtx-5090", "m3-ultra", "rx-7900-xtx"):
            yield [
                "fit",
                "qwen3-14b",
                "--gpu",
                card,
                "--engine",
                "llama.cpp",
                "--precision",
                precision,
                "--context",
                "8192",
            ]
    for card in (
        "h100-nvl-94gb:2",
        "l4:2",
        "h20-96gb:4",
        "gh200-96gb",
        "b300-sxm",
        "t4",
        "mi325x",
        "mi210",
        "rtx-5090",
    ):
        yield ["fit", "llama-3.1-8b", "--gpu", card, "--isl", "2048", "--osl", "256", "--concurrency", "8"]
    serve = ["--isl", "4096", "--osl", "1024"]
    yield ["fit", "deepseek-r1", "--gpu", "h200-sxm:16", "--tp", "8", "--pp", "2", *serve]
    yield [
        "fit",
        "deepseek-r1",
        "--gpu",
        "h200-sxm:16",
        "--tp",
        "1",
        "--dp",
        "16",
        "--ep",
        *serve,
        "--concurrency",
        "512",
    ]
    yield ["fit", "llama-3.1-70b", "--gpu", "h100-sxm:8", "--dp", "2", "--tp", "4", *serve, "--rate", "1"]
    yield ["fit", "llama-3.1-70b", "--gpu", "h100-sxm:8", "--replicas", "2", "--tp", "4", *serve, "--concurrency", "64"]
    yield [
        "fit",
        "llama-3.1-8b",
        "--gpu",
        "h100-sxm:8",
        "--prefill",
        "2xTP2",
        "--decode",
        "2xTP2",
        *serve,
        "--concurrency",
        "64",
    ]
    yield ["fit", "llama-3.1-70b", "--gpu", "h100-sxm:4", "--draft", "eagle3:3:0.7", *serve, "--concurrency", "8"]
    yield [
        "fit",
        "qwen3-32b",
        "--gpu",
        "h100-sxm:2",
        "--prefix-hit",
        "0.5",
        *serve,
        "--kv-dtype",
        "fp8",
        "--max-seqs",
        "32",
    ]
    yield [
        "fit",
        "qwen3-32b",
        "--gpu",
        "rtx-4090+rtx-3090",
        "--engine",
        "llama.cpp",
        "--precision",
        "Q4_K_M",
        "--context",
        "8192",
    ]
    yield ["fit", "deepseek-v3", "--gpu", "h200-sxm:8", "--tp", "8", "--dcp", "2", *serve]


def checks() -> Iterator[list[str]]:
    def check(card: str, line: str, *more: str) -> list[str]:
        return ["check", "--gpu", card, *more, "--", *line.split()]

    yield check("h100-sxm:8", "vllm serve deepseek-ai/DeepSeek-R1 --tensor-parallel-size 8")
    yield check("h100-sxm", "vllm serve Qwen/Qwen3-32B", "--log", "start.log")
    yield check("h100-sxm:2", "deploy.yaml")
    for flags in ("--max-model-len 8192", "--enforce-eager --kv-cache-dtype fp8", "--max-num-seqs 512 -O 2", "--quantization fp8",
                  "--enable-expert-parallel --data-parallel-size 4", "--pipeline-parallel-size 2 --tensor-parallel-size 2",
                  "--cpu-offload-gb 10", "--swap-space 8 --block-size 32", "--num-gpu-blocks-override 1000"):  # fmt: skip
        yield check("h100-sxm:4", f"vllm serve Qwen/Qwen3-30B-A3B {flags}")
        yield check("h100-sxm:4", f"docker run vllm/vllm-openai:v0.9.1 --model Qwen/Qwen3-30B-A3B {flags}")
    for flags in (
        "",
        "--mem-fraction-static 0.8",
        "--chunked-prefill-size 4096 --max-running-requests 64",
        "--disable-cuda-graph",
        "--kv-cache-dtype fp8_e5m2",
        "--dp-size 2 --enable-dp-attention",
        "--ep-size 4",
        "--context-length 8192",
    ):
        yield check("h200-sxm:4", f"python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp 4 {flags}")
        yield check("h200-sxm:8", f"python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 {flags}")
    for flags in ("", "--max_batch_size 64", "--kv_cache_free_gpu_memory_fraction 0.8", "--max_num_tokens 4096"):
        yield check("h100-sxm:2", f"trtllm-serve Qwen/Qwen3-32B --tp_size 2 {flags}")
    for flags in (
        "-c 8192 -ngl 99",
        "-c 32768 -ngl 20 -fa on",
        "-c 16384 --cache-type-k q8_0 --cache-type-v q8_0",
        "-c 8192 --parallel 4",
    ):
        yield check("rtx-4090", f"llama-server -hf Qwen/Qwen3-14B-GGUF:Q4_K_M {flags}")
        yield check("rtx-4090", f"llama-server -hf ggml-org/gpt-oss-20b-GGUF {flags}")
    yield check("h100-sxm", "transformers serve Qwen/Qwen3-8B")
    trainer = (
        "--model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2 --max_length 2048 --bf16 true"
    )
    for more in (
        "",
        "--gradient_checkpointing true",
        "--use_peft --lora_r 16",
        "--optim adamw_bnb_8bit",
        "--use_liger_kernel true",
    ):
        yield check("h100-sxm:8", f"deepspeed --num_gpus 8 train.py --deepspeed ds3.json {trainer} {more}")
        yield check("h100-sxm:8", f"accelerate launch --config_file fsdp.yaml train.py {trainer} {more}")
        yield check("h100-sxm:8", f"torchrun --nproc-per-node 8 train.py {trainer} {more}")
    yield check("rtx-4090:2", "axolotl train ax.yml")
    titan = "torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b"
    for more in (
        "",
        "--training.seq_len 4096",
        "--parallelism.tensor_parallel_degree 2",
        "--activation_checkpoint.mode full",
    ):
        yield check("h100-sxm:8", f"{titan} {more}")
    megatron = (
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32"
        " --ffn-hidden-size 14336 --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096"
        " --micro-batch-size 1 --global-batch-size 64 --swiglu --bf16 --vocab-size 128256 --untie-embeddings-and-output-weights"
    )
    for more in (
        "",
        "--tensor-model-parallel-size 4 --sequence-parallel",
        "--pipeline-model-parallel-size 4",
        "--use-distributed-optimizer --overlap-grad-reduce",
        "--recompute-activations",
        "--num-experts 8 --expert-model-parallel-size 8",
    ):
        yield check("h100-sxm:8", f"{megatron} {more}")


def searches() -> Iterator[list[str]]:
    serve = ["--serve", "4096/1024"]
    yield ["plan", "llama-3.1-70b", "--gpu", "h200-sxm:8", *serve]
    for engine in ("sglang", "tensorrt-llm", "llama.cpp"):
        yield ["plan", "qwen3-32b", "--gpu", "h100-sxm:4", *serve, "--engine", engine]
    yield ["plan", "deepseek-r1", "--gpu", "h200-sxm:16", *serve, "--ttft", "3000", "--tpot", "50"]
    yield ["plan", "gpt-oss-120b", "--gpu", "b200-sxm-180gb:4", *serve, "--concurrency", "64"]
    yield ["plan", "llama-3.1-70b", "--gpu", "h100-sxm", *serve, "--ttft", "2000", "--tpot", "40", "--rate", "20"]
    yield ["plan", "qwen3-32b", "--gpu", "l40s:4", *serve, "--ttft", "3000", "--tpot", "60", "--precision", "as-is"]
    yield ["plan", "qwen3-32b", "--gpu", "l40s:4", *serve, "--ttft", "3000", "--tpot", "60", "--confidence", "0.8"]
    yield [
        "plan",
        "deepseek-v3",
        "--gpu",
        "h200-sxm:32",
        *serve,
        "--pools",
        "disaggregated",
        "--ttft",
        "2000",
        "--tpot",
        "50",
    ]
    yield ["plan", "gemma-3-27b", "--gpu", "mi300x:2", "--serve", "1000/200", "--precision", "as-is"]
    yield ["plan", "llama-3.1-70b", "--gpu", "rtx-4090:2", *serve]
    train = ["--train", "4096", "--global-batch", "64"]
    yield ["plan", "llama-3.1-8b", "--gpu", "h100-sxm:16", *train]
    yield ["plan", "llama-3.1-70b", "--gpu", "h100-sxm:64", *train]
    yield ["plan", "qwen3-30b-a3b", "--gpu", "h100-sxm:32", *train]
    yield ["plan", "llama-2-7b", "--gpu", "rtx-4090:2", *train, "--method", "qlora"]
    yield ["plan", "llama-3.1-8b", "--gpu", "a100-sxm4-80gb:8", *train, "--engine", "torchtitan"]
    yield ["plan", "llama-3.1-8b", "--gpu", "h100-sxm:8", *train, "--engine", "deepspeed"]
    yield ["plan", "llama-3.1-70b", "--gpu", "rtx-4090:2", "--train", "4096", "--global-batch", "2"]
    for job in (serve, ["--serve", "1024/1024", "--concurrency", "32"]):
        yield ["compare", "gpt-oss-120b", "--gpu", "h100-sxm:2", "--gpu", "b300-sxm", "--gpu", "mi355x", *job]
        yield ["compare", "qwen3-32b", "--gpu", "h100-sxm", "--gpu", "l40s:2", "--gpu", "rtx-5090:4", *job]


def trainings() -> Iterator[list[str]]:
    train = ["--train", "4096", "--global-batch", "64"]
    for model in ("llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-12b", "mixtral-8x7b", "deepseek-v2-lite"):
        for flags in (
            [],
            ["--recompute", "full"],
            ["--zero", "3"],
            ["--tp", "2", "--pp", "2"],
            ["--method", "lora", "--rank", "16"],
        ):
            yield ["fit", model, "--gpu", "h100-sxm:8", *train, *flags]
    for engine in ("megatron", "torchtitan", "deepspeed", "accelerate"):
        yield ["fit", "llama-3.1-8b", "--gpu", "a100-sxm4-80gb:8", *train, "--zero", "2", "--engine", engine]
    for precision in ("fp8-bf16-grads", "bf16-bf16-grads", "amp", "fsdp"):
        yield [
            "fit",
            "llama-3.1-70b",
            "--gpu",
            "h100-sxm:64",
            *train,
            "--tp",
            "4",
            "--pp",
            "4",
            "--precision",
            precision,
        ]
    yield ["fit", "llama-3.1-405b", "--gpu", "h100-sxm:1024", "--train", "8192", "--global-batch", "512", "--tp", "8", "--pp", "8",
           "--vpp", "8", "--cp", "2", "--precision", "fp8-bf16-grads"]  # fmt: skip
    yield ["fit", "qwen3-235b-a22b", "--gpu", "h100-sxm:256", *train, "--tp", "2", "--pp", "8", "--ep", "32"]
    yield ["fit", "llama-2-7b", "--gpu", "rtx-4090", "--train", "2048", "--global-batch", "1", "--method", "qlora"]
    yield ["fit", "llama-3.1-8b", "--gpu", "h100-sxm:8", *train, "--offload", "optimizer=1.0"]
    yield ["fit", "nemotron-h-56b", "--gpu", "h200-sxm:64", *train, "--tp", "8"]


def catalogues() -> Iterator[list[str]]:
    for model in (*_MODELS, "kimi-k2", "gemma-4-e4b", "kimi-linear-48b-a3b", "mimo-7b", "minimax-m2", "qwen3.5-27b", "glm-5",
                  "granite-3.3-8b", "phi-4", "llama-3.2-11b-vision", "qwen2.5-7b-awq", "bloom-7b1"):  # fmt: skip
        yield ["models", model]
    for card in ("h100-sxm", "b300-sxm", "mi300x", "m3-ultra", "rtx-4090", "gb200"):
        yield ["hardware", card]
    for word in ("nvfp4", "fp8_e4m3", "q4_k", "mxfp4", "nf4"):
        yield ["formats", word]
    yield from (["hardware"], ["models"], ["formats"])
    for line in (
        "vllm serve Qwen/Qwen3-32B",
        "vllm serve deepseek-ai/DeepSeek-V3 --tensor-parallel-size 8 --max-num-seqs 64",
    ):
        for old, new in (("0.19", "0.33"), ("0.8.5", "0.11.0"), ("0.11.0", "0.19")):
            yield ["upgrade", "--from", old, "--to", new, "--gpu", "h200-sxm:8", "--", *line.split()]
    sglang = "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --cuda-graph-max-bs 64"
    yield ["upgrade", "--from", "0.4.3", "--to", "0.5.9", "--gpu", "h200-sxm", "--", *sglang.split()]
    for card in ("h100-sxm:8", "a100-sxm4-80gb:8", "b200-sxm-180gb:8"):
        yield ["precision", "recipe", "llama-3.1-8b", "--gpu", card, "--zero", "3"]
    for model, card in (("qwen3-32b", "rtx-4090"), ("llama-3.1-70b", "h100-sxm"), ("gpt-oss-20b", "rtx-3090")):
        yield ["precision", "plan", model, "--gpu", card, "--context", "8192"]
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        yield ["kernels", "llama-3.1-8b", "--gpu", "h100-sxm", "--engine", engine, "--batch", "32", "--cached", "4096"]


#: A planned answer and the engines that its files are written for.
EXPORTS: list[tuple[list[str], tuple[str, ...]]] = [
    (["plan", "llama-3.1-70b", "--gpu", "h200-sxm:8", "--serve", "4096/1024"], ("vllm", "kubernetes", "llm-d")),
    (["plan", "qwen3-32b", "--gpu", "h100-sxm:2", "--serve", "4096/1024", "--engine", "sglang"], ("sglang", "kubernetes")),
    (["plan", "qwen3-32b", "--gpu", "h100-sxm:2", "--serve", "4096/1024", "--engine", "tensorrt-llm"], ("tensorrt-llm", "kubernetes")),
    (["fit", "qwen3-14b", "--gpu", "rtx-4090", "--engine", "llama.cpp", "--precision", "Q4_K_M", "--context", "8192"], ("llama.cpp",)),
    (["fit", "deepseek-r1", "--gpu", "h200-sxm:16", "--tp", "16", "--context", "8192"], ("vllm", "kubernetes")),
    (["fit", "llama-3.1-8b", "--gpu", "h100-sxm:8", "--train", "8192", "--global-batch", "64"], ("megatron",)),
    (["fit", "llama-3.1-8b", "--gpu", "h100-sxm:8", "--train", "8192", "--global-batch", "64", "--zero", "3", "--engine", "torchtitan",
      "--precision", "fsdp"], ("torchtitan",)),
    (["fit", "llama-3.1-8b", "--gpu", "h100-sxm:8", "--train", "8192", "--global-batch", "64", "--zero", "3", "--engine", "deepspeed"],
     ("deepspeed",)),
    (["fit", "llama-3.1-8b", "--gpu", "h100-sxm:8", "--train", "8192", "--global-batch", "64", "--zero", "3", "--engine", "accelerate"],
     ("accelerate",)),
]  # fmt: skip


def questions() -> list[list[str]]:
    return [*fits(), *checks(), *searches(), *trainings(), *catalogues()]
