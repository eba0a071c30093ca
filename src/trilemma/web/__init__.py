"""The questions in a browser: a small JSON API and one page over it (extra ``web``)."""
