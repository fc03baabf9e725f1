"""Ed25519 keys: their texts, their files, and the file of trusted keys."""

import base64
import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from warp_tiles.errors import RemoteError
from warp_tiles.settings import Settings
from warp_tiles.store.keys import PublicKey, SigningKey, TrustedKeys, signer_of, trusted_by, trusted_keys

# RFC 8032, section 7.1, test 2
SECRET = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
PUBLIC = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


def test_the_signature_of_the_rfc() -> None:
    key = SigningKey(Ed25519PrivateKey.from_private_bytes(SECRET))
    assert key.public.raw == PUBLIC
    assert key.sign(b"\x72") == SIGNATURE
    assert key.public.verifies(SIGNATURE, b"\x72")
    assert not key.public.verifies(SIGNATURE, b"\x73")
    assert not key.public.verifies(SIGNATURE[:-1], b"\x72")
    assert not SigningKey.generate().public.verifies(SIGNATURE, b"\x72")


def test_the_text_of_a_public_key_and_its_comment() -> None:
    key = SigningKey.generate().public
    again = PublicKey.parse(f"  {key} the CI of our team \n")
    assert again == key
    assert again.comment == "the CI of our team"
    assert len({key, again}) == 1
    assert len(key.key_id) == 16
    for text in ("", "ed25519:", "ed25519:AAAA", "rsa:" + "A" * 43 + "=", "A" * 43 + "=", "ed25519:é"):
        with pytest.raises(RemoteError, match="is not a public key"):
            PublicKey.parse(text)
    for comment in ("our\x0cCI", "our\nCI", "\x1b[31mCI"):
        with pytest.raises(RemoteError, match="is not a comment"):
            PublicKey.parse(f"{key} {comment}")


def test_a_private_key_is_for_its_owner_alone_and_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path, key = tmp_path / "key.pem", SigningKey.generate()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(RemoteError, match="cannot be written: No space left"):
            key.write(path)
    assert list(tmp_path.iterdir()) == []
    key.write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.read(path).public == key.public
    with pytest.raises(RemoteError, match="cannot be written: File exists"):
        SigningKey.generate().write(path)
    assert SigningKey.read(path).public == key.public
    path.chmod(0o640)
    with pytest.raises(RemoteError, match="others can read the private key"):
        SigningKey.read(path)


def pem(data: bytes) -> bytes:
    return b"-----BEGIN PRIVATE KEY-----\n%s\n-----END PRIVATE KEY-----\n" % base64.b64encode(data)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read"),
        (b"", "cannot be read"),
        (pem(b"\0\0\0"), "cannot be read"),
        # of an unknown algorithm, and X25519
        (pem(bytes.fromhex("302e020100300506032a030404220420") + bytes(32)), "cannot be read"),
        (pem(bytes.fromhex("302e020100300506032b656e04220420") + bytes(32)), "is not an Ed25519 key"),
    ],
    ids=["missing", "empty", "zeros", "an unknown algorithm", "X25519"],
)
def test_an_unusable_private_key(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "key.pem"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(RemoteError, match=reason) as caught:
        SigningKey.read(path)
    assert "keys new" in caught.value.remedy


def test_a_reader_needs_no_signing_key_that_it_can_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("nothing")
    settings = Settings(signing_key=path, trusted_keys=(str(SigningKey.generate().public),))
    with pytest.warns(RuntimeWarning, match="the own signing key is not trusted: .*key"):
        assert len(trusted_by(settings)) == 1
    with pytest.raises(RemoteError):
        signer_of(settings)


def test_a_user_without_a_home_trusts_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    def homeless(*_: object, **__: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(platformdirs, "user_config_path", homeless)
    assert TrustedKeys().read() == ()
    with pytest.raises(RemoteError, match="cannot be written"):
        TrustedKeys().add(SigningKey.generate().public)


def test_the_file_of_trusted_keys(tmp_path: Path) -> None:
    file, key, other = TrustedKeys(tmp_path / "config"), SigningKey.generate().public, SigningKey.generate().public
    assert file.read() == ()
    assert file.add(PublicKey(key.raw, "our CI"))
    assert not file.add(key)
    file.path.write_text("# a comment\n\n" + file.path.read_text())
    assert file.read() == (key,)
    assert file.read()[0].comment == "our CI"
    assert trusted_keys([str(other)], file) == {key.key_id: key, other.key_id: other}
    sound = file.path.read_text()
    file.path.write_text(sound.replace("ed25519", "ed25518"))
    with pytest.raises(RemoteError, match="is not a public key"):
        file.read()
    file.path.write_text(sound)
    file.path.parent.chmod(0o777)
    with pytest.raises(RemoteError, match="cannot be read"):
        file.read()
    file.path.parent.chmod(0o700)
    assert file.read() == (key,)
    file.path.symlink_to(file.path.rename(tmp_path / "elsewhere"))
    with pytest.raises(RemoteError, match="cannot be read"):
        file.read()


def test_keys_that_are_trusted_at_once_are_all_kept_and_lines_stay(tmp_path: Path) -> None:
    revoked = f"# revoked {SigningKey.generate().public}"
    (tmp_path / "config").mkdir(mode=0o700)
    TrustedKeys(tmp_path / "config").path.write_text(revoked)  # without an end of the line
    keys = [SigningKey.generate().public for _ in range(12)]
    with ThreadPoolExecutor(len(keys)) as threads:
        assert all(threads.map(lambda key: TrustedKeys(tmp_path / "config").add(key), keys))
    assert set(TrustedKeys(tmp_path / "config").read()) == set(keys)
    assert TrustedKeys(tmp_path / "config").path.read_text().startswith(f"{revoked}\n")
