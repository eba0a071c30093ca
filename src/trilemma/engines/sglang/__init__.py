"""SGLang: ``read`` and ``write`` its command line, ``budget`` its memory rules, ``deploy`` the files that start it."""
