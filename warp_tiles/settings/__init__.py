"""The settings, their layers, and the policies."""

from warp_tiles.settings.layers import (
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
from warp_tiles.settings.table import (
    COMMAND_LINE,
    DEFAULT,
    ENVIRONMENT,
    OPTION_PREFIX,
    OWN,
    POLICIES,
    PREFIX,
    PROVIDER_ORDER,
    SETTINGS,
    Settings,
)

__all__ = [
    "COMMAND_LINE",
    "DEFAULT",
    "ENVIRONMENT",
    "OPTION_PREFIX",
    "OWN",
    "POLICIES",
    "PREFIX",
    "PROVIDER_ORDER",
    "SETTINGS",
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
