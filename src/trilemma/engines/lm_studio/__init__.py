"""LM Studio's ``lms load``: ``read`` and ``write`` it, ``budget`` on llama.cpp's memory."""
