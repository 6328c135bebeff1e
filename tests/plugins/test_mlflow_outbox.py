"""The outbox alone: what is sent, when, and what happens when nothing can be sent."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from flashback_core.errors import FlashbackWarning
from flashback_plugins._mlflow_outbox import Outbox
from tests.plugins._mlflow_help import wait_for


def test_a_failing_server_costs_one_warning() -> None:
    """After an error nothing more is tried, and the one who logs is told once."""
    calls: list[int] = []

    def send(metrics: list[Any]) -> None:
        calls.append(len(metrics))
        raise ConnectionError("no route")

    box = Outbox(send, every_s=60)
    box.put([1, 2])
    with pytest.warns(FlashbackWarning, match="MLflow takes nothing more.*no route") as seen:
        box.flush()
    box.put([3])
    box.close()
    assert calls == [2]
    assert len(seen) == 1


def test_the_outbox_is_bounded() -> None:
    """While nothing can be sent the oldest metrics go, so memory stays small."""
    sent: list[Any] = []
    box = Outbox(sent.extend, every_s=60, limit=10)
    box.put(list(range(25)))
    box.close()
    assert sent == list(range(15, 25))


def test_a_server_that_hangs_is_given_up() -> None:
    """`close` waits for a request under way, but not for ever."""
    hang = threading.Event()
    box = Outbox(lambda _: hang.wait(30), every_s=0.01, patience_s=0.2)
    box.put([1])
    wait_for(lambda: box._busy.locked())
    with pytest.warns(FlashbackWarning, match="no answer"):
        box.close()
    hang.set()
