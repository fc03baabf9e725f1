"""Remote stores of signed entries behind the cache. See ``docs/remote.md``."""
