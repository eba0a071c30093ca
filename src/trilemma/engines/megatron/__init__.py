"""Megatron-LM: ``read`` and ``write`` the flags of pretrain_gpt.py, ``architecture`` between its flags and a model."""
