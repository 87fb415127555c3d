"""The docs say what is: manifests in them are valid, commands parse, links lead somewhere, the reference is current."""

import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest
import yaml
from tests.support.sources.scripts import load_script

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.manifest.load import parse
from rlhf_api.manifest.runtime import parse_runtime
from rlhf_operator import cli

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(
        page
        for folder in ("docs", "benchmarks", "examples")
        for page in sorted((ROOT / folder).rglob("*.md"))
    ),
]
VALUES = json.loads((ROOT / "charts" / "rlhf-operator" / "values.schema.json").read_text())
SOURCES = [
    file
    for folder in ("operator", "trainer_image", "tests", "benchmarks", "tools", "examples")
    for file in (ROOT / folder).rglob("*.py")
]
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.S | re.M)


@pages
def test_manifests_in_docs_are_valid(page):
    """Ours, and values of the chart; objects of other APIs are used by tests/api_server/oldest."""
    for block in blocks(page, "yaml"):
        document = yaml.safe_load(block)
        if document.keys() <= VALUES["properties"].keys():
            jsonschema.validate(document, VALUES)
            continue
        if not document.get("apiVersion", "rlhf.dev/").startswith("rlhf.dev/"):
            continue
        if "kind" not in document:  # a part of a spec, shown alone
            base = yaml.safe_load((ROOT / "examples" / "sentiment" / "ppo.yaml").read_text())
            document = {**base, "spec": {**base["spec"], **document["spec"]}}
            document["spec"]["model"] = {**base["spec"]["model"], **document["spec"].get("model", {})}
        (parse_runtime if document["kind"].endswith("Runtime") else parse)(document)


@pages
def test_commands_in_docs_are_real(page, monkeypatch, tmp_path):
    """`rlhf` commands parse and name files that exist; `rlhf validate` is run, before any run has left something in
    `runs`; `make` targets exist."""
    for entry in ROOT.iterdir():
        if entry.name != "runs":
            (tmp_path / entry.name).symlink_to(entry)
    monkeypatch.chdir(tmp_path)
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    commands = "".join(blocks(page, "console")).replace("\\\n", "")
    for line in commands.splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "))
        if program == "make":
            assert {word for word in arguments if "=" not in word} <= set(targets)
        elif Path(program).name == "rlhf":
            options = cli._parser().parse_args(arguments)
            assert "file" not in options or options.file.is_file() or str(options.file) in ALGORITHMS, line
            if arguments[0] == "validate":
                assert cli.main(arguments) == 0
        else:
            script = next((part for part in arguments if part.endswith(".py")), program)
            assert (ROOT / script).exists(), line


@pages
def test_links_in_docs_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link.partition("#")[0]).exists(), link
    for test in re.findall(r"`(tests/[^`*]+)`", page.read_text()):
        assert (ROOT / test.partition("::")[0]).exists(), test
    for file in re.findall(r"`([\w/]+/\w+\.py)`", page.read_text()):
        trainer = ROOT / "trainer_image"
        folders = (ROOT, ROOT / "operator", trainer, trainer / "rlhf_trainer", EXAMPLES)
        assert any((folder / file).exists() for folder in folders), file


@pages
def test_source_files_named_in_docs_exist(page):
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text()))
    existing = {name for name in named if any(file.match(name) for file in SOURCES)}
    assert not named - existing


def test_pages_named_in_code_exist():
    files = [
        *SOURCES,
        *(ROOT / "tools").iterdir(),
        *(ROOT / "crds").iterdir(),
        ROOT / "Makefile",
    ]
    named = re.compile(r"(?<![\w/.-])(?:docs|benchmarks/results)/[\w/-]+\.(?:md|jsonl|lua)\b")
    missing = {
        (page, file.name)
        for file in files
        if file.is_file()
        for page in named.findall(file.read_text())
        if not (ROOT / page).exists()
    }
    assert not missing


def test_the_manifest_reference_is_current():
    script = ROOT / "tools" / "make_manifest_reference.py"
    assert (ROOT / "docs" / "reference" / "manifest.md").read_text() == load_script(script).page(), (
        f"run {script.relative_to(ROOT)}"
    )


def test_the_list_of_pages_has_every_page():
    folder = ROOT / "docs"
    linked = re.findall(r"\]\(([^)]+)\)", (folder / "README.md").read_text())
    listed = {folder / "README.md", *((folder / link).resolve() for link in linked)}
    assert set(folder.rglob("*.md")) - listed == set()


def test_the_gallery_shows_every_example():
    shown = re.findall(r"\]\(([^)#]+)\)", (EXAMPLES / "README.md").read_text())
    covered = {(EXAMPLES / link).resolve() for link in shown}
    for manifest in EXAMPLES.rglob("*.yaml"):
        assert covered & {manifest, manifest.parent}, f"{manifest.relative_to(EXAMPLES)} is in no table"
