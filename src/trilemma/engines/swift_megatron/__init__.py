"""ms-swift on Megatron: `megatron sft|pt|rlhf`."""
