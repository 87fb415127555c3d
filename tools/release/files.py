"""The files of a release, each checked as it is made: wheel, chart, install.yaml, bills of materials, lists."""

import hashlib
import json
import re
import shutil
import sys
import venv
from pathlib import Path

from tools.release.steps import BIN, CHART, FILES, REGISTRY, ROOT, SUMS, VERSION, expect, run, say

IMAGES = tuple(f"rlhf-{name}:{VERSION}" for name in ("operator", "trainer"))
BILLS = dict(
    zip(IMAGES, (f"rlhf-operator-{VERSION}.cdx.json", f"rlhf-trainer-{VERSION}-gpu.cdx.json"), strict=True)
)
"""Of materials, by image."""
NAMESPACE, SECRET = "rlhf-system", "rlhf-operator-token-key"
# The Dockerfile takes them away again.
NOT_IN_IMAGES = {"cpu": {"torchvision", "torchaudio", "torchcodec", "triton"}}
NOT_IN_IMAGES["gpu"] = {"torchaudio", "torchcodec"}
BLOBS = "images/blobs/"
_PIP = (sys.executable, "-m", "pip")
_COMMON = ROOT / "constraints" / "common.txt"
(_TORCH,) = re.findall(r"^torch==(.+)$", _COMMON.read_text(), flags=re.MULTILINE)
_OLDEST = "1.30.0"
_INSTALL = f"""\
# rlhf-operator {VERSION}, as its chart makes it with its defaults for Kubernetes {_OLDEST[:-2]} or newer. The tokens of
# jobs are made from a key, which must be your cluster's alone, so that comes first:
#   kubectl create namespace {NAMESPACE}
#   kubectl -n {NAMESPACE} create secret generic {SECRET} --from-literal=token-key="$(openssl rand -hex 32)"
#   kubectl apply -f {FILES}/v{VERSION}/install.yaml
"""


def make_wheel(made: Path) -> Path:
    say("wheel")
    run(*_PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", made, ROOT)
    wheel = made / f"rlhf_operator-{VERSION}-py3-none-any.whl"
    expect(wheel.is_file(), f"no {wheel.name}")
    return wheel


def make_chart(made: Path) -> None:
    """The chart, and what it makes with its defaults as one file."""
    say("chart, install.yaml")
    helm = BIN / "helm"
    run(helm, "lint", "--quiet", "--strict", CHART)
    run(helm, "package", CHART, "--destination", made)
    rendered = run(
        *(helm, "template", "rlhf", made / f"rlhf-operator-{VERSION}.tgz", "--namespace", NAMESPACE),
        *("--skip-tests", "--kube-version", _OLDEST, "--set", f"tokenKey.existingSecret={SECRET}"),
    )
    for image in IMAGES:
        expect(f"{REGISTRY}/{image}" in rendered, f"the chart does not name {REGISTRY}/{image}")
    expect("kind: Secret\n" not in rendered, "install.yaml has a Secret, which would be everybody's")
    (made / "install.yaml").write_text(_INSTALL + rendered)


def make_lists(made: Path) -> None:
    """Copies of what the repository has, and what a mirror needs: the images' names, and the script that loads them."""
    for folder in ("constraints", "crds"):
        shutil.copytree(ROOT / folder, made / folder)
    shutil.copy(ROOT / "LICENSE", made)
    shutil.copy(CHART.parent / "artifacthub-repo.yml", made)
    shutil.copy(Path(__file__).with_name("load.sh"), made)
    (made / "images.txt").write_text("".join(f"{REGISTRY}/{image}\n" for image in IMAGES))


def try_wheel(wheel: Path, environment: Path) -> Path:
    """The Python of an environment with the wheel alone."""
    say("the wheel with the operator's extra in an empty environment")
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"--constraint={_COMMON}", f"{wheel}[operator]")
    run(python, "-m", "pip", "check")
    manifest = ROOT / "examples" / "sentiment" / "ppo.yaml"
    run(environment / "bin" / "rlhf", "validate", "--no-files", manifest, cwd=environment)
    return python


def make_operator_bill(made: Path, python: Path) -> None:
    """Of the environment in which its wheel is tried, with licenses and who depends on whom."""
    bill = made / BILLS[IMAGES[0]]
    run(BIN / "cyclonedx-py", "environment", "--output-file", bill, python)
    check_bill(bill, {"rlhf-operator": VERSION})


def make_trainer_bill(made: Path, engine: str, report: Path) -> None:
    """Of what pip would install; only metadata is read."""
    say(f"what a trainer with ENGINE={engine} consists of")
    command = [*_PIP, "install", "--dry-run", "--quiet", "--ignore-installed", "--use-feature=fast-deps"]
    command += [f"--report={report}", f"--constraint={ROOT / 'constraints' / engine}.txt"]
    # Of a GPU's torch there is only PyPI's build, also where pip finds another: `===` takes no other.
    run(*command, f"{ROOT}[trainer,{engine}]", f"torch{'===' if engine == 'gpu' else '=='}{_TORCH}")
    packages = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    versions = {
        each["name"]: each["version"] for each in packages if each["name"] not in NOT_IN_IMAGES[engine]
    }
    bill = made / f"rlhf-trainer-{VERSION}-{engine}.cdx.json"
    lines = "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))
    run(BIN / "cyclonedx-py", "requirements", "--output-file", bill, "-", input=lines)
    check_bill(bill, versions)


def check_bill(bill: Path, expected: dict[str, str]) -> None:
    """cyclonedx-py has checked the schema."""
    listed = {each["name"]: each.get("version") for each in json.loads(bill.read_text())["components"]}
    missing = [name for name, version in expected.items() if listed.get(name) != version]
    expect(not missing, f"{bill.name} lacks {', '.join(missing)}")


def write_sums(folder: Path) -> None:
    """Of every file but the images' blobs, whose names are their sums."""
    names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    lines = (f"{sha256(folder / name)}  {name}\n" for name in names if is_summed(name))
    (folder / SUMS).write_text("".join(lines))


def check_sums(folder: Path) -> list[str]:
    """The names of the files, which are as they were made."""
    sums = folder / SUMS
    expect(sums.is_file(), f"{folder} holds no release: make one first (`make release`)")
    lines = [line.partition("  ") for line in sums.read_text().splitlines()]
    changed = [name for digest, _, name in lines if not _is(folder / name, digest)]
    expect(
        not changed,
        f"not as the release was made: {', '.join(changed)} in {folder}; run `make release` again",
    )
    return sorted(name for _, _, name in lines)


def is_summed(name: str) -> bool:
    return name != SUMS and not name.startswith(BLOBS) and "-bundle.tar" not in name


def sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _is(file: Path, digest: str) -> bool:
    return file.is_file() and sha256(file) == digest
