"""llama.cpp: ``read`` and ``write`` llama-server's command line, ``budget`` its memory, ``placement`` what goes where."""
