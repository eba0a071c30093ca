"""Questions asked as a user asks them: words, numbers and nouns in, whole answers out.

``fit``, ``check``, ``plan``, ``compare``, ``train`` and ``upgrade`` stand behind the commands of the same names and behind
``import trilemma``. Options are named as on the command line; `trilemma.ask.options` declares each in one place.
"""
