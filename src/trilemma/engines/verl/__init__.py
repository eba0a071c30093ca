"""verl: `python -m verl.trainer.main_ppo key=value` and its supervised trainer."""
