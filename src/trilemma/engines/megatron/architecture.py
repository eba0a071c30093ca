"""The model inside Megatron's flags, both ways: ``--num-layers 80 --hidden-size 8192 …`` and `Model`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trilemma.commands.option_words import Options
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.models.architecture import DenseFfn, ExpertFfn, Model
from trilemma.models.attention import LatentAttention, SoftmaxAttention
from trilemma.models.read import model_from_config

#: Vocabulary of the tokenizers that Megatron knows by type (megatron/training/tokenizer): GPT-2's and Llama-2's files.
_VOCABULARIES = {"GPT2BPETokenizer": 50_257, "Llama2Tokenizer": 32_000, "BertWordPieceLowerCase": 30_522}
#: What is taken where neither flags nor tokenizer say it: the vocabulary of Llama 3, said in a warning.
_ASSUMED_VOCABULARY = 128_256
_MOST_LAYERS = 2**14
_FREQUENCY = re.compile(r"\(?\s*\[([01,\s]*)\]\s*(?:\*\s*(\d{1,5}))?\s*\)?(?:\s*\*\s*(\d{1,5}))?")


def model_from_flags(options: Options) -> tuple[Model | None, tuple[PlanWarning, ...]]:
    """The model that architecture flags describe, and what was assumed; None where they give no layers.

    Raises `InputError` naming the flag that is missing or cannot be.
    """
    if not options.has("num-layers"):
        return None, ()
    warnings: list[PlanWarning] = []
    layers = options.whole("num-layers") or 1
    hidden = _needed(options, "hidden-size")
    heads = _needed(options, "num-attention-heads")
    if hidden % heads and not options.has("kv-channels"):
        raise InputError(f"--num-attention-heads {heads} does not divide --hidden-size {hidden}; add --kv-channels")
    gated = options.on("swiglu")
    config: dict[str, Any] = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": _kv_heads(options, heads),
        "head_dim": options.whole("kv-channels") or hidden // heads,
        "intermediate_size": options.whole("ffn-hidden-size") or _usual_ffn(hidden, gated),
        "vocab_size": _vocabulary(options, warnings),
        "max_position_embeddings": options.whole("max-position-embeddings") or options.whole("seq-length") or 4096,
        "tie_word_embeddings": not options.on("untie-embeddings-and-output-weights"),
        "torch_dtype": "bfloat16",
    }
    config |= _kind(options, config, layers, gated)
    return model_from_config(config, name=f"gpt-{layers}x{hidden}", source="Megatron flags"), tuple(warnings)


def _needed(options: Options, name: str) -> int:
    value = options.whole(name)
    if value is None:
        raise InputError(f"--num-layers is given without --{name}; give all sizes of the model")
    return value


def _usual_ffn(hidden: int, gated: bool) -> int:
    """Megatron's default: 4 h, with SwiGLU two thirds of it in multiples of 64 (arguments.py, validate_args)."""
    return int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden


def _kv_heads(options: Options, heads: int) -> int:
    groups = options.whole("num-query-groups") if options.on("group-query-attention") else None
    if groups is not None and (groups > heads or heads % groups):
        raise InputError(f"--num-query-groups {groups} does not divide the {heads} attention heads; use a divisor")
    return groups or heads


def _vocabulary(options: Options, warnings: list[PlanWarning]) -> int:
    stated = options.whole("vocab-size") or options.whole("padded-vocab-size")
    if stated is not None:
        return stated
    known = _VOCABULARIES.get(options.text("tokenizer-type") or "")
    if known is not None:
        return known
    text = f"the command does not say the vocabulary; {_ASSUMED_VOCABULARY:,} tokens assumed (give --vocab-size)"
    warnings.append(PlanWarning(code="assumed-vocabulary", message=text))
    return _ASSUMED_VOCABULARY


def _kind(options: Options, config: Mapping[str, Any], layers: int, gated: bool) -> dict[str, Any]:
    """The family whose tensors these flags make, with its own keys."""
    experts = options.whole("num-experts")
    if options.on("multi-latent-attention"):
        return _latent(options) | (_experts(options, config, layers, experts) if experts else {})
    if experts:
        shared = options.whole("moe-shared-expert-intermediate-size")
        dense = sum(not sparse for sparse in _sparse(options, layers))
        found = _experts(options, config, layers, experts)
        if shared or dense:
            return {**found, "model_type": "glm4_moe", "use_qk_norm": options.on("qk-layernorm")}
        return {**found, "model_type": "qwen3_moe" if options.on("qk-layernorm") else "mixtral"}
    if not gated:
        grouped = config["num_key_value_heads"] != config["num_attention_heads"]
        if options.on("squared-relu"):
            return {"model_type": "nemotron"}
        if grouped or options.text("position-embedding-type") in ("rope", "yarn", "none"):
            return {"model_type": "starcoder2", "use_bias": not options.on("disable-bias-linear")}
        return {
            "model_type": "gpt2",
            "n_inner": config["intermediate_size"],
            "n_positions": config["max_position_embeddings"],
        }
    if options.on("qk-layernorm"):
        return {"model_type": "qwen3"}
    return {"model_type": "qwen2" if options.on("add-qkv-bias") else "llama"}


def _latent(options: Options) -> dict[str, Any]:
    """DeepSeek's attention; defaults of MLATransformerConfig."""
    return {
        "model_type": "deepseek_v3",
        "q_lora_rank": options.whole("q-lora-rank"),
        "kv_lora_rank": options.whole("kv-lora-rank") or 512,
        "qk_nope_head_dim": options.whole("qk-head-dim") or 128,
        "qk_rope_head_dim": options.whole("qk-pos-emb-head-dim") or 64,
        "v_head_dim": options.whole("v-head-dim") or 128,
        "num_nextn_predict_layers": options.whole("mtp-num-layers") or 0,
    }


def _experts(options: Options, config: Mapping[str, Any], layers: int, experts: int) -> dict[str, Any]:
    width = options.whole("moe-ffn-hidden-size") or config["intermediate_size"]
    shared = options.whole("moe-shared-expert-intermediate-size") or 0
    top_k = options.whole("moe-router-topk") or 2
    if top_k > experts:
        raise InputError(f"--moe-router-topk {top_k} is more than the {experts} experts; use at most {experts}")
    sparse = _sparse(options, layers)
    dense = sparse.index(True) if True in sparse else layers
    if not all(sparse[dense:]):
        raise InputError(
            "--moe-layer-freq with dense layers between mixtures is not read; give leading dense layers only"
        )
    if shared % width:
        raise InputError(
            f"--moe-shared-expert-intermediate-size {shared} is no multiple of the experts' {width}; only such are read"
        )
    if not shared and not dense and not options.on("multi-latent-attention", "qk-layernorm"):
        return {"num_local_experts": experts, "num_experts_per_tok": top_k, "intermediate_size": width}
    found = {"num_experts_per_tok": top_k, "moe_intermediate_size": width}
    if options.has("moe-router-num-groups"):
        found |= {
            "n_group": options.whole("moe-router-num-groups"),
            "topk_group": options.whole("moe-router-group-topk") or 1,
        }
    if not shared and not dense and not options.on("multi-latent-attention"):
        return {**found, "num_experts": experts}
    return {**found, "n_routed_experts": experts, "n_shared_experts": shared // width, "first_k_dense_replace": dense}


def _sparse(options: Options, layers: int) -> list[bool]:
    """Which layers are mixtures: ``--moe-layer-freq N`` (every N-th from the first) or a list such as ``([0]*3+[1]*58)``."""
    text = options.text("moe-layer-freq")
    if text is None:
        return [True] * layers
    if text.strip().isdecimal():
        step = max(int(text), 1)
        return [index % step == 0 for index in range(layers)]
    pattern: list[bool] = []
    body = text.replace(" ", "").strip("()")
    for piece in body.split("+"):
        match = _FREQUENCY.fullmatch(piece)
        if match is None or len(pattern) > _MOST_LAYERS:
            raise InputError(f"--moe-layer-freq {shorten(text)!r} is not a number or a list such as ([0]*3+[1]*58)")
        times = int(match.group(2) or 1) * int(match.group(3) or 1)
        pattern += [digit.strip() == "1" for digit in match.group(1).split(",") if digit.strip()] * min(
            times, _MOST_LAYERS
        )
    if len(pattern) != layers:
        raise InputError(
            f"--moe-layer-freq names {len(pattern)} layers where --num-layers is {layers}; make them equal"
        )
    return pattern


def flags_of_model(model: Model, *, mtp: bool = True) -> list[str]:
    """Megatron's flags that make ``model``, with its prediction layers where ``mtp``. Raises `InputError` for layers that its
    GPT model has not."""
    mixers = set(model.mixers)
    if len(mixers) != 1 or not isinstance(mixer := next(iter(mixers)), (SoftmaxAttention, LatentAttention)):
        raise InputError(f"{model.name} mixes kinds of layers; Megatron flags are written for one kind of attention")
    ffns = [layer.ffn for layer in model.layers]
    experts = next((ffn for ffn in ffns if isinstance(ffn, ExpertFfn)), None)
    dense = next((ffn for ffn in ffns if isinstance(ffn, DenseFfn)), None)
    gated = (experts or dense).gated if experts or dense else True  # type: ignore[union-attr]
    width = dense.intermediate if dense else (experts.intermediate if experts else 4 * model.hidden)
    words = [
        "--num-layers",
        str(len(model.layers)),
        "--hidden-size",
        str(model.hidden),
        "--ffn-hidden-size",
        str(width),
    ]
    words += ["--num-attention-heads", str(mixer.heads)]
    words += _attention_flags(mixer)
    words += ["--max-position-embeddings", str(model.max_positions or 4096), "--vocab-size", str(model.vocab)]
    words += _style_flags(model, gated)
    if experts is not None:
        words += _expert_flags(experts, ffns)
    if mtp and model.mtp_layers:
        words += ["--mtp-num-layers", str(len(model.mtp_layers))]
    return words


def _attention_flags(mixer: SoftmaxAttention | LatentAttention) -> list[str]:
    if isinstance(mixer, LatentAttention):
        words = ["--multi-latent-attention", "--kv-lora-rank", str(mixer.kv_rank), "--qk-head-dim", str(mixer.nope_dim)]
        words += ["--qk-pos-emb-head-dim", str(mixer.rope_dim), "--v-head-dim", str(mixer.v_dim)]
        return [*words, *(["--q-lora-rank", str(mixer.q_rank)] if mixer.q_rank else [])]
    words = ["--kv-channels", str(mixer.k_dim)]
    if mixer.kv_heads != mixer.heads:
        words += ["--group-query-attention", "--num-query-groups", str(mixer.kv_heads)]
    return words


def _style_flags(model: Model, gated: bool) -> list[str]:
    words = ["--position-embedding-type", "rope", "--normalization", "RMSNorm"] if gated else []
    words += ["--swiglu", "--disable-bias-linear"] if gated else []
    words += ["--squared-relu", "--position-embedding-type", "rope"] if model.family == "nemotron" else []
    if any(tensor.name.endswith("q_norm.weight") for tensor in model.tensors):
        words.append("--qk-layernorm")
    if any(tensor.name.endswith(("q_proj.bias", "qkv_proj.bias")) for tensor in model.tensors) and gated:
        words.append("--add-qkv-bias")
    return [*words, *([] if model.tied_embeddings else ["--untie-embeddings-and-output-weights"])]


def _expert_flags(experts: ExpertFfn, ffns: list[Any]) -> list[str]:
    words = ["--num-experts", str(experts.experts), "--moe-router-topk", str(experts.top_k)]
    words += ["--moe-ffn-hidden-size", str(experts.intermediate), "--moe-grouped-gemm"]
    words += ["--moe-token-dispatcher-type", "alltoall"]
    if experts.groups > 1:
        words += ["--moe-router-num-groups", str(experts.groups), "--moe-router-group-topk", str(experts.top_groups)]
    if experts.shared_intermediate:
        words += ["--moe-shared-expert-intermediate-size", str(experts.shared_intermediate)]
    dense = sum(not isinstance(ffn, ExpertFfn) for ffn in ffns)
    if dense:
        words += ["--moe-layer-freq", f"([0]*{dense}+[1]*{len(ffns) - dense})"]
    return words
