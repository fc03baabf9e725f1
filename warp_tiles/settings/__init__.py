"""The settings, their layers, and the policies."""

from warp_tiles.settings.layers import (
    LINKERS,
    OPTION_PREFIX,
    PROVIDERS,
    SWITCHES,
    configure,
    configure_by_option,
    configured,
    current,
    defaults,
    from_environment,
    from_options,
    from_project,
    on_change,
    override,
)
from warp_tiles.settings.resolved import COMMAND_LINE, DEFAULT, ENVIRONMENT, PREFIX, Settings

__all__ = [
    "COMMAND_LINE",
    "DEFAULT",
    "ENVIRONMENT",
    "LINKERS",
    "OPTION_PREFIX",
    "PREFIX",
    "PROVIDERS",
    "SWITCHES",
    "Settings",
    "configure",
    "configure_by_option",
    "configured",
    "current",
    "defaults",
    "from_environment",
    "from_options",
    "from_project",
    "on_change",
    "override",
]
