"""Indexes behind a URL: ``s3://``, ``gs://``, anything that pyarrow.fs or fsspec opens.

Reading copies the files of the index into a temporary folder and reads them there. Writing goes
into a folder of this machine (see `cache_folder`), where nothing is lost; each sealed segment is
then uploaded by a thread of its own. The tail stays on this machine until it is sealed: at the end
of the run, or by the next writer of this machine. Two machines that write to one URL do not see
each other's lock; give each run a URL of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from xxhash import xxh3_64_hexdigest

from flashback_core.errors import IndexFormatError, SourceError
from flashback_core.index.parts import is_name
from flashback_core.warn import Guard

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

__all__ = ["Mirror", "RemoteFolder", "Uploader", "cache_folder", "join_url", "share", "url_of"]

_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.\-]+):/+([^?]*)(\?[^/]*)?(.*)", re.DOTALL)


def url_of(path: str | os.PathLike[str]) -> str | None:
    """The URL in `path`, None if it is a path of this machine.

    A `Path` made of a URL has lost a slash, and what was joined to one with a query stands behind
    the query; both are put right.

    Examples:
        >>> url_of("runs/my-run"), url_of("s3://bucket/run")
        (None, 's3://bucket/run')
        >>> url_of(Path("s3://bucket/run?region=eu-west-1") / "sketch")
        's3://bucket/run/sketch?region=eu-west-1'
    """
    match = _URL.fullmatch(os.fspath(path))
    if match is None:
        return None
    scheme, place, query, joined = match.groups(default="")
    return f"{scheme}://{(place + joined).rstrip('/')}{query}"


def join_url(url: str, name: str) -> str:
    """`name` inside the folder `url`."""
    place, mark, query = url.partition("?")
    return f"{place}/{name}{mark}{query}"


class RemoteFolder:
    """The files directly in a folder behind `url`.

    Args:
        url: Anything that pyarrow.fs or fsspec opens.

    Raises:
        SourceError: If no installed package opens such URLs.
        OSError: If it cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, self._root = _file_system(url)

    def sizes(self) -> dict[str, int]:
        """Size of each file by name; nothing where there is no folder."""
        from pyarrow.fs import FileSelector, FileType

        found = self._fs.get_file_info(FileSelector(self._root, allow_not_found=True))
        return {info.base_name: info.size for info in found if info.type == FileType.File}

    def download(self, name: str, to: Path) -> None:
        """Copy the file `name` to `to`, which appears when it is complete."""
        with self._fs.open_input_file(f"{self._root}/{name}") as file:
            data = file.read()
        temporary = to.with_name(to.name + ".tmp")
        temporary.write_bytes(data)
        os.replace(temporary, to)

    def upload(self, path: Path, name: str | None = None) -> None:
        """Copy the file `path` to `name`, its own name if None."""
        self._fs.create_dir(self._root, recursive=True)
        with self._fs.open_output_stream(f"{self._root}/{name or path.name}") as file:
            file.write(path.read_bytes())


def _file_system(url: str) -> tuple[FileSystem, str]:
    from pyarrow import ArrowInvalid
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    try:
        return FileSystem.from_uri(url)  # type: ignore[no-any-return]
    except (ArrowInvalid, NotImplementedError):
        pass  # not one of pyarrow's own
    try:
        import fsspec

        fs, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        msg = f"{url} cannot be opened ({error}); pip install the fsspec package for such URLs"
        raise SourceError(msg) from error
    return PyFileSystem(FSSpecHandler(fs)), path


def share(index_url: str, paths: Iterable[Path]) -> None:
    """Upload files of a run (its report) into the folder that holds the index at `index_url`.

    Raises:
        OSError: If one could not be uploaded.
    """
    place, mark, query = index_url.partition("?")
    remote = RemoteFolder(place.rpartition("/")[0] + mark + query)
    for path in paths:
        remote.upload(path)


class Mirror:
    """A copy of a remote index in a temporary folder, which goes when the mirror goes.

    Args:
        url: Folder of the index.

    Attributes:
        folder: The copy.
    """

    def __init__(self, url: str) -> None:
        self._remote = RemoteFolder(url)
        self._sizes: dict[str, int] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="flashback-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.sync()

    def sync(self) -> None:
        """Copy what is new or has grown, and drop what is gone."""
        sizes = {name: size for name, size in self._remote.sizes().items() if is_name(name)}
        changed = [name for name, size in sizes.items() if self._sizes.get(name) != size]
        _download_all(self._remote, changed, self.folder)
        for name in self._sizes.keys() - sizes.keys():
            (self.folder / name).unlink(missing_ok=True)
        self._sizes = sizes


def _download_all(remote: RemoteFolder, names: Iterable[str], folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: remote.download(name, folder / name), names))


def cache_folder(url: str) -> Path:
    """Where this machine keeps what it writes to `url`.

    Under ``FLASHBACK_CACHE``, else ``XDG_CACHE_HOME/flashback``, else ``~/.cache/flashback``: a
    folder named after the parent of `url`, which holds the last part of `url`.
    """
    given = os.environ.get("FLASHBACK_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flashback"
    parent, _, name = url.partition("?")[0].rpartition("/")
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", parent)[-60:]
    return (
        (Path(given) if given else base)
        / f"{readable}-{xxh3_64_hexdigest(parent.encode())[:8]}"
        / name
    )


class Uploader:
    """Uploads the sealed segments of `folder`, each once, in a thread of its own.

    What fails is warned of once and tried again with the next segment; nothing is lost on this
    machine.

    Args:
        url: Where they go.
        folder: Where the writer has them.

    Raises:
        OSError: If `url` cannot be reached at the start.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._remote, self._folder = RemoteFolder(url), folder
        self._guard = Guard()
        self._there = {n: s for n, s in self._remote.sizes().items() if n.endswith(".parquet")}
        folder.mkdir(parents=True, exist_ok=True)
        self._refuse_conflict()
        missing = [name for name in self._there if not (folder / name).exists()]
        _download_all(self._remote, missing, folder)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="flashback-upload")

    def _refuse_conflict(self) -> None:
        for path in self._segments():
            if self._there.get(path.name, path.stat().st_size) != path.stat().st_size:
                msg = (
                    f"{self._remote.url} and {self._folder} on this machine hold different "
                    f"files {path.name}: two machines wrote to one URL. Give this run a URL of "
                    "its own, or move that folder away to go on from what is behind the URL"
                )
                raise IndexFormatError(msg)

    def _segments(self) -> list[Path]:
        return sorted(p for p in self._folder.glob("segment-*.parquet") if is_name(p.name))

    def start(self) -> None:
        """Upload what is not there yet, beside the training."""
        self._pool.submit(self._upload_missing)

    def _upload_missing(self) -> None:
        for path in self._segments():
            if path.name in self._there:
                continue
            try:
                self._remote.upload(path)
            except Exception as error:  # of any network and any fsspec package
                self._guard.warn("upload", f"{path} could not be uploaded to {self._remote.url} "
                                 f"({error}); it is kept here and tried again with the next "
                                 "segment, or by the next run of this machine")  # fmt: skip
                return
            self._there[path.name] = path.stat().st_size

    def close(self) -> None:
        """Upload what is left, and wait."""
        self.start()
        self._pool.shutdown(wait=True)
