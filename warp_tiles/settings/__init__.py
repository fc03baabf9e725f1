"""The settings, their layers, and the policies."""

from warp_tiles.settings.layers import (
    DEFAULT,
    ENVIRONMENT,
    LINKERS,
    OPTION_PREFIX,
    PREFIX,
    PROVIDERS,
    SWITCHES,
    Settings,
    configure,
    current,
    defaults,
    from_environment,
    from_options,
    from_project,
    on_change,
    override,
)

__all__ = [
    "DEFAULT",
    "ENVIRONMENT",
    "LINKERS",
    "OPTION_PREFIX",
    "PREFIX",
    "PROVIDERS",
    "SWITCHES",
    "Settings",
    "configure",
    "current",
    "defaults",
    "from_environment",
    "from_options",
    "from_project",
    "on_change",
    "override",
]
