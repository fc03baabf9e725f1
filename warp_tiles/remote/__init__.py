"""Remote stores of signed entries behind the cache. See ``docs/remote.md``."""

#: Kinds of entries: LTO-IR of a function, and a linked module.
LTOIR, MODULE = "ltoir", "module"
