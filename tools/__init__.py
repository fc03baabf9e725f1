"""Commands for the maintainers of this repository. They are no part of the package."""
