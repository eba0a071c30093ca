"""TensorRT-LLM: ``read`` and ``write`` trtllm-serve and its YAML, ``budget`` its memory rules."""
