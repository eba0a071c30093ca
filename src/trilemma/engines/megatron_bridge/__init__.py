"""Megatron-Bridge: recipes of run_recipe.py and of scripts/training/train.sh."""
