"""LLaMA-Factory: `llamafactory-cli train` and src/train.py."""
