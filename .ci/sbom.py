"""Write the bill of materials of a release (CycloneDX) and the list of licences, from the packages that are installed.

python .ci/sbom.py out/sbom.cdx.json        the packages of the extras lab and lm, with versions, licences, hashes
python .ci/sbom.py docs/licences.md         the same as a table
"""

import importlib.metadata
import json
import re
import sys
from pathlib import Path

from lock import EXTRAS, HERE, needed

# Licences by the classifiers of older packages, and of those whose metadata hold a whole text.
CLASSIFIED = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


def licence(name: str) -> str:
    """Return the licence of an installed package as its metadata state it."""
    metadata = importlib.metadata.metadata(name)
    if stated := metadata.get("License-Expression"):
        return str(stated)
    kinds = [each.rsplit(" :: ", 1)[1] for each in metadata.get_all("Classifier") or [] if each.startswith("License")]
    known = sorted({CLASSIFIED.get(kind, kind) for kind in kinds} - {"OSI Approved"})
    first = (metadata.get("License") or "").strip().splitlines()[:1]
    return " OR ".join(known) or "".join(first) or "not stated"


def packages() -> dict[str, str]:
    """Return the version of each package that the library, its commands and its studies need, entryclip among them."""
    names = needed("entryclip", frozenset(EXTRAS["lab"]), {})
    return {name: importlib.metadata.version(name).partition("+")[0] for name in sorted(names)}


def locked_hashes() -> dict[str, list[str]]:
    """Return the hashes of each package in the lock file."""
    entries = re.findall(
        r"^([\w.-]+)==\S+((?: \\\n\s+--hash=sha256:\w+)+)", (HERE / "lab.lock").read_text(), re.MULTILINE
    )
    return {name: re.findall(r"sha256:(\w+)", text) for name, text in entries}


def sbom() -> str:
    """Return the bill of materials in CycloneDX's JSON."""
    found, digests = packages(), locked_hashes()
    own = found.pop("entryclip")
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{version}",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "licenses": [{"license": {"name": licence(name)}}],
            "hashes": [{"alg": "SHA-256", "content": digest} for digest in digests.get(name, [])],
        }
        for name, version in found.items()
    ]
    about = {"component": {"type": "library", "name": "entryclip", "version": own, "purl": f"pkg:pypi/entryclip@{own}"}}
    return json.dumps(
        {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": about, "components": components},
        indent=1,
    )


def table() -> str:
    """Return the list of licences as a page."""
    rows = [f"| {name} | {version} | {licence(name)} |" for name, version in packages().items() if name != "entryclip"]
    head = (
        "# Licences\n\nThe packages that entryclip, its commands and its studies need, at the tested versions, with "
        "the licence that each states.\nentryclip itself is under Apache-2.0. Written by `make licences`.\n\n"
        "| package | version | licence |\n|---|---|---|"
    )
    return "\n".join([head, *rows])


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text((table() if target.suffix == ".md" else sbom()) + "\n")
