"""Join the Ray cluster that is there, or start one on this machine, and open a run's channel on it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray

from jaz_actors.channel import ChannelKeys, Peer
from jaz_actors.cluster.pool import RayPool
from jaz_actors.runtime import DRIVER, RuntimeOptions


async def open_cluster(run: str, options: RuntimeOptions) -> tuple[Peer, RayPool]:
    """The driver's end of the channel and a pool that has not started yet."""
    owns_ray = not ray.is_initialized()
    if owns_ray:
        await asyncio.to_thread(_init, options)
    keys = ChannelKeys.generate()
    peer = Peer(DRIVER, keys, address=ray.util.get_node_ip_address())
    await peer.start()
    return peer, RayPool(run, peer, keys, options, owns_ray=owns_ray)


def _init(options: RuntimeOptions) -> None:
    settings: dict[str, Any] = {"logging_level": logging.WARNING, "include_dashboard": None}
    if options.ray_address is not None:
        settings["address"] = options.ray_address
    ray.init(**settings)
