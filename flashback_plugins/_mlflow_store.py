"""Where MLflow keeps its runs: a client of the store, and the run that is active."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mlflow
from mlflow.exceptions import MlflowException

from flashback_core.errors import FlashbackError

__all__ = ["active_run_id", "client"]


def client(tracking_uri: str | None = None) -> mlflow.MlflowClient:
    """A client of `tracking_uri`, or of MLflow's own setting.

    Raises:
        FlashbackError: If this MLflow refuses the store.
    """
    with _usable_store():
        return mlflow.MlflowClient(tracking_uri or mlflow.get_tracking_uri())


def active_run_id() -> str:
    """The run that is active; without one a run is started, as MLflow's own functions do.

    Raises:
        FlashbackError: If this MLflow refuses the store.
    """
    with _usable_store():
        run = mlflow.active_run() or mlflow.start_run()
    return str(run.info.run_id)


@contextmanager
def _usable_store() -> Iterator[None]:
    """Say plainly what to do where MLflow refuses its own default, a folder of files."""
    try:
        yield
    except MlflowException as error:
        if "MLFLOW_ALLOW_FILE_STORE" not in str(error):
            raise
        msg = (
            f"this MLflow ({mlflow.__version__}) no longer writes into a folder such as ./mlruns; "
            "use a database, mlflow.set_tracking_uri('sqlite:///mlflow.db'), or a server, or set "
            "MLFLOW_ALLOW_FILE_STORE=true"
        )
        raise FlashbackError(msg) from error
