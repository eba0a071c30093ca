"""Shell text into simple commands: quotes, escapes, comments and operators understood, nothing expanded, nothing run."""

from __future__ import annotations

from trilemma.errors import InputError

#: Bounds on what is taken for a command: far above any real one.
MOST_CHARACTERS = 2**20
MOST_WORDS = 4096

_SEPARATORS = frozenset(";|&\n()")


def split_commands(text: str) -> list[list[str]]:
    """The simple commands of a line or script, each a list of words; redirections are dropped.

    ``a && b | c`` gives three commands. Unfinished quotes are closed by the end of the text. Raises `InputError` when
    the text exceeds the bounds above.
    """
    return [words for words, _ in split_writing(text)]


def split_writing(text: str) -> list[tuple[list[str], str | None]]:
    """`split_commands`, each with the file that its output goes to (``> FILE``; None: nowhere that is told)."""
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"a command of {len(text):,} characters is too long; give the engine's command alone")
    return _Scanner(text).commands()


class _Scanner:
    """One pass over the text, a state machine of three states: bare, in single quotes, in double quotes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.word: list[str] | None = None
        self.words: list[str] = []
        self.found: list[tuple[list[str], str | None]] = []
        self.total = 0
        self.skip_word = False
        self.written = False
        self.target: str | None = None

    def commands(self) -> list[tuple[list[str], str | None]]:
        while self.at < len(self.text):
            self._step(self.text[self.at])
        self._end_command()
        return self.found

    def _step(self, char: str) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if char == "\\":
            # A backslash before a line end joins the lines; pasted text may carry \r\n.
            if following in ("\n", "\r", ""):
                self.at += 3 if self.text[self.at + 1 : self.at + 3] == "\r\n" else 2
                return
            self._add(following)
            self.at += 2
        elif char in "`^" and following in ("\n", "\r"):
            self.at += 2
        elif char in "'\"":
            self._quoted(char)
        elif char == "#" and self.word is None:
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif char in "<>" or (char == "&" and following == ">"):
            self._redirect()
        elif char == "$" and following == "(":
            self._substitution()
        elif char in _SEPARATORS:
            self._end_command()
            self.at += 1
        elif char.isspace():
            self._end_word()
            self.at += 1
        else:
            self._add(char)
            self.at += 1

    def _quoted(self, quote: str) -> None:
        self.at += 1
        if self.word is None:
            self.word = []
        while self.at < len(self.text) and self.text[self.at] != quote:
            char = self.text[self.at]
            if quote == '"' and char == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                self.at += 1
                char = "" if self.text[self.at] == "\n" else self.text[self.at]
            self.word.append(char)
            self.at += 1
        self.at += 1

    def _substitution(self) -> None:
        """``$(…)`` stays one literal word part: what it would print is unknown."""
        depth, start = 0, self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            depth += (char == "(") - (char == ")")
            self.at += 1
            if depth == 0 and char == ")":
                break
        self._add(self.text[start : self.at])

    def _redirect(self) -> None:
        """Drops ``2>&1``, ``> file``, ``&> file``, ``<<EOF``: the descriptor before, the operator, the target after."""
        numbered = self.word is not None and "".join(self.word) in ("0", "1", "2")
        if numbered:
            self.word = None
        self._end_word()
        self.written = not numbered and self.text[self.at] == ">"
        while self.at < len(self.text) and self.text[self.at] in "<>&":
            self.at += 1
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        self.skip_word = self.at < len(self.text) and self.text[self.at] not in "\n;|"

    def _add(self, text: str) -> None:
        if self.word is None:
            self.word = []
        self.word.append(text)

    def _end_word(self) -> None:
        if self.word is None:
            return
        word, self.word = "".join(self.word), None
        if self.skip_word:
            self.skip_word = False
            if self.written:
                self.target = word
            return
        self.total += 1
        if self.total > MOST_WORDS:
            raise InputError(
                f"a command of more than {MOST_WORDS:,} words is too long; give the engine's command alone"
            )
        self.words.append(word)

    def _end_command(self) -> None:
        self._end_word()
        self.skip_word = False
        if self.words:
            self.found.append((self.words, self.target))
            self.words = []
        self.target = None
