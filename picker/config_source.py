"""Where the configuration comes from: a file, options in front of it, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from picker.config import Config
from picker.config_checks import check
from picker.config_files import converted, load


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """`path`: the file, if there is one. `options`: settings from the command line, which go before the file's."""

    path: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> Config:
        """Raises ConfigError, BadSetting."""
        config = load(self.path, Config) if self.path else Config()
        if self.options:
            together = msgspec.to_builtins(config) | dict(self.options)
            config = converted(together, Config, "command line")
        check(config)
        return config
