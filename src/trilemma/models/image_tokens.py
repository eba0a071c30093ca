"""How many tokens of a prompt an image becomes, and on how many patches the tower works for it: the arithmetic of preprocessors.

Facts: data/image_tokens.toml, by family; sizes of the tower are the model's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import InputError, shorten
from trilemma.models.architecture import Model

#: Sides that a preprocessor may be given, and the widest proportion that it takes (qwen2_vl, smart_resize).
MOST_SIDE, _MOST_PROPORTION = 2**16, 200
#: Tiles that an image may be cut into: grids of as many are tried one by one.
_MOST_TILES = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageTokens:
    """One image: ``tokens`` of the prompt with the markers around them, ``patches`` that the tower works on, of which ``span``
    attend to one another. ``source`` says whose rule it is."""

    tokens: int
    patches: int
    span: int
    source: str


def image_tokens(model: Model, width: int, height: int, *, changed: Mapping[str, Any] | None = None) -> ImageTokens:
    """What an image of ``width`` by ``height`` pixels is to ``model``.

    ``changed`` are keyword arguments of its preprocessor (``max_pixels``, ``max_soft_tokens``, …), where a command states any.
    Raises `InputError` for models without a tower, for families of which no rule is known, and for sides out of range.
    """
    if not model.multimodal:
        raise InputError(f"{model.name} reads text alone; leave `images` out, or name a model that reads images")
    if not (min(width, height) >= 1 and max(width, height) <= MOST_SIDE):
        raise InputError(f"`image_size` {width}x{height} is out of range; give sides of 1 to {MOST_SIDE:,} pixels")
    if max(width, height) > _MOST_PROPORTION * min(width, height):
        raise InputError(
            f"`image_size` {width}x{height} is more than {_MOST_PROPORTION} times as long as wide; give another"
        )
    row = _row(model)
    rule = {**row, **_changes(changed or {}, row)}
    tower = model.vision
    cell = tower["patch"] * tower.get("merge", 1)
    tokens, patches, span = _RULES[row["rule"]](rule, tower, cell, width, height)
    return ImageTokens(tokens=tokens + row["beside"], patches=patches, span=span, source=row["source"])


def _row(model: Model) -> Mapping[str, Any]:
    known = read_data("image_tokens.toml")["row"]
    found = next((row for row in known if model.family.startswith(row["family"])), None)
    if found is None or "patch" not in model.vision:
        names = ", ".join(dict.fromkeys(row["family"] for row in known))
        raise InputError(
            f"how many tokens {model.name} makes of an image is not known here (known: {names}); leave `images` out"
        )
    return dict(found)


def _changes(changed: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, int]:
    """What ``changed`` states of the numbers of ``row``. Raises `InputError` for more tiles than any image has."""
    names = read_data("image_tokens.toml")["overrides"]
    told = {key: value for key, value in changed.items() if names.get(key) in row and _is_count(value)}
    for key, value in told.items():
        if names[key] == "tiles" and value > _MOST_TILES:
            raise InputError(
                f"{key} {shorten(str(value))} is out of range; give 1 to {_MOST_TILES:,} tiles of an image"
            )
    return {names[key]: int(value) for key, value in told.items()}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 2**40


def _resized(rule: Any, tower: Mapping[str, int], cell: int, width: int, height: int) -> tuple[int, int, int]:
    least, most = rule["least_pixels"], rule["most_pixels"]
    sides = [max(round(side / cell), 1) * cell for side in (height, width)]
    if sides[0] * sides[1] > most:
        factor = math.sqrt(height * width / most)
        sides = [max(math.floor(side / factor / cell), 1) * cell for side in (height, width)]
    elif sides[0] * sides[1] < least:
        factor = math.sqrt(least / (height * width))
        sides = [math.ceil(side * factor / cell) * cell for side in (height, width)]
    return _of_cells(tower, sides[0] // cell * (sides[1] // cell))


def _budget(rule: Any, tower: Mapping[str, int], cell: int, width: int, height: int) -> tuple[int, int, int]:  # noqa: ARG001
    pooling = tower.get("pooling", 1)
    side, tokens = tower["patch"] * pooling, rule["tokens"]
    factor = side * math.sqrt(tokens / (height * width))
    high, wide = (math.floor(one * factor / side) for one in (height, width))
    high, wide = min(max(high, 1), tokens), min(max(wide, 1), tokens)
    patches = high * wide * pooling**2
    return high * wide, patches, patches


def _padded(rule: Any, tower: Mapping[str, int], cell: int, width: int, height: int) -> tuple[int, int, int]:
    patch = tower["patch"]
    whole = max(width // patch, 1) * max(height // patch, 1)
    scale = min(1.0, math.sqrt(rule["patches"] / whole), *(rule["side"] * patch / side for side in (width, height)))
    high, wide = (math.ceil(max(int(side * scale), 1) / cell) for side in (height, width))
    return _of_cells(tower, high * wide)


def _rows(rule: Any, tower: Mapping[str, int], cell: int, width: int, height: int) -> tuple[int, int, int]:
    ratio = max(height, width) / rule["longest"]
    high, wide = ((max(math.floor(side / ratio), 1) if ratio > 1 else side) for side in (height, width))
    high, wide = (high - 1) // cell + 1, (wide - 1) // cell + 1
    _, patches, span = _of_cells(tower, high * wide)
    return high * (wide + 1), patches, span


def _closest(rule: Any, tower: Mapping[str, int], cell: int, width: int, height: int) -> tuple[int, int, int]:
    side, most = tower["image"], rule["tiles"]
    counts = range(1, most + 1)
    grids = sorted(((w, h) for w in counts for h in range(1, most // w + 1)), key=lambda one: one[0] * one[1])
    best, gap = (1, 1), math.inf
    for wide, high in grids:
        off = abs(width / height - wide / high)
        # of grids alike in proportion the larger, where the image has pixels for half of it
        if off < gap or (off == gap and width * height > 0.5 * side**2 * wide * high):
            best, gap = (wide, high), off
    tiles = best[0] * best[1]
    return _of_tiles(tower, cell, tiles + (tiles > 1))


def _canvas(rule: Any, tower: Mapping[str, int], cell: int, width: int, height: int) -> tuple[int, int, int]:  # noqa: ARG001
    side, most = tower["image"], rule["tiles"]
    grids = [(high, count // high) for count in range(most, 0, -1) for high in range(1, count + 1) if count % high == 0]
    fits = {(high, wide): min(high * side / height, wide * side / width) for high, wide in grids}
    up = [scale for scale in fits.values() if scale >= 1]
    wanted = min(up) if up else max(fits.values())
    high, wide = min((grid for grid, scale in fits.items() if scale == wanted), key=lambda one: one[0] * one[1])
    tiles, each = high * wide, (side // tower["patch"]) ** 2 // rule["merge"] ** 2
    separators = tiles if tiles > 1 else 0  # one between tiles of a row, one after each row
    patches = (side // tower["patch"]) ** 2
    whole = tiles + (tiles > 1)
    return whole * each + separators, whole * patches, patches


def _fixed(rule: Any, tower: Mapping[str, int], cell: int, width: int, height: int) -> tuple[int, int, int]:  # noqa: ARG001
    patches = (tower["image"] // tower["patch"]) ** 2
    return rule["tokens"], patches, patches


def _of_cells(tower: Mapping[str, int], cells: int) -> tuple[int, int, int]:
    patches = cells * tower.get("merge", 1) ** 2
    return cells, patches, patches


def _of_tiles(tower: Mapping[str, int], cell: int, tiles: int) -> tuple[int, int, int]:
    patches = (tower["image"] // tower["patch"]) ** 2
    return tiles * (tower["image"] // cell) ** 2, tiles * patches, patches


_Rule = Callable[[Any, Mapping[str, int], int, int, int], tuple[int, int, int]]
_RULES: Mapping[str, _Rule] = {
    "resized": _resized, "budget": _budget, "padded": _padded, "rows": _rows, "closest": _closest, "canvas": _canvas,
    "fixed": _fixed,
}  # fmt: skip
