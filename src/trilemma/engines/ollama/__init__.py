"""Ollama: ``read`` and ``write`` its commands, ``placement`` of layers by its own laws, ``budget`` on llama.cpp's memory."""
