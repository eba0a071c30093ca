"""Encoders that answer with vectors or scores: BERT, RoBERTa, XLM-RoBERTa and what is trained from them (bge, e5, MiniLM)."""

from __future__ import annotations

from trilemma.models.attention import AttentionStyle
from trilemma.models.attention.encoding import EncodingAttention
from trilemma.models.blocks.builder import Builder
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields


def bert(fields: Fields) -> Decoder:
    """BERT (transformers: models/bert): learned positions, two types of tokens, biases, norms after each half, a pooler."""
    return _encoder(fields, types=2, first_position=0)


def roberta(fields: Fields) -> Decoder:
    """RoBERTa and XLM-RoBERTa (transformers: models/roberta): positions begin behind the row of the padding token."""
    padding = fields.count("pad_token_id", default=1, low=0, quiet=True)
    return _encoder(fields, types=1, first_position=padding + 1)


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
