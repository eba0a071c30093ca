"""Number formats: how one element, and a whole tensor with its scales, is stored.

Codecs are in `trilemma.formats.codecs`, what formats keep of data in `trilemma.formats.quality`.
"""

from trilemma.formats.catalogue import get, int_group, names
from trilemma.formats.formats import Format

__all__ = ["Format", "get", "int_group", "names"]
