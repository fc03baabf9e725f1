"""The settings, their layers, and the policies."""

from warp_tiles.settings.layers import (
    configure,
    configure_by_option,
    configured,
    current,
    from_environment,
    from_options,
    keep_start_list,
    on_change,
    override,
)
from warp_tiles.settings.table import (
    COMMAND_LINE,
    DEFAULT,
    ENVIRONMENT,
    OF_MODULE,
    OPTION_PREFIX,
    OWN,
    POLICIES,
    PROVIDER_ORDER,
    SETTINGS,
    Settings,
)

__all__ = [
    "COMMAND_LINE",
    "DEFAULT",
    "ENVIRONMENT",
    "OF_MODULE",
    "OPTION_PREFIX",
    "OWN",
    "POLICIES",
    "PROVIDER_ORDER",
    "SETTINGS",
    "Settings",
    "configure",
    "configure_by_option",
    "configured",
    "current",
    "from_environment",
    "from_options",
    "keep_start_list",
    "on_change",
    "override",
]
