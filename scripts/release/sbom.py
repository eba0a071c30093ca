"""What a wheel is made of and needs, as CycloneDX 1.6: ``python scripts/release/sbom.py WHEEL > bom.cdx.json`` (extra: release).

Read from the wheel's own metadata: every package that it requires, with the range, and the extras that ask for it. The same wheel
gives the same text: the serial number is that of its content, no time is stated.
"""

from __future__ import annotations

import hashlib
import sys
import uuid
import zipfile
from collections.abc import Mapping
from email.message import Message
from email.parser import Parser
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def sbom(wheel: Path) -> str:
    """The document as text."""
    metadata = metadata_of(wheel)
    name = canonicalize_name(str(metadata["Name"]))
    own = Component(
        name=name, version=str(metadata["Version"]), type=ComponentType.APPLICATION, bom_ref=f"{name}@{metadata['Version']}",
        purl=PackageURL("pypi", None, name, str(metadata["Version"])),
        licenses=[LicenseExpression(str(metadata["License-Expression"]))],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(wheel.read_bytes()).hexdigest())],
    )  # fmt: skip
    required = [_component(package, how) for package, how in sorted(requirements_of(metadata, name).items())]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    bom = Bom(components=required, serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"sha256:{digest}"))
    bom.metadata.component, bom.metadata.timestamp = own, None
    bom.dependencies = [
        Dependency(ref=own.bom_ref, dependencies=[Dependency(ref=one.bom_ref) for one in required]),
        *(Dependency(ref=one.bom_ref) for one in required),
    ]
    return str(JsonV1Dot6(bom).output_as_string(indent=2))


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode("utf-8"))


def requirements_of(metadata: Message, own: str) -> dict[str, dict[str, str]]:
    """Package → the extra that asks for it ("" where all do) → the range of versions."""
    found: dict[str, dict[str, str]] = {}
    for text in metadata.get_all("Requires-Dist") or ():
        one = Requirement(text)
        package = canonicalize_name(one.name)
        if package == own:  # an extra made of others
            continue
        marker = str(one.marker or "")
        extra = marker.partition("extra == ")[2].strip("'\" )").partition('"')[0].partition("'")[0]
        found.setdefault(package, {})[extra] = str(one.specifier)
    return found


def _component(package: str, how: Mapping[str, str]) -> Component:
    said = [
        Property(name=f"trilemma:{'extra:' + extra if extra else 'always'}", value=versions or "any")
        for extra, versions in sorted(how.items())
    ]
    return Component(
        name=package, type=ComponentType.LIBRARY, bom_ref=package, purl=PackageURL("pypi", None, package),
        scope=ComponentScope.REQUIRED if "" in how else ComponentScope.OPTIONAL, properties=said,
    )  # fmt: skip


if __name__ == "__main__":
    print(sbom(Path(sys.argv[1])))
