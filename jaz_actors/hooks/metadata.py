"""Facts about an invocation for its other hooks, recorders among them."""

from __future__ import annotations

from typing import Any

import msgspec

from jaz_actors.errors import ConfigurationError
from jaz_actors.hooks.specs import Builtin, MetaDataSpec, PackValue


class MetaData(Builtin):
    """Puts plain data on the blackboard of each invocation: `MetaData(task_name="sum", split="test")`."""

    def __init__(self, **values: Any) -> None:
        try:
            msgspec.msgpack.encode(values)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigurationError("MetaData", f"its values are plain data: {error}") from error
        self.values = values

    def blackboard_seed(self) -> dict[str, Any]:
        return self.values

    def to_spec(self, pack: PackValue) -> MetaDataSpec:
        return MetaDataSpec(self.values)
