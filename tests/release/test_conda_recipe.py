"""The conda recipe agrees with pyproject.toml."""

from tools import conda_recipe
from tools.project import pyproject, version


def test_the_recipe_agrees_with_pyproject() -> None:
    assert conda_recipe.problems(conda_recipe.read(), conda_recipe.from_pyproject()) == []


def test_the_expression_of_the_version_finds_it() -> None:
    expression = conda_recipe.read()["context"]["version"]
    assert expression == """${{ (load_from_file("../warp_tiles/util/version.py") | split('"') | list)[-2] }}"""
    assert (conda_recipe.ROOT / "warp_tiles" / "util" / "version.py").read_text().split('"')[-2] == version()


def test_it_is_one_package_for_all_pythons_with_the_projects_facts() -> None:
    recipe, project = conda_recipe.read(), pyproject()["project"]
    assert recipe["build"]["noarch"] == "python"
    assert recipe["package"]["name"] == project["name"]
    assert recipe["build"]["python"]["entry_points"] == [f"{k} = {v}" for k, v in project["scripts"].items()]
    about = recipe["about"]
    assert (about["license"], about["license_file"]) == (project["license"], *project["license-files"])
    assert (about["summary"], about["homepage"]) == (project["description"], project["urls"]["Homepage"])
    host = {text.partition(" ")[0] for text in recipe["requirements"]["host"]}
    assert {text.partition(">")[0] for text in pyproject()["build-system"]["requires"]} <= host
