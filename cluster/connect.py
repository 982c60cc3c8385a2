"""Join the Ray cluster that is there, or start one on this machine, and open a run's channel on it."""

from __future__ import annotations

import logging
from typing import Any

import ray

from jaz_actors.channel import ChannelKeys, Peer
from jaz_actors.cluster.pool import RayPool
from jaz_actors.runtime import DRIVER, RuntimeOptions


def join_ray(options: RuntimeOptions) -> bool:
    """Make sure that Ray is there; whether it was started, or joined, for us. Call it where signals may be set."""
    if ray.is_initialized():
        return False
    settings: dict[str, Any] = {"logging_level": logging.ERROR}
    if options.ray_address is not None:
        settings["address"] = options.ray_address
    ray.init(**settings)
    return True


async def open_cluster(run: str, options: RuntimeOptions, *, owns_ray: bool) -> tuple[Peer, RayPool]:
    """The driver's end of the channel and a pool that has not started yet."""
    keys = ChannelKeys.generate()
    peer = Peer(DRIVER, keys, address=ray.util.get_node_ip_address())
    await peer.start()
    return peer, RayPool(run, peer, keys, options, owns_ray=owns_ray)
