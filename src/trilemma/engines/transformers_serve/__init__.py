"""Transformers as a server: ``read`` and ``write`` ``transformers serve``, ``budget`` its memory."""
