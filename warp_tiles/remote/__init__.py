"""Objects that leave the machine: remote stores behind the cache, and bundles. See ``docs/remote.md``."""

#: Kinds of objects: LTO-IR of a function, a linked module, tuning records, facts about the toolchain of a deployment.
LTOIR, MODULE, RECORDS, TOOLCHAIN = "ltoir", "module", "records", "toolchain"
#: The toolchain of a statement that holds for all of them.
ANY_TOOLCHAIN = "any"
#: The fact of an entry that was signed elsewhere: the id of the key.
SIGNED_BY = "signed_by"
LAYOUT = "v1"


def object_name(kind: str, key: str) -> str:
    """The name of an object in a store and in a bundle."""
    return f"{LAYOUT}/{kind}/{key[:2]}/{key}"
