"""Compares the dependencies of recipe/recipe.yaml with those of pyproject.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tools.project import ROOT, pyproject

RECIPE = Path("recipe/recipe.yaml")
CONDA_NAMES = {
    "nvidia-cuda-nvrtc": "cuda-nvrtc",
    "nvidia-nvjitlink": "libnvjitlink",
    "nvidia-cuda-nvcc": "cuda-nvcc-impl",
    "nvidia-cuda-runtime": "cuda-cudart-dev",
    "nvidia-cuda-cccl": "cuda-cccl",
    "nvidia-mathdx": "mathdx",
}
CUDA = SpecifierSet("<14")  # an environment has one CUDA for all packages; the wheels' suffix -cu12 says which
VIRTUAL = {"__linux", "__cuda"}


def from_pyproject(root: Path = ROOT) -> dict[str, SpecifierSet]:
    """The names and versions that a conda package needs, Python included."""
    project = pyproject(root)["project"]
    found = {"python": SpecifierSet(project["requires-python"])}
    # the extra has the oldest compiler, and so the least versions
    for text in (*project["dependencies"], *project["optional-dependencies"]["cu12"]):
        wanted = Requirement(text)
        versions = wanted.specifier
        if wanted.name.endswith("-cu12"):
            versions &= CUDA
        name = wanted.name.removesuffix("-cu12")
        found[CONDA_NAMES.get(name, name)] = versions
    return found


def read(root: Path = ROOT) -> dict[str, Any]:
    """The recipe as YAML. Its expressions are texts."""
    import yaml

    data: dict[str, Any] = yaml.safe_load((root / RECIPE).read_text("utf-8"))
    return data


def from_recipe(recipe: dict[str, Any]) -> dict[str, SpecifierSet]:
    """The names and versions of a recipe's run requirements, without virtual packages."""
    found = {}
    for text in recipe["requirements"]["run"]:
        name, _, versions = str(text).partition(" ")
        if name not in VIRTUAL:
            found[name] = SpecifierSet(versions)
    return found


def problems(recipe: dict[str, Any], wanted: dict[str, SpecifierSet]) -> list[str]:
    """The differences between a recipe and the dependencies of pyproject.toml, one text for each."""
    has = from_recipe(recipe)
    faults = [f"{RECIPE} lacks {name} {versions}" for name, versions in wanted.items() if name not in has]
    faults += [f"{RECIPE} needs {name}, which pyproject.toml does not" for name in has if name not in wanted]
    faults += [
        f"{RECIPE} has {name} {has[name]}, and pyproject.toml {versions}"
        for name, versions in wanted.items()
        if name in has and has[name] != versions
    ]
    if "load_from_file" not in str(recipe["context"]["version"]):
        faults.append(f"{RECIPE} states a version; it belongs into warp_tiles/util/version.py alone")
    return faults
