"""What is kept: the content-addressed cache of one machine, and the objects that leave it.

The cache holds compiled functions (raw LTO-IR) and linked modules. A key is a list of labelled inputs. A payload is
stored under its SHA-256. The cache never fails a build: if its folder cannot be used, only the caching is lost. It does
refuse a folder that others can write. See ``docs/cache.md``.

Objects leave the machine in remote stores and bundles, which sign them. See ``docs/remote.md``.
"""

#: Kinds of objects: LTO-IR of a function, a linked module, tuning records, facts about the toolchain of a deployment.
LTOIR, MODULE, RECORDS, TOOLCHAIN = "ltoir", "module", "records", "toolchain"
#: The toolchain of a statement that holds for all of them.
ANY_TOOLCHAIN = "any"
#: The fact of an entry that was signed elsewhere: the id of the key.
SIGNED_BY = "signed_by"
#: The fact of an entry that was compiled from a start list, and whose source no launch has generated yet.
AHEAD = "ahead"
LAYOUT = "v1"


def object_name(kind: str, key: str) -> str:
    """The name of an object in a store and in a bundle."""
    return f"{LAYOUT}/{kind}/{key[:2]}/{key}"
