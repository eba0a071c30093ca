"""A plan as an Ollama server that is handed its model in a Modelfile."""

from __future__ import annotations

from trilemma.commands.named_files import HeldFile
from trilemma.engines.deployment.fleet import Fleet, FleetAsked, alone, checked_pools
from trilemma.engines.deployment.one_server import fleet_of
from trilemma.engines.ollama.write import FILE, write

#: A server that runs already has other settings than these; a new one answers after a moment.
_BEFORE = (
    "if ollama list >/dev/null 2>&1; then",
    '  echo "an Ollama server runs already: end it first (systemctl stop ollama), or give it the variables above" >&2',
    "  exit 1",
    "fi",
    "ollama serve &",
    "until ollama list >/dev/null 2>&1; do sleep 1; done",
)


def fleet(asked: FleetAsked) -> Fleet:
    """The server of ``asked.plan``. Raises `InputError` also for pools apart."""
    command = write(model=asked.model, plan=alone(asked.plan, checked_pools(asked.plan)[0]), always_made=True)
    name = command[command.index("create") + 1]
    return fleet_of(
        "ollama", command, asked=asked, before=_BEFORE,
        after=("wait",), files={FILE: next(word.text for word in command if isinstance(word, HeldFile))}, asked_as=name,
        notes=(f"serve.sh starts a server and makes {name} in it; clients ask for {name}, and ollama run {name} talks to it",),
    )  # fmt: skip
