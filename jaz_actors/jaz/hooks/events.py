"""JAZ's names for events, which are ours."""

from __future__ import annotations

from jaz_actors.events import *  # noqa: F403
