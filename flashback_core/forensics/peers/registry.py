"""All peers, and those whose packages are here."""

from __future__ import annotations

from importlib.util import find_spec

from flashback_core.forensics.peers import changepoints, rules
from flashback_core.forensics.peers.base import Peer
from flashback_core.forensics.peers.forest import Forest

__all__ = ["PEERS", "peers"]

PEERS: tuple[type[Peer], ...] = (
    rules.LossZScore, rules.WandbZScore, rules.ZClip, rules.SixSigma, rules.SpikeDetection,
    rules.KillLossSpike, rules.MegatronSpike, rules.FiniteCheck, rules.SoupMedian,
    changepoints.Focus, changepoints.RupturesPelt, changepoints.RupturesWindow,
    changepoints.RupturesKernel, changepoints.RiverAdwin, changepoints.RiverPageHinkley, Forest,
)  # fmt: skip


def peers() -> tuple[list[Peer], list[str]]:
    """Peers that can run here, and the names of those whose package is missing."""
    there = [kind() for kind in PEERS if not kind.needs or find_spec(kind.needs) is not None]
    missing = [k.name for k in PEERS if k.needs and find_spec(k.needs) is None]
    return there, missing
