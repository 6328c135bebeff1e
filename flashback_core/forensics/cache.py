"""OutcomeCache: what was judged stays judged, so that an interrupted scoring goes on.

One JSON file per file of the data set. An outcome is used again only if the code, the detector with
all its settings and thresholds, and the bytes of the data file are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import flashback_core
from flashback_core.detectors.base import Detector
from flashback_core.forensics.outcomes import RunOutcome, outcome_from_json

__all__ = ["OutcomeCache", "code_digest", "detector_keys"]

_BESIDE = frozenset({
    "sketch", "watch", "rewind", "build.py", "card.py", "curves.py", "figures.py", "hub.py",
    "results.py", "slices.py", "summary.py", "tables_md.py",
})  # fmt: skip
"""Folders and files of the package that no outcome depends on; all others count."""


@lru_cache(maxsize=1)
def code_digest() -> str:
    """16 hexadecimal digits that differ when code or thresholds behind an outcome differ."""
    root = Path(flashback_core.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if path.suffix in (".py", ".json", ".npz") and not _BESIDE & set(inside.parts):
            digest.update(inside.as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def detector_keys(candidates: Mapping[str, Detector]) -> dict[str, str]:
    """A key per detector, of its name, class, settings and the code."""
    return {
        name: _digest(code_digest().encode() + name.encode() + pickle.dumps(detector))
        for name, detector in candidates.items()
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


class OutcomeCache:
    """Outcomes on disk.

    Args:
        folder: Where they lie; made when it is missing.
        keys: Key of each detector, see `detector_keys`.
    """

    def __init__(self, folder: str | Path, keys: Mapping[str, str]) -> None:
        """See the class."""
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        # nobody means to commit it
        (self.folder / ".gitignore").write_text("*\n", encoding="utf-8")
        self._keys = dict(keys)

    def known(self, path: Path) -> dict[str, list[RunOutcome]]:
        """The outcomes of a data file that are there, by detector."""
        try:
            stored = json.loads(self._place(path).read_text("utf-8"))
        except (OSError, ValueError):
            return {}  # none yet, or cut short
        if not isinstance(stored, dict) or stored.get("data") != _digest(path.read_bytes()):
            return {}
        return {
            name: [outcome_from_json(json.dumps(row)) for row in stored["outcomes"][key]]
            for name, key in self._keys.items()
            if key in stored["outcomes"]
        }

    def keep(self, path: Path, outcomes: Mapping[str, Sequence[RunOutcome]]) -> None:
        """Write the outcomes of a data file, all or nothing; those of other detectors go."""
        rows = {self._keys[name]: [o.to_dict() for o in found] for name, found in outcomes.items()}
        place = self._place(path)
        temporary = place.with_name(f".{place.name}.{os.getpid()}")
        stored = {"data": _digest(path.read_bytes()), "outcomes": rows}
        temporary.write_text(json.dumps(stored), encoding="utf-8")
        os.replace(temporary, place)

    def _place(self, path: Path) -> Path:
        return self.folder / f"{path.parent.name}-{path.stem}.json"

    def __iter__(self) -> Iterator[Path]:
        """The files."""
        return iter(sorted(self.folder.glob("[!.]*.json")))
