"""OpenRLHF: openrlhf.cli.train_sft, train_dpo, train_rm, train_ppo_ray."""
