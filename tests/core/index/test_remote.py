"""Indexes behind a URL, against a real object-store server on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import flashback_core as fb
from flashback_core.errors import FlashbackWarning, IndexFormatError, SourceError
from flashback_core.export import export_table
from flashback_core.index import StepSketchIndex
from flashback_core.index.remote import RemoteFolder, cache_folder, join_url, url_of


def test_urls_and_paths() -> None:
    """URLs are told from paths, also after a `Path` has taken a slash away."""
    for path in ("runs/my-run", "/a/b", "C:\\runs\\x", "c:/runs", "a:b", Path("s3")):
        assert url_of(path) is None
    assert url_of("s3://bucket/run/") == "s3://bucket/run"
    assert url_of(Path("s3://bucket/run") / "sketch") == "s3://bucket/run/sketch"
    query = "s3://bucket/run?endpoint_override=localhost:9"
    assert url_of(Path(query) / "sketch") == join_url(query, "sketch")
    assert join_url(query, "sketch") == "s3://bucket/run/sketch?endpoint_override=localhost:9"


def test_cache_folders_differ(monkeypatch, tmp_path: Path) -> None:
    """Each run folder behind a URL has a folder of its own here, which names it."""
    monkeypatch.setenv("FLASHBACK_CACHE", str(tmp_path))
    one, other = (cache_folder(f"s3://bucket/{run}/sketch") for run in ("a/b", "a-b"))
    assert one.parent != other.parent
    assert one.name == "sketch"
    assert one.parent.name.startswith("s3-bucket-a-b-")
    assert cache_folder("s3://bucket/a/b/sketch?region=x") == one


@pytest.fixture
def memory(monkeypatch, tmp_path: Path) -> str:
    """A folder of fsspec's file system in memory, which pyarrow does not know."""
    pytest.importorskip("fsspec")
    monkeypatch.setenv("FLASHBACK_CACHE", str(tmp_path / "cache"))
    return f"memory://{tmp_path.name}/run"


def test_any_fsspec_url(memory: str, write, check_rows) -> None:
    """What pyarrow does not know is opened through fsspec, for writing and reading."""
    write(f"{memory}/sketch", range(10), segment_rows=4)
    names = sorted(RemoteFolder(f"{memory}/sketch").sizes())
    assert names == [f"segment-00000{i}.parquet" for i in range(3)]
    index = fb.open_run(memory)
    assert isinstance(index, StepSketchIndex)
    assert index.steps.tolist() == list(range(10))
    assert index.source == f"{memory}/sketch"
    assert index.url in repr(index)
    check_rows(index)
    write(f"{memory}/sketch", range(10, 13))
    assert index.refresh().steps.tolist() == list(range(13))


def test_another_machine_goes_on(memory: str, write, monkeypatch, tmp_path: Path) -> None:
    """A writer without a copy of the index continues what is behind the URL."""
    write(f"{memory}/sketch", range(6), segment_rows=4)
    monkeypatch.setenv("FLASHBACK_CACHE", str(tmp_path / "other"))
    with StepSketchIndex(f"{memory}/sketch", "a") as index:
        assert index.last_step == 5
        index.append(6, np.zeros(128))
    assert len(StepSketchIndex(f"{memory}/sketch")) == 7
    monkeypatch.setenv("FLASHBACK_CACHE", str(tmp_path / "cache"))
    write(f"{memory}/sketch", range(7, 9))
    assert len(StepSketchIndex(f"{memory}/sketch")) == 9


def test_two_machines_at_once_are_noticed(memory: str, write, monkeypatch, tmp_path: Path) -> None:
    """Different segments of one number are never overwritten; the next writer is told."""
    url = f"{memory}/sketch"
    one = StepSketchIndex(url, "a")
    monkeypatch.setenv("FLASHBACK_CACHE", str(tmp_path / "other"))
    write(url, range(20))
    for step in range(3):
        one.append(step, np.zeros(128))
    one._uploader._there = dict(RemoteFolder(url).sizes())
    one.close()
    assert len(StepSketchIndex(url)) == 20
    monkeypatch.setenv("FLASHBACK_CACHE", str(tmp_path / "cache"))
    with pytest.raises(IndexFormatError, match=r"two machines wrote to one URL.*URL of its own"):
        StepSketchIndex(url, "a")


def test_mode_w_is_refused(memory: str, write) -> None:
    """A remote index is not replaced."""
    write(f"{memory}/sketch", range(2))
    with pytest.raises(IndexFormatError, match="give another URL"):
        StepSketchIndex(f"{memory}/sketch", "w")


def test_bad_urls_say_what_to_do(memory: str) -> None:
    """An unknown scheme and an empty folder are clear errors."""
    with pytest.raises(SourceError, match="pip install the fsspec package"):
        fb.open_run("nosuch://bucket/run")
    with pytest.raises(SourceError, match="holds no sealed segment"):
        fb.open_run(memory)
    with pytest.raises(IndexFormatError, match=f"{memory} is not an index"):
        StepSketchIndex(memory)


# -- a real object store -------------------------------------------------------------------------


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Store:
    """An S3 server that can be stopped and started again."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError

    def stop(self) -> None:
        """Stop it; what it held is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def make_bucket(self) -> None:
        """Make the bucket of the tests."""
        from pyarrow.fs import FileSystem

        fs, _ = FileSystem.from_uri("s3://bucket?allow_bucket_creation=true")
        fs.create_dir("bucket")


@pytest.fixture
def store(monkeypatch, tmp_path: Path) -> Iterator[Store]:
    """A running store with a bucket, which the environment names."""
    pytest.importorskip("moto")
    store = Store()
    monkeypatch.setenv("FLASHBACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{store.port}")
    store.start()
    store.make_bucket()
    yield store
    store.stop()


def record(url: str, n_steps: int) -> fb.Recorder:
    """Record the training of a small model into `url`."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fb.Recorder(url, model, optimizer) as recorder:
        for _ in range(n_steps):
            loss = model(torch.ones(2, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.log(loss=loss)
    return recorder


@pytest.mark.slow
def test_a_recorder_writes_to_a_store(store: Store, tmp_path: Path) -> None:
    """`Recorder("s3://…")` records, resumes, and is read and detected from the URL."""
    url = "s3://bucket/runs/one"
    recorder = record(url, 30)
    index = fb.open_run(url)
    assert index.steps.tolist() == list(range(30))
    local = StepSketchIndex(recorder.dir / "sketch")
    for name in local:
        np.testing.assert_array_equal(index[name], local[name])
    record(url, 5)
    assert len(fb.open_run(url)) == 35
    report = fb.detect(url).to_dict()
    assert report["n_steps"] == 35
    command = [sys.executable, "-m", "flashback_plugins.cli", "detect", url, "--json"]
    told = subprocess.run(command, check=True, capture_output=True)
    assert b'"n_steps": 35' in told.stdout


@pytest.mark.slow
def test_exports_in_a_store(store: Store, write, tmp_path: Path) -> None:
    """Exports are read from a store too."""
    write(tmp_path / "run" / "sketch", range(10))
    for suffix in (".parquet", ".csv"):
        path = export_table(fb.open_run(tmp_path / "run"), tmp_path / f"run{suffix}")
        RemoteFolder("s3://bucket/exports").upload(path)
        table = fb.open_run(f"s3://bucket/exports/run{suffix}")
        assert table.steps.tolist() == list(range(10))
        assert table.source == f"s3://bucket/exports/run{suffix}"


@pytest.mark.slow
def test_a_store_that_goes_away_costs_nothing(store: Store, row) -> None:
    """Uploads that fail are warned of once and made up for; nothing is lost here or there."""
    url = "s3://bucket/runs/two/sketch"
    index = StepSketchIndex(url, "a", segment_rows=5)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(30):
            if step == 12:
                index._uploader._pool.submit(lambda: None).result()  # what was sealed is there
                store.stop()
            index.append(step, *row(step))
        index._uploader._pool.submit(lambda: None).result()
        assert len(StepSketchIndex(index.path)) == 30
        store.start()
        store.make_bucket()
        index._uploader._there = {}  # the store forgot all when it stopped
        index.close()
    told = [str(w.message) for w in seen if issubclass(w.category, FlashbackWarning)]
    assert len(told) == 1, told
    assert "tried again with the next segment" in told[0]
    assert StepSketchIndex(url).steps.tolist() == list(range(30))


@pytest.mark.slow
def test_a_store_that_is_not_there(store: Store, tmp_path: Path) -> None:
    """Opening fails clearly where the store cannot be reached; a recorder records here instead."""
    store.stop()
    with pytest.raises(OSError, match="AWS Error"):
        fb.open_run("s3://bucket/runs/three")
    with pytest.warns(FlashbackWarning, match="cannot be written"):
        recorder = record("s3://bucket/runs/three", 3)
    assert len(StepSketchIndex(recorder.dir / "sketch")) == 3
