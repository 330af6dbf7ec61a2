"""What is installed from elsewhere: by hash, commit or digest, or named in SECURITY.md."""

import os
import re
import subprocess
import tomllib

import pytest
import yaml
from support.workflow_copy import ROOT

import mfulab
from mfulab import peaks

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PINNED_ACTION = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
SECURITY = (ROOT / "SECURITY.md").read_text()
# Ways that check versions alone, each with the words by which SECURITY.md names it.
BY_VERSION = {
    '".[torch]"': "weekly",
    '".[test]"': "weekly",
    "py-rattler-build": "weekly",
    "--quiet pytest": "weekly",
    '"$GITHUB_ACTION_PATH/../../..${OLD:+[trace]}"': "gate action",
    "$(VENV)/new.lock --editable": "KEEP=1",
    "$(PIP) $$from": "torch's CPU build",
    "$(PIP) --editable .": "make",  # this checkout itself
}


def jobs(path):
    return yaml.safe_load(path.read_text())["jobs"].values()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_commits_and_images_digests(path):
    used = [line.strip(" -") for line in path.read_text().splitlines() if "uses:" in line]
    assert used
    assert [line for line in used if not PINNED_ACTION.fullmatch(line)] == []
    for job in jobs(path):
        container = job.get("container", {})
        assert isinstance(container, dict), "an image with options"
        assert not container or DIGEST.search(container["image"])
        assert "--privileged" not in container.get("options", "")


def test_an_action_of_ours_uses_no_other():
    actions = sorted((ROOT / ".github/actions").glob("*/action.yml"))
    assert actions
    for path in actions:
        steps = yaml.safe_load(path.read_text())["runs"]["steps"]
        assert [step for step in steps if "run" not in step] == []


SAYS_ITS_WORDS = """
for word
do
    case "$word" in *" "*) word="[$word]";; esac
    printf "%s " "$word"
done
"""


def act(folder, stand_in, **given):
    """What the action's last step leaves in the job's summary, and how it ended; `stand_in` is the
    script that it asks for mfulab."""
    (path,) = (ROOT / ".github/actions").glob("*/action.yml")
    step = yaml.safe_load(path.read_text())["runs"]["steps"][-1]
    command = folder / "mfulab/bin/mfulab"
    command.parent.mkdir(parents=True)
    command.write_text(stand_in)
    command.chmod(0o755)
    inputs = dict.fromkeys(step["env"], "") | {"MINUTES": "5", "NOTICEABLE": "5%"} | given
    summary = folder / "summary.md"
    places = {"RUNNER_TEMP": str(folder), "GITHUB_STEP_SUMMARY": str(summary)}
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env={**os.environ, **inputs, **places},
        capture_output=True,
        text=True,
    )
    return summary.read_text(encoding="utf-8"), done


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"BASE": "origin/main", "COMMAND": "python bench.py", "OPTIONS": "--cpu-time"},
            "gate --format markdown --noticeable 5% --base origin/main --minutes 5 --cpu-time"
            " -- [python bench.py] ",
        ),
        (
            {"OLD": "before/my results", "NEW": "results", "OPTIONS": "--gate '5 %'"},
            "compare --format markdown --noticeable 5% --gate [5 %] [before/my results] results ",
        ),
    ],
)
@pytest.mark.parametrize(("told", "status"), [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_the_action_asks_the_command_and_fails_as_it_does(given, words, told, status, tmp_path):
    summary, done = act(tmp_path, f"{SAYS_ITS_WORDS}\nexit {told}\n", **given)
    assert (summary, done.returncode) == (words, status)
    assert ("::warning::" in done.stdout) == (told == 3)


def test_the_action_s_summary_is_never_empty(tmp_path):
    summary, done = act(tmp_path, "exit 2\n", COMMAND="false")
    assert done.returncode == 2
    assert summary.startswith("### ")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_the_repository_and_keeps_no_password(path):
    content = yaml.safe_load(path.read_text())
    assert content["permissions"] == {"contents": "read"}
    for job in jobs(path):
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_the_image_has_a_digest_and_runs_as_no_root():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    images = [line for line in lines if line.startswith("FROM ")]
    assert images
    assert [line for line in images if not DIGEST.search(line)] == []
    users = [line.removeprefix("USER ") for line in lines if line.startswith("USER ")]
    assert users
    assert users[-1] not in ("root", "0")
    assert lines.index(f"USER {users[-1]}") < lines.index('CMD ["report"]')


def test_pip_checks_hashes_or_security_names_the_way():
    text = (ROOT / "Makefile").read_text()
    for path in (ROOT / "scripts").glob("*.py"):
        text += path.read_text()
    text += (ROOT / "Dockerfile").read_text() + (ROOT / ".ci/run").read_text()
    for path in (ROOT / ".github").rglob("*.yml"):
        text += path.read_text()
    installs = re.findall(r"^.*(?:pip install|\$\(PIP\)|\$\(LOCKED\)).*$", text, re.MULTILINE)
    installs += re.findall(r'"pip", "install".*$', text, re.MULTILINE)
    assert len(installs) > 5
    for line in installs:
        if (
            re.match(r"(BY_\w+|PIP) =|.*`pip install|\s*#", line)
            or "LOCKED" in line
            or "hashes" in line
        ):
            continue
        if "*pinned" in line:  # of scripts/lock.py
            continue
        named = [words for way, words in BY_VERSION.items() if way in line]
        assert named, line
        assert all(words in SECURITY for words in named), line


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").rglob("*.lock")), ids=str)
def test_every_pin_of_a_lock_has_hashes(path):
    packages = re.split(r"\n(?=\S)", path.read_text().strip())
    pins = [package for package in packages if not package.startswith("#")]
    assert pins
    assert [pin for pin in pins if "==" not in pin or "--hash=sha256:" not in pin] == []


def test_conda_checks_versions_alone_as_security_says():
    for path in ROOT.glob("environment*.yml"):
        assert "--hash" not in path.read_text()
    assert "environment*.yml" in SECURITY
    assert "versions alone" in SECURITY


def test_a_tool_of_the_audit_and_the_locks_is_locked_itself():
    named = re.findall(r"requirements/tools/(\w+)\.lock", (ROOT / "Makefile").read_text())
    assert "audit" in named
    for tool in ("audit", "uv"):
        assert (ROOT / f"requirements/tools/{tool}.lock").is_file()


@pytest.mark.parametrize(
    ("package", "folder"), [("mfulab", ROOT), ("mfulab-peaks", ROOT / "packages/peaks")]
)
def test_a_recipe_of_conda_has_the_versions_and_the_requirements_of_the_package(package, folder):
    path = ROOT / "packages/conda" / package / "recipe.yaml"
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = mfulab.__version__ if package == "mfulab" else peaks.__version__
    assert recipe["context"]["version"] == version
    needed = [f"python {project['requires-python']}", *project["dependencies"]]
    found = [re.sub(r"[ ]", "", line) for line in recipe["requirements"]["run"]]
    assert found == [line.replace(" ", "") for line in needed]
    (script,) = project["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [" = ".join(script)]
    assert (path.parent / recipe["source"]["path"]).resolve() == ROOT


def test_an_image_of_the_documents_has_a_digest_or_security_names_it():
    pulled = set()
    for page in sorted((ROOT / "docs").glob("*.md")):
        pulled.update(re.findall(r"docker://[\w./:@-]+", page.read_text(encoding="utf-8")))
    assert pulled
    for image in pulled:
        assert DIGEST.search(image) or f"`{image}`" in SECURITY, image
