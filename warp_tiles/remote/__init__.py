"""Remote stores of signed entries behind the cache. See ``docs/remote.md``."""

#: Kinds of entries: LTO-IR of a function, a linked module, an export of tuning records.
LTOIR, MODULE, RECORDS = "ltoir", "module", "records"
#: The toolchain of a signed statement that holds for all of them.
ANY_TOOLCHAIN = "any"
