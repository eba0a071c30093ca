"""vLLM: ``read`` and ``write`` its command line, ``budget`` its memory rules, ``log`` what it prints."""
