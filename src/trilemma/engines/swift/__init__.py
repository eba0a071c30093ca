"""ms-swift: `swift sft|pt|rlhf`."""
