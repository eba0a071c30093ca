"""What a container runs: read from ``docker run`` words and from Kubernetes or compose manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from trilemma.commands.kserve import as_container
from trilemma.commands.shell_words import split_commands

_RUNTIMES = frozenset(("docker", "podman", "nerdctl", "nvidia-docker", "finch"))
#: Options of ``docker run`` and ``podman run`` that take no value; every other long option does (docker run reference).
_NO_VALUE = frozenset((
    "--detach", "--init", "--interactive", "--no-healthcheck", "--oom-kill-disable", "--privileged", "--publish-all",
    "--quiet", "--read-only", "--rm", "--sig-proxy", "--tty", "--replace", "--rmi", "--tls-verify", "--no-hosts",
    "--disable-content-trust", "--env-host", "--http-proxy", "--rootfs", "--systemd", "--no-hostname", "--use-api-socket",
))  # fmt: skip
_NO_VALUE_LETTERS = frozenset("ditPq")
_MOST_DEVICES = 1024
#: A dollar that begins no variable; no YAML text and no word of a command line can hold this character.
DOLLAR = "\0"


#: Keys of Kubernetes and compose between an object and its containers, which tell none from another.
_KEYS = frozenset(("spec", "template", "containers", "leaderWorkerTemplate", "leaderTemplate", "services"))


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerRun:
    """One container: its image, what replaces the image's entry point, its command, its environment as NAME=value.

    GPUs granted to it are told as ``NVIDIA_VISIBLE_DEVICES``, the variable by which the container runtime grants them;
    ``refused`` is a grant that no runtime accepts or that leaves the container without a GPU, as written. ``within`` are the
    names and keys around the container in a manifest, the outermost first.
    """

    image: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = field(default=())
    name: str = ""
    refused: str = ""
    within: tuple[str, ...] = ()

    def is_of(self, pool: str) -> bool:
        """Whether ``pool`` names this container, an object or key around it, or the end of such a name (``x-decode``)."""
        return any(name == pool or name.endswith(f"-{pool}") for name in (self.name, *self.within))


def parse_run(words: Sequence[str]) -> ContainerRun | None:
    """``docker run [options] IMAGE [command…]`` → `ContainerRun`; None when the words are no such command."""
    start = next((at for at, word in enumerate(words) if PurePosixPath(word).name in _RUNTIMES), None)
    if start is None:
        return None
    verb = next((at for at in range(start + 1, len(words)) if words[at] in ("run", "create", "exec")), None)
    if verb is None:
        return None
    environment: list[str] = []
    entrypoint: tuple[str, ...] = ()
    refused = ""
    at = verb + 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        option, value, at = _option(words, at)
        if option in ("-e", "--env") and "=" in value:
            environment.append(value)
        elif option == "--gpus":
            devices = _devices(value)
            environment.extend(devices or ())
            refused = f"--gpus {value}" if devices is None else ""
        elif option == "--entrypoint":
            entrypoint = tuple(value.split())
    if at >= len(words):
        return None
    image = "" if words[verb] == "exec" else words[at]
    command = tuple(words[at + 1 :])
    return ContainerRun(
        image=image, entrypoint=entrypoint, command=command, environment=tuple(environment), name=words[at], refused=refused
    )  # fmt: skip


def _option(words: Sequence[str], at: int) -> tuple[str, str, int]:
    """(option, value, index after it) for the option at ``at``; the value is empty where the option takes none."""
    word = words[at]
    if word == "--":
        return word, "", at + 1
    if word.startswith("--"):
        name, sign, value = word.partition("=")
        if sign or name in _NO_VALUE:
            return name, value, at + 1
    elif set(word[1:]) <= _NO_VALUE_LETTERS:
        return word, "", at + 1
    elif len(word) > 2 and not (set(word[1:-1]) <= _NO_VALUE_LETTERS and word[-1] in "evp"):
        return word[:2], word[2:].removeprefix("="), at + 1
    else:
        name = "-" + word[-1]
    return name, words[at + 1] if at + 1 < len(words) else "", at + 2


def _devices(value: str) -> list[str] | None:
    """The value of ``--gpus``: ``all``, a number, or ``"device=0,1"``; None where it is none of them."""
    text = value.strip("\"'")
    if "device=" in text:
        return ["NVIDIA_VISIBLE_DEVICES=" + text.split("device=", 1)[1].strip("\"'")]
    # Without a number of its own a list of properties asks for one (opts.GpuOpts of the docker command line).
    counts = [part.removeprefix("count=") for part in text.split(",") if "=" not in part or part.startswith("count=")]
    return _granted(counts[0] if counts else "1")


def _granted(count: str) -> list[str] | None:
    """GPUs by number as the runtime's variable; docker and compose know ``all`` as −1 too. None for what grants none."""
    if count in ("all", "-1"):
        return ["NVIDIA_VISIBLE_DEVICES=all"]
    if not (count.isascii() and count.isdigit() and len(count) < 6 and 1 <= int(count) <= _MOST_DEVICES):
        return None
    return ["NVIDIA_VISIBLE_DEVICES=" + ",".join(str(device) for device in range(int(count)))]


def runs_in(documents: Sequence[Any]) -> Iterator[ContainerRun]:
    """Every container described anywhere in the documents of a manifest, whatever the kind of object around it.

    Pods of a LeaderWorkerSet are one engine: where leaders have a template of their own, that of the workers is passed over.
    """
    pending: list[tuple[tuple[str, ...], Any]] = [((), document) for document in reversed(documents)]
    while pending:
        within, node = pending.pop()
        if isinstance(node, Mapping):
            run = _container(node, within[-1] if within else "")
            if run is not None:
                yield replace(run, within=tuple(name for name in within if name not in _KEYS))
            named = node.get("metadata")
            if isinstance(named, Mapping) and isinstance(named.get("name"), str):
                within = (*within, named["name"])
            led = isinstance(node.get("leaderTemplate"), Mapping)
            inner = [
                ((*within, str(key)), value) for key, value in node.items() if not (led and key == "workerTemplate")
            ]
            pending.extend(reversed(inner))
        elif isinstance(node, list):
            pending.extend((within, value) for value in reversed(node))


def _container(node: Mapping[Any, Any], key: str) -> ContainerRun | None:
    if "modelFormat" in node:
        node = as_container(node)
    image = node.get("image")
    if not isinstance(image, str):
        image = ""
    if not image and not any(part in node for part in ("args", "command", "entrypoint")):
        return None
    compose = "entrypoint" in node or not ("name" in node or "args" in node)
    if compose:
        entrypoint, command = _words(node.get("entrypoint")), _words(node.get("command"))
    else:
        entrypoint, command = _words(node.get("command")), _words(node.get("args"))
    shown, count = _gpus(node)
    # −1 and "all" are words of docker and compose, not of Kubernetes.
    devices = (None if "/" in shown and not count.isdigit() else _granted(count)) if shown else []
    return ContainerRun(
        image=image,
        entrypoint=_unescaped(entrypoint),
        command=_unescaped(command),
        environment=(*_environment(node.get("environment", node.get("env"))), *(devices or ())),
        name=str(node.get("name") or key or image),
        refused=f"{shown}: {count}" if devices is None else "",
    )


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        # No shell reads it: the lines of a block are one command.
        return tuple(word for command in split_commands(value.replace("\n", " ")) for word in command)
    if isinstance(value, list):
        return tuple(_scalar(word) for word in value if not isinstance(word, (Mapping, list)))
    return ()


def _unescaped(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.replace("$$", DOLLAR) for word in words)


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _environment(value: Any) -> list[str]:
    """Kubernetes ``[{name, value}]``, compose ``{NAME: value}`` or ``["NAME=value"]``; values held in secrets are not there."""
    if isinstance(value, Mapping):
        pairs = [(str(name), _scalar(one)) for name, one in value.items() if not isinstance(one, (Mapping, list))]
        return [f"{name}={one}" for name, one in pairs]
    found = []
    for item in value if isinstance(value, list) else ():
        if (
            isinstance(item, Mapping)
            and "name" in item
            and not isinstance(item.get("value"), (Mapping, list, type(None)))
        ):
            found.append(f"{item['name']}={_scalar(item['value'])}")
        elif isinstance(item, str) and "=" in item:
            found.append(item)
    return found


def _gpus(node: Mapping[Any, Any]) -> tuple[str, str]:
    """(key, number of GPUs as written) of ``resources.limits["nvidia.com/gpu"]`` (or another maker's) or of compose devices.

    Both are empty where nothing is granted in numbers.
    """
    limits = _at(node, "resources", "limits")
    if isinstance(limits, Mapping):
        for key, value in limits.items():
            # A template's placeholder says nothing yet.
            if str(key).endswith(".com/gpu") and not str(value).startswith(("$", "{")):
                return str(key), str(value)
    devices = _at(node, "deploy", "resources", "reservations", "devices")
    first = devices[0] if isinstance(devices, list) and devices else None
    if isinstance(first, Mapping):
        if isinstance(first.get("device_ids"), list):
            return "device_ids", str(len(first["device_ids"]))
        if first.get("count") is not None and not str(first["count"]).startswith(("$", "{")):
            return "count", str(first["count"])
    return "", ""


def _at(node: Any, *keys: str) -> Any:
    for key in keys:
        if not isinstance(node, Mapping):
            return None
        node = node.get(key)
    return node
