"""Pushing a data set to the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flashback_core.errors import SourceError
from flashback_core.extras import extra
from flashback_core.forensics.dataset import run_files

__all__ = ["files_to_push", "push"]


def files_to_push(folder: str | Path) -> list[Path]:
    """The card and all data files, no work files; relative to `folder`.

    Raises:
        SourceError: If the folder holds no data set.
    """
    return list(_files(Path(folder)))


def _files(folder: Path) -> Iterator[Path]:
    if not (folder / "README.md").is_file() or not run_files(folder):
        msg = f"{folder} holds no data set to push; build it first"
        raise SourceError(msg)
    yield Path("README.md")
    for where in ("steps", "runs", "twins"):
        yield from (path.relative_to(folder) for path in run_files(folder, where))


def push(folder: str | Path, name: str, *, is_private: bool = False, api: Any = None) -> str:
    """Upload the data set `folder` as ``name`` (``user/data-set``); returns its address.

    Args:
        folder: The data set.
        name: Repository on the hub; made when it is missing.
        is_private: Whether a new repository is private.
        api: A `huggingface_hub.HfApi`; None is one with the login of this machine.

    Raises:
        MissingExtraError: If huggingface_hub is not installed.
        SourceError: If the folder holds no data set or the name is no ``user/data-set``.
    """
    files = files_to_push(folder)
    if name.count("/") != 1 or not all(name.split("/")):
        msg = f"{name!r} is no repository on the hub; expected user/data-set"
        raise SourceError(msg)
    if api is None:
        with extra("forensics", package="huggingface_hub"):
            from huggingface_hub import HfApi
        api = HfApi()
    made = api.create_repo(name, repo_type="dataset", private=is_private, exist_ok=True)
    api.upload_folder(
        repo_id=name,
        repo_type="dataset",
        folder_path=str(folder),
        allow_patterns=[path.as_posix() for path in files],
        commit_message=f"Flashback forensics: {len(files)} files",
    )
    return str(made)
