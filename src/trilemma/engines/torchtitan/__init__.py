"""torchtitan: ``read`` its command line (0.3 and later) and the job files of older versions, ``write`` the command line."""
