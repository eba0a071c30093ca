"""TRL: `trl sft`, `trl dpo`, `trl grpo` and its scripts."""
