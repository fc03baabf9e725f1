"""Settings: the layers of a value and their order, the project file, policies and providers."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles import settings
from warp_tiles.errors import SettingError
from warp_tiles.settings import POLICIES, PROVIDER_ORDER, configure, current, from_environment, override, table

pytestmark = pytest.mark.usefixtures("clean_settings")

KEY = "ed25519:" + "A" * 43 + "="


def test_none_in_configure_removes_only_that_setting() -> None:
    configure(jobs=2, linker="warp")
    configure(jobs=None)
    assert current().jobs == 0
    assert current().linker == "warp"
    configure(linker=None)
    assert current() == settings.Settings()


def test_an_override_ends_with_its_block_and_removes_its_own_layer_alone() -> None:
    with pytest.raises(KeyError), override(provider="scalar"):
        raise KeyError("the block failed")
    assert current().provider == "auto"
    first, second = override(jobs=1), override(jobs=1, linker="warp")
    first.__enter__()
    with override(jobs=1):  # an equal one
        pass
    assert current().jobs == 1
    second.__enter__()
    first.__exit__(None, None, None)
    assert (current().jobs, current().linker) == (1, "warp")
    second.__exit__(None, None, None)
    assert current() == settings.Settings()


def test_every_setting_can_come_from_the_environment() -> None:
    found = {  # each text, and its value if that is no text
        "provider": ("scalar",), "mathdx_opt_out": ("own",), "solver_gradients": ("own",), "linker": ("own",),
        "cache_dir": ("/x", Path("/x")), "cache_max_bytes": ("1MB", 10**6), "cache_shared": ("1", True),
        "build_wait_s": ("30", 30.0), "modules": ("all",), "remote": ("s3://bucket/path",),
        "trusted_project_dirs": (os.pathsep.join(("/p", "/q")), (Path("/p"), Path("/q"))),
        "remote_push": ("1", True), "remote_wait_s": ("2.5", 2.5), "bundle": ("/bundle.zip", Path("/bundle.zip")),
        "kernel_packages": ("Client.kernels, other", "client-kernels,other"),
        "signing_key": ("/key.pem", Path("/key.pem")), "trusted_keys": (f"{KEY}, {KEY}", (KEY, KEY)),
        "jobs": ("3", 3), "progress": ("off",), "register_accumulators": ("0", False), "main_loop": ("mma",),
        "gemm_gradients": ("always",), "async_copies": ("0", False), "policy": ("fast",),
        "record_paths": (os.pathsep.join(("/a", "/b")), (Path("/a"), Path("/b"))),
        "record_driver_mismatch": ("retune",), "target_gpu": ("NVIDIA H200",), "tune_budget_s": ("2.5", 2.5),
    }  # fmt: skip
    assert set(found) == set(settings.SETTINGS)
    environment = {settings.ENVIRONMENT[name]: str(values[0]) for name, values in found.items()}
    assert from_environment(environment) == {name: values[-1] for name, values in found.items()}


def test_a_listener_is_called_once_for_every_change_by_code() -> None:
    values: list[int] = []
    listener = lambda: values.append(current().jobs)  # noqa: E731
    settings.on_change(listener)
    settings.on_change(listener)
    configure(jobs=1)
    assert values == [1]
    with override(jobs=2):
        assert values == [1, 2]
    assert values == [1, 2, 1]
    with pytest.raises(SettingError):
        configure(jobs="bogus")
    assert values == [1, 2, 1]  # nothing changed


# ---- every layer

PROVIDERS = ("auto", *PROVIDER_ORDER)
SAMPLES: dict[str, list[Any]] = {
    "provider": list(PROVIDERS), "mathdx_opt_out": ["auto", "warp", "own"], "linker": ["auto", "own", "warp"],
    "cache_dir": ["/a", "/b", "/c"], "cache_max_bytes": ["1MB", 2_000_000, "3GiB"], "cache_shared": [True, False],
    "jobs": [1, "2", 3, 4, 5], "progress": ["auto", "on", "off"], "register_accumulators": [True, False],
    "main_loop": ["auto", "mma", "double_buffered", "wgmma,stages=3,in_flight=0"],
    "gemm_gradients": ["auto", "always", "off"], "policy": list(POLICIES), "record_paths": ["/a", "/b"],
    "record_driver_mismatch": ["reuse", "retune"], "target_gpu": ["one GPU", "another"],
    "tune_budget_s": [1, "2.5", 30],
}  # fmt: skip
LAYERS = ("override()", "configure()", "module option", "environment variable", "pyproject.toml")


@st.composite
def layered(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """Values of some settings in some of the layers."""
    names = draw(st.lists(st.sampled_from(sorted(SAMPLES)), unique=True, max_size=4))
    found = {}
    for name in names:
        layers = draw(st.lists(st.sampled_from(LAYERS), unique=True))
        found[name] = {layer: draw(st.sampled_from(SAMPLES[name])) for layer in layers}
    return found


def toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, (bool, int)) else f'"{value}"'


@given(layered())
def test_the_innermost_layer_with_a_value_decides(
    tmp_path_factory: pytest.TempPathFactory, given_values: dict[str, dict[str, Any]]
) -> None:
    def of(layer: str) -> dict[str, Any]:
        return {name: values[layer] for name, values in given_values.items() if layer in values}

    folder = tmp_path_factory.mktemp("project")
    (folder / "below").mkdir()
    lines = [f"{name} = {toml(value)}" for name, value in of("pyproject.toml").items()]
    (folder / "pyproject.toml").write_text("\n".join(["[tool.warp_tiles]", *lines]))
    options = {"enable_backward": True, **{f"warp_tiles_{name}": value for name, value in of("module option").items()}}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "below")
        patch.setenv(settings.ENVIRONMENT["trusted_project_dirs"], str(folder))
        for name, value in of("environment variable").items():
            patch.setenv(settings.ENVIRONMENT[name], str(value))
        configure(**of("configure()"))
        try:
            with override(**of("override()")):
                now = current(options, "m")
                process = current()
        finally:
            configure(**dict.fromkeys(SAMPLES))
    for name in settings.SETTINGS:
        if name == "trusted_project_dirs":
            continue
        values = given_values.get(name, {})
        inner = next((layer for layer in LAYERS if layer in values), None)
        default = getattr(settings.Settings, name)
        expected = default if inner is None else settings.SETTINGS[name].parse(name, values[inner])
        assert getattr(now, name) == expected
        assert now.layer(name).startswith("default" if inner is None else inner.replace("pyproject.toml", str(folder)))
        inner = next((layer for layer in LAYERS if layer in values and layer != "module option"), None)
        assert getattr(process, name) == (
            default if inner is None else settings.SETTINGS[name].parse(name, values[inner])
        )


def test_layers_are_named_in_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.warp_tiles]\npolicy = "fast"\n')
    monkeypatch.chdir(tmp_path)
    assert current().named("policy") == f"the setting policy ({tmp_path / 'pyproject.toml'})"
    monkeypatch.setenv("WARP_TILES_POLICY", "max")
    assert current().named("policy") == "the setting policy (environment variable WARP_TILES_POLICY)"
    option = {"warp_tiles_policy": "locked"}
    assert current(option, "m").named("policy") == "the setting policy (module option warp_tiles_policy of module m)"
    configure(policy="auto")
    assert current(option, "m").named("policy") == "the setting policy (configure())"
    with override(policy="scalar"):
        assert current(option, "m").named("policy") == "the setting policy (override())"
    settings.configure_by_option("policy", "locked")
    assert current(option, "m").named("policy") == "the setting policy (command line)"
    assert current().remedy("policy", "auto") == "give the option --policy auto"
    assert settings.configured() == settings.configured(settings.COMMAND_LINE) == {"policy": "locked"}
    with override(policy="scalar"):
        assert settings.configured(settings.COMMAND_LINE) == {}
    configure(policy="auto")
    assert current().layer("policy") == "configure()"
    configure(policy=None)
    assert current().to_json()["policy"] == {"value": "max", "layer": "environment variable WARP_TILES_POLICY"}
    assert current().to_json()["linker"] == {"value": "auto", "layer": "default"}
    assert current().remedy("linker", "own") == "set WARP_TILES_LINKER=own"


def test_settings_with_equal_values_are_equal_despite_their_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARP_TILES_JOBS", "3")
    of_environment = current()
    with override(jobs=3):
        assert current() == of_environment
        assert hash(current()) == hash(of_environment)
        assert current().layers != of_environment.layers


# ---- options of a module


@pytest.mark.parametrize("option", ["cutlass", 3, "", ["own"], True, "mma"])
def test_an_unknown_provider_of_a_module_lists_the_valid_ones(option: object) -> None:
    with pytest.raises(SettingError, match="module m: option warp_tiles_provider is ") as caught:
        current({"warp_tiles_provider": option}, "m")
    assert "auto, own, cublasdx, libmathdx, scalar" in caught.value.remedy
    assert caught.value.remedy.startswith("it is now 'own'; valid values are ") == (option == "mma"), "its former name"
    assert current({"warp_tiles_provider": None}).layer("provider") == "default"
    with override(provider="own"), pytest.raises(SettingError):
        current({"warp_tiles_provider": option})


# ---- the project file


def project(folder: Path, text: str) -> Path:
    file = folder / "pyproject.toml"
    file.write_text(text)
    return file


def test_the_nearest_file_with_the_table_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    project(tmp_path, "[tool.warp_tiles]\njobs = 1\n")
    project(tmp_path / "a", "[tool.other]\njobs = 2\n")
    monkeypatch.chdir(inner)
    assert current().jobs == 1
    middle = project(tmp_path / "a", "[tool.warp_tiles]\njobs = 3\nasync_copies = false\n")
    assert (current().jobs, current().layer("jobs")) == (3, str(middle))
    project(inner, "[tool.warp_tiles]\n")
    assert current() == settings.Settings(), "an empty table counts too"


def test_the_file_is_read_again_after_a_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    file = project(tmp_path, "[tool.warp_tiles]\njobs = 1\n")
    assert current().jobs == 1
    reads: list[Path] = []
    original = settings.read_whole
    monkeypatch.setattr(settings, "read_whole", lambda path, most: reads.append(Path(path)) or original(path, most))
    assert current().jobs == 1
    assert reads == []
    project(tmp_path, "[tool.warp_tiles]\njobs = 22\n")
    assert current().jobs == 22
    assert reads == [file]
    file.unlink()
    assert current().jobs == 0


def test_folders_are_relative_to_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    project(tmp_path, '[tool.warp_tiles]\ncache_dir = "c"\nrecord_paths = ["r", "/s"]\n')
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.setenv("WARP_TILES_TRUSTED_PROJECT_DIRS", str(tmp_path))
    assert current().cache_dir == tmp_path / "c"
    assert current().record_paths == (tmp_path / "r", Path("/s"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.warp_tiles]\npolcy = 'fast'\n", r"unknown setting polcy in \[tool.warp_tiles\] of .*pyproject.toml"),
        ("[tool.warp_tiles]\npolcy = 'fast'\n", "did you mean policy"),
        ("[tool.warp-tiles]\npolicy = 'fast'\n", r"table \[tool.warp-tiles\](.|\n)*call it \[tool.warp_tiles\]"),
        ("[tool.warp_tiles]\npolicy = 'quick'\n", r"policy in \[tool.warp_tiles\] of .*pyproject.toml is 'quick'"),
        ("[tool.warp_tiles]\njobs = -1\n", r"jobs in \[tool.warp_tiles\] of .*pyproject.toml is -1"),
        ("[tool]\nwarp_tiles = 3\n", r"tool.warp_tiles in .*pyproject.toml is 3"),
        ("[tool.warp_tiles\n", r"pyproject.toml cannot be read"),
        ("tool = 3 # warp_tiles\n", r"pyproject.toml cannot be read"),
    ],
)
def test_a_bad_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str) -> None:
    project(tmp_path, text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match=message) as caught:
        current()
    assert caught.value.remedy


def test_another_users_file_in_a_world_writable_folder_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project(tmp_path, "[tool.warp_tiles]\njobs = 1\n")
    monkeypatch.chdir(tmp_path)
    owner = os.stat("pyproject.toml").st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    if owner == 0:  # files of root are always accepted
        os.chown("pyproject.toml", 1234, -1)
    assert current().jobs == 1, "a folder that only its owner can write is trusted"
    tmp_path.chmod(0o1777)
    assert current().jobs == 0


def test_a_removed_working_directory_has_no_project_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert current() == settings.Settings()


# ---- policy and provider


ALLOWED = {"off": (), "scalar": ("scalar",), "fast": ("own", "scalar")}  # the other policies allow each provider


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_policy_allows_the_default_and_some_named_providers_which_are_then_the_only_ones(
    policy: str, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARP_TILES_POLICY", policy)
    assert current().providers == POLICIES[policy].providers
    configure(provider=provider)
    if provider in ("auto", *ALLOWED.get(policy, PROVIDERS)):
        assert current().providers == (POLICIES[policy].providers if provider == "auto" else (provider,))
        return
    with pytest.raises(SettingError) as caught:
        _ = current().providers
    assert f"{policy!r} (environment variable WARP_TILES_POLICY)" in caught.value.message
    assert f"{provider!r} (configure())" in caught.value.message


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("remote", "ftp://host/path", "its scheme is 'ftp'"),
        *(("remote", url, "is not the URL of a store") for url in ("file://host/x", "https://", "s3://")),
        ("remote", "folder", "give a URL such as"),
        ("remote", "https://user:secret@/x", "names no host"),
        ("remote", "http://user:secret@[::1/", "Invalid IPv6 URL"),
        ("remote_wait_s", "0", "more than 0"),
        ("remote_wait_s", "nan", "finite"),
        ("remote_wait_s", "1e9", "at most 86400"),
        ("trusted_keys", "ed25519:AAAA", "warp-tiles keys show"),
        ("trusted_keys", 5, "with commas between them"),
    ],
)
def test_settings_of_a_remote_store_are_checked(clean_settings: None, name: str, value: object, reason: str) -> None:
    with pytest.raises(SettingError) as caught, override(**{name: value}):
        pass
    assert reason in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "remedy"),
    [
        ("whole_gradients", "whole_gradients is now gemm_gradients. "),
        ("background", "background is gone: the policy 'fast'"),
        ("precompile_headers", "precompile_headers is gone: leave it out"),
        ("cache_modules", "cache_modules is now modules: 'tiles' keeps linked modules"),
    ],
)
def test_a_former_name_is_refused_with_the_remedy(old: str, remedy: str) -> None:
    for call in (
        lambda: configure(**{old: None}),
        lambda: from_environment({f"WARP_TILES_{old.upper()}": "1"}),
        lambda: current({f"warp_tiles_{old}": "1"}),
    ):
        with pytest.raises(SettingError, match="unknown") as caught:
            call()
        assert caught.value.remedy.startswith(remedy)
    assert not set(table.FORMER) & set(settings.SETTINGS)
