"""MLX-LM on Apple silicon: ``read`` and ``write`` the command lines of its server and generator, ``budget`` its memory."""
