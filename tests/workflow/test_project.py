"""What the project says of itself in several places agrees."""

import re
import tomllib

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.workflow_copy import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = dict(
    line.split("==") for line in (ROOT / "requirements.lock").read_text().splitlines() if line and line[0] != "#"
)
PINS = {canonicalize_name(name): version for name, version in LOCK.items()}
ON_LINUX = {**default_environment(), "platform_system": "Linux", "python_version": "3.11"}
EXTRAS = PROJECT["optional-dependencies"]


def requirements():
    texts = [*PROJECT["dependencies"], *EXTRAS["test"], *EXTRAS["peers"], *EXTRAS["slurm"], *EXTRAS["notebook"]]
    return [requirement for requirement in map(Requirement, texts) if requirement.name != "mfulab"]


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_the_lock_pins_a_version_that_each_requirement_allows(requirement):
    if requirement.marker is None or requirement.marker.evaluate(ON_LINUX):
        assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)])


def test_conda_users_get_the_locked_versions_of_the_same_python():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    [pip] = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert pip == ["--constraint requirements.lock", "--editable ."]
    [python] = [entry for entry in environment["dependencies"] if str(entry).startswith("python")]
    version = re.search(r"for Python ([\d.]+\d)", (ROOT / "requirements.lock").read_text()).group(1)
    assert python == f"python={version}"
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(version)


def test_the_base_install_brings_no_library_that_only_a_gpu_can_use():
    base = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    assert not {name for name in base if name.startswith(("nvidia-cu", "nvmath", "triton"))}


def test_every_rule_has_its_script_and_every_step_its_rule_and_module():
    from mfulab.schema.measurements import MEASUREMENTS

    rules = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    for step in MEASUREMENTS:
        assert f"rule {step}:" in rules
        assert (ROOT / "scripts" / f"{step}.py").exists()
        assert (ROOT / "src/mfulab/steps" / f"{step}.py").exists()


def test_config_readme_names_every_top_level_key():
    keys = yaml.safe_load((ROOT / "config/config.yaml").read_text()).keys() - {"defaults", "hydra"}
    text = (ROOT / "config/README.md").read_text()
    assert not {key for key in keys if f"`{key}" not in text}


def test_every_shipped_experiment_is_listed_in_the_readme():
    text = (ROOT / "README.md").read_text()
    names = {path.stem for path in (ROOT / "config/experiment").glob("*.yaml")}
    assert not {name for name in names if f"`{name}`" not in text}
