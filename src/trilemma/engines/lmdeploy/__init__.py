"""LMDeploy: ``read`` and ``write`` its api_server's command line, ``budget`` its memory, ``stage`` what a rank holds."""
