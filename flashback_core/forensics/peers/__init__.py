"""Rules and detectors of others, to stand beside ours on the same arrays.

Each is a small re-implementation of the *published default rule*, not the other project's code,
unless its docstring says that the library itself runs. `peers` gives those that can run here.
"""

from __future__ import annotations

from flashback_core.forensics.peers.base import Peer
from flashback_core.forensics.peers.registry import PEERS, peers

__all__ = ["PEERS", "Peer", "peers"]
