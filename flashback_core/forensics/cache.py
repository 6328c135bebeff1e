"""OutcomeCache: what was judged stays judged, so that an interrupted scoring goes on.

One JSON file per file of the data set. An outcome is used again only if the code, the detector with
all its settings and thresholds, and the bytes of the data file are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path

import numpy as np

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
    """A key per detector, of its name, class, settings and the code; the same in every process."""
    return {
        name: _digest(code_digest().encode() + name.encode() + _content(detector))
        for name, detector in candidates.items()
    }


def _content(value: object, around: tuple[int, ...] = ()) -> bytes:
    """Digest of what an object holds, wherever and in whatever order it lies in memory.

    A pickle will not do: it follows the order of sets, which differs between processes, and
    writes a text once or twice as it happens to be one object or two.
    """
    if id(value) in around:
        return b"itself"
    digest = hashlib.sha256(f"{type(value).__module__}.{type(value).__qualname__}".encode())
    for part in _parts(value, (*around, id(value))):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _parts(value: object, around: tuple[int, ...]) -> Iterator[bytes]:
    """What tells an object from others of its class."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        yield repr(value).encode()
    elif isinstance(value, np.ndarray) and value.dtype.names:  # between fields may lie anything
        yield from (_content(value[name], around) for name in value.dtype.names)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype.str} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, Mapping):
        pairs = ((_content(k, around), _content(v, around)) for k, v in value.items())
        yield from (part for pair in sorted(pairs) for part in pair)
    elif isinstance(value, Set):
        yield from sorted(_content(member, around) for member in value)
    elif isinstance(value, (list, tuple)):
        yield from (_content(member, around) for member in value)
    elif isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        yield f"{value.__module__}.{value.__qualname__}".encode()
    else:  # what pickle or copy would take to build it anew
        built = value.__reduce_ex__(4)
        wholes = (built,) if isinstance(built, str) else (*built[:3], *map(_listed, built[3:5]))
        yield from (_content(whole, around) for whole in wholes)


def _listed(items: Iterator[object] | None) -> list[object]:
    return list(items or ())


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
