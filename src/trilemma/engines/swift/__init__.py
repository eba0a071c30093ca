"""ms-swift: `swift sft|pt|rlhf` and `megatron sft|pt|rlhf`."""
