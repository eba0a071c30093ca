"""Encoders that answer with vectors or scores: BERT, RoBERTa, XLM-RoBERTa and what is trained from them (bge, e5, MiniLM),
ModernBERT (gte-modernbert), Nomic's BERT (nomic-embed-text)."""

from __future__ import annotations

from trilemma.models.architecture import DenseFfn
from trilemma.models.attention import AttentionStyle
from trilemma.models.attention.encoding import EncodingAttention
from trilemma.models.blocks.builder import Builder
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields

#: Keys of configurations that change no tensor and no cache.
_MODERN = (
    "embedding_dropout", "mlp_dropout", "classifier_pooling", "classifier_bias", "classifier_activation", "classifier_dropout",
    "norm_eps", "decoder_bias", "deterministic_flash_attn", "reference_compile", "repad_logits_with_grad", "sparse_prediction",
    "sparse_pred_ignore_index", "global_rope_theta", "local_rope_theta", "position_embedding_type", "rope_parameters",
)  # fmt: skip
_NOMIC = (
    "activation_function", "attn_pdrop", "causal", "dense_seq_output", "embd_pdrop", "fused_bias_fc", "fused_dropout_add_ln",
    "last_layer_subset", "layer_norm_epsilon", "max_trained_positions", "mlp_checkpoint", "mlp_checkpoint_lvl", "norm_epsilon",
    "pad_vocab_size_multiple", "parallel_block", "parallel_block_tied_norm", "prenorm", "reorder_and_upcast_attn",
    "resid_pdrop", "rotary_emb_base", "rotary_emb_fraction", "rotary_emb_interleaved", "rotary_emb_scale_base",
    "rotary_scaling_factor", "scale_attn_by_inverse_layer_idx", "scale_attn_weights", "use_flash_attn", "use_rms_norm",
    "use_xentropy",
)  # fmt: skip


def bert(fields: Fields) -> Decoder:
    """BERT (transformers: models/bert): learned positions, two types of tokens, biases, norms after each half, a pooler."""
    return _encoder(fields, types=2, first_position=0)


def roberta(fields: Fields) -> Decoder:
    """RoBERTa and XLM-RoBERTa (transformers: models/roberta): positions begin behind the row of the padding token."""
    padding = fields.count("pad_token_id", default=1, low=0, quiet=True)
    return _encoder(fields, types=1, first_position=padding + 1)


def modernbert(fields: Fields) -> Decoder:
    """ModernBERT (transformers: models/modernbert): rotary positions, windows in two of three layers, gated blocks, norms before
    each half, none before the first attention."""
    fields.ignore(*_MODERN)
    hidden, query, layers = shapes.hidden_size(fields), shapes.heads(fields), fields.layers()
    window = fields.count("local_attention", default=128, high=2**24, quiet=True)
    each = fields.count("global_attn_every_n_layers", default=3, high=2**16, quiet=True)
    kinds = fields.layer_types(layers, ["sliding_attention" if at % each else "full_attention" for at in range(layers)])
    biased, inner_bias = fields.flag("attention_bias", default=False), fields.flag("mlp_bias", default=False)
    size = shapes.head_dim(fields, query)

    def plan(at: int, kind: str) -> LayerPlan:
        reach = window if kind == "sliding_attention" else None
        return LayerPlan(
            mixer=EncodingAttention(heads=query, kv_heads=query, k_dim=size, v_dim=size, window=reach),
            ffn=shapes.dense(fields),
            attention=AttentionStyle(qkv_bias=biased, o_bias=biased, name="attn", o_name="Wo"),
            ffn_style=FfnStyle(name="mlp", bias=inner_bias),
            mixer_norms=("attn_norm",) if at else (),
            ffn_norms=("mlp_norm",),
        )

    plans = [plan(at, kind) for at, kind in enumerate(kinds)]
    return _rotary(
        fields, hidden, plans, norm_bias=fields.flag("norm_bias", default=False), embedding="embeddings.tok_embeddings",
        embedding_norm="embeddings.norm", layer_name="layers", final_norm="final_norm",
    )  # fmt: skip


def nomic_bert(fields: Fields) -> Decoder:
    """Nomic's BERT (nomic-ai/nomic-bert-2048, modeling_hf_nomic_bert.py): BERT with rotary positions, gated blocks and few
    biases, in the words of GPT-2."""
    fields.ignore(*_NOMIC)
    hidden, query = shapes.hidden_size(fields), shapes.heads(fields)
    size = shapes.head_dim(fields, query)
    qkv, up, down = (fields.flag(name, default=True) for name in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"))
    inner = fields.count("n_inner", default=4 * hidden, high=2**24)
    gated = "glu" in (fields.text("activation_function") or "swiglu")
    plan = LayerPlan(
        mixer=EncodingAttention(heads=query, kv_heads=query, k_dim=size, v_dim=size),
        ffn=DenseFfn(intermediate=inner, gated=gated),
        attention=AttentionStyle(qkv_bias=qkv, o_bias=qkv, name="attn", o_name="out_proj"),
        ffn_style=FfnStyle(name="mlp", up="fc11", gate="fc12", down="fc2", bias=up and down),
        mixer_norms=("norm1",),
        ffn_norms=("norm2",),
    )
    kinds = fields.count("type_vocab_size", default=2, high=2**16, quiet=True)
    return _rotary(fields, hidden, [plan] * fields.layers("n_layer"), norm_bias=True, embedding="embeddings.word_embeddings",
                   embedding_norm="emb_ln", layer_name="encoder.layers", final_norm=None, types=kinds)  # fmt: skip


def _rotary(
    fields: Fields, hidden: int, layers: list[LayerPlan], *, norm_bias: bool, embedding: str, embedding_norm: str,
    layer_name: str, final_norm: str | None, types: int = 0,
) -> Decoder:  # fmt: skip
    """An encoder without learned positions: no row bounds its texts but the length that it was made for."""
    scores = _scores(fields)

    def outside(add: Builder) -> None:
        if types:
            add.plain("embeddings.token_type_embeddings.weight", "embedding", types, hidden)
        if scores:
            add.linear("head.dense", "pooler", hidden, hidden)
            add.norm("head.norm", hidden)
            add.linear("classifier", "pooler", scores, hidden, bias=True)

    return Decoder(
        hidden=hidden, vocab=shapes.vocabulary(fields), layers=layers, max_positions=shapes.max_positions(fields), prefix="",
        layer_name=layer_name, embedding=embedding, embedding_norm=embedding_norm, final_norm=final_norm, head=None,
        norm_bias=norm_bias, outside=outside,
    )  # fmt: skip


def _encoder(fields: Fields, *, types: int, first_position: int) -> Decoder:
    fields.ignore(
        "position_embedding_type",
        "is_decoder",
        "add_cross_attention",
        "num_labels",
        "output_past",
        "gradient_checkpointing",
    )
    hidden, query = shapes.hidden_size(fields), shapes.heads(fields)
    size = shapes.head_dim(fields, query)
    plan = LayerPlan(
        mixer=EncodingAttention(heads=query, kv_heads=query, k_dim=size, v_dim=size),
        ffn=shapes.dense(fields, gated=False),
        attention=AttentionStyle(qkv_bias=True, o_bias=True, name="attention.self", o_name="output.dense"),
        ffn_style=FfnStyle(name="", up="intermediate.dense", down="output.dense", bias=True),
        mixer_norms=("attention.output.LayerNorm",),
        ffn_norms=("output.LayerNorm",),
    )
    positions = fields.count("max_position_embeddings", default=512, high=2**24)
    kinds = fields.count("type_vocab_size", default=types, high=2**16, quiet=True)
    scores = _scores(fields)

    def outside(add: Builder) -> None:
        add.plain("embeddings.token_type_embeddings.weight", "embedding", kinds, hidden)
        add.linear("pooler.dense", "pooler", hidden, hidden, bias=True)
        if scores:
            add.linear("classifier", "pooler", scores, hidden, bias=True)

    return Decoder(
        hidden=hidden,
        vocab=shapes.vocabulary(fields),
        layers=[plan] * fields.layers(),
        max_positions=max(positions - first_position, 1),
        prefix="",
        layer_name="encoder.layer",
        embedding="embeddings.word_embeddings",
        embedding_norm="embeddings.LayerNorm",
        positions=positions,
        position_name="embeddings.position_embeddings",
        final_norm=None,
        head=None,
        norm_bias=True,
        outside=outside,
    )


def _scores(fields: Fields) -> int:
    """Scores that a reranker or classifier gives a text: one for each of its labels, two where none are named."""
    classes = fields.raw("architectures")
    if not isinstance(classes, list) or not any(str(name).endswith("SequenceClassification") for name in classes):
        return 0
    labels = fields.raw("id2label")
    return min(len(labels), 2**16) if isinstance(labels, dict) and labels else 2
