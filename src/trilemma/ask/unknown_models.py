"""What can be said of a command whose model is not known: its flags."""

from __future__ import annotations

from trilemma import engines
from trilemma.engines.base import EngineCommand
from trilemma.errors import InputError, UnknownName, with_flags

#: Codes of warnings of flags and values that the version may refuse, or that are not known.
_DOUBTED = (
    "refused-flag", "stray-word", "refused-value", "removed-flag", "newer-flag", "removed-value", "unknown-flag",
    "unknown-value",
)  # fmt: skip


class UnknownModel(InputError):
    """A command whose flags were read and whose model is in no catalogue; ``doubted``: what is said against its flags."""

    def __init__(self, command: EngineCommand, error: UnknownName) -> None:
        self.doubted = tuple(one.message for one in command.warnings if one.code in _DOUBTED)
        engine = command.plan.engine
        version = engine.version or ".".join(map(str, engines.get(engine.name).flags().versions[-1]))
        fine = f"flags fine ({engine.name} {version} takes them all)"
        flags = f"and flags in doubt: {'; '.join(self.doubted)}" if self.doubted else fine
        super().__init__(f"model not known, {flags}; {with_flags(error)}")
