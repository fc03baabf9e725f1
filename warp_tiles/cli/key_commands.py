"""``warp-tiles keys``: the keys that sign the entries of a remote store, and the keys that are trusted."""

from __future__ import annotations

from pathlib import Path

import click

from warp_tiles.cli.output import FILE, json_option, print_result, print_rows
from warp_tiles.settings import current
from warp_tiles.store.keys import PublicKey, SigningKey, TrustedKeys, trusted_by


@click.group()
def keys() -> None:
    """Keys of a remote store: who signs entries, and whose signatures are trusted."""


@keys.command()
@click.option("-o", "--output", "file", type=FILE, required=True, help="Write the private key here.")
@json_option
def new(file: Path, as_json: bool) -> None:
    """Write a new private key to a file, and print its public key.

    An existing file is never replaced. Whoever has the private key can choose code for everybody who trusts it.
    """
    key = SigningKey.generate()
    key.write(file)
    _print_public(key.public, as_json)


@keys.command()
@click.argument("file", type=FILE, required=False)
@json_option
def show(file: Path | None, as_json: bool) -> None:
    """Print the public key of the private key FILE; without FILE, the signing key and the trusted keys."""
    if file is not None:
        _print_public(SigningKey.read(file).public, as_json)
        return
    now = current()
    signing = SigningKey.read(now.signing_key).public if now.signing_key is not None else None
    trusted = sorted(trusted_by(now).values(), key=str)
    rows = [{"public": str(k), "id": k.key_id, "comment": k.comment} for k in trusted]
    data = {"signing": str(signing) if signing is not None else None, "trusted": rows}
    table: list[tuple[str, ...]] = [("signs", str(signing), signing.key_id, "")] if signing is not None else []
    table += [("trusted", *row.values()) for row in rows]
    print_rows(as_json, data, ("what", "public key", "id", "comment"), table)


@keys.command()
@click.argument("public", nargs=-1, required=True)
@json_option
def trust(public: tuple[str, ...], as_json: bool) -> None:
    """Trust the key PUBLIC, and load what its owner has signed. Words after the key are a comment.

    Its owner can then choose the code that runs on your GPU, and your user's rights with it.
    """
    key, file = PublicKey.parse(" ".join(public)), TrustedKeys()
    added = file.add(key)
    data = {"public": str(key), "id": key.key_id, "comment": key.comment, "added": added}
    print_result(as_json, data, f"{'added to' if added else 'already in'} {file.path}: {key}")


def _print_public(key: PublicKey, as_json: bool) -> None:
    print_result(as_json, {"public": str(key), "id": key.key_id}, str(key))
