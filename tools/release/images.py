"""Images of a release: built by the first of buildah, podman and docker that works, checked, and kept as an OCI layout.

An image is an index with an entry for each platform that the base has and ours can be made for. docker makes the one of
its own machine.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.release.files import IMAGES
from tools.release.steps import ROOT, VERSION, Failed, expect, last_line, run, say

BUILDERS = ("buildah", "podman", "docker")
ARGUMENTS = dict(
    zip(IMAGES, (("--target=operator",), ("--target=trainer", "--build-arg=ENGINE=gpu")), strict=True)
)
"""What each image is built with."""
PLATFORMS = dict(zip(IMAGES, (("linux/amd64", "linux/arm64"), ("linux/amd64",)), strict=True))
"""For which it can be made."""


def base_image() -> str:
    """The argument of builds that names the image from which ours start."""
    named = os.environ.get("BASE_IMAGE", "")
    expect(
        re.fullmatch(r"[^\s@]+@sha256:[0-9a-f]{64}", named) is not None,
        "BASE_IMAGE must name the image from which ours start by its digest, as python@sha256:..., since a tag's owner "
        f"moves it; got {named!r}",
    )
    return f"--build-arg=BASE_IMAGE={named}"


def make_images(layout: Path) -> dict[str, str]:
    """Builds and checks them; returns the reason, by image, for those that could not be built."""
    builder, reason = choose_builder()
    if not builder:
        return dict.fromkeys(IMAGES, reason)
    os.environ.setdefault("BUILDAH_LAYERS", "true")  # kept for the next call, as docker does
    more = (base_image(), *shlex.split(os.environ.get("IMAGE_ARGS", "")))
    failed = {}
    for image in IMAGES:
        platforms = () if builder == "docker" else choose_platforms(image)
        say(f"image {image}, by {builder}{', for ' if platforms else ''}{' and '.join(platforms)}")
        try:
            build(builder, image, (*ARGUMENTS[image], *more), platforms)
            inside = version_inside(builder, image)
            expect(inside == VERSION, f"it has version {inside}")
            export(builder, image, layout)
        except Failed as error:
            failed[image] = str(error).removeprefix("error: ").strip()
    return failed


def choose_builder() -> tuple[str, str]:
    """The first one that works, or the reason why none does."""
    reasons = []
    for name in BUILDERS:
        if not shutil.which(name):
            reasons.append(f"no {name} here")
            continue
        done = subprocess.run([name, "info"], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0:
            return name, ""
        reasons.append(f"`{name} info` failed: {last_line(done.stderr)}")
    return "", "; ".join(reasons)


def choose_platforms(image: str) -> tuple[str, ...]:
    """Those of PLATFORMS, or else those that the base has too; none, which means the machine's, where it says none."""
    if named := os.environ.get("PLATFORMS", ""):
        return tuple(named.split(","))
    base = base_image().rpartition("=")[2]
    inspect = ["skopeo", "inspect", "--raw", f"docker://{base}"]
    try:
        done = subprocess.run(inspect, capture_output=True, text=True, timeout=60, check=True)
        entries = json.loads(done.stdout)["manifests"]
        base_has = {f"{each['platform']['os']}/{each['platform']['architecture']}" for each in entries}
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return ()
    return tuple(each for each in PLATFORMS[image] if each in base_has)


def build(
    builder: str, image: str, arguments: tuple[str, ...], platforms: tuple[str, ...], context: Path = ROOT
) -> None:
    if builder == "docker":
        run(builder, "build", "--quiet", f"--tag={image}", *arguments, context)
        return
    # A build adds to the index that an earlier one has left.
    subprocess.run([builder, "manifest", "rm", image], capture_output=True, check=False)
    several = (f"--platform={','.join(platforms)}",) if platforms else ()
    run(builder, "build", "--quiet", f"--manifest={image}", *several, *arguments, context)


def version_inside(builder: str, image: str) -> str:
    """Of the image for this machine."""
    python = (
        "python3",
        "-c",
        "import importlib.metadata; print(importlib.metadata.version('rlhf-operator'))",
    )
    if builder != "buildah":
        return run(builder, "run", "--rm", f"--entrypoint={python[0]}", image, *python[1:]).strip()
    container = run("buildah", "from", "--pull-never", image).strip()
    try:
        return run("buildah", "run", container, "--", *python).strip()
    finally:
        run("buildah", "rm", container)


def export(builder: str, image: str, layout: Path) -> None:
    """Into the layout, with compressed layers: what is published and carried elsewhere is this, byte for byte."""
    if builder != "docker":
        run(builder, "manifest", "push", "--quiet", "--all", image, f"oci:{layout}:{image}")
        return
    with tempfile.TemporaryDirectory(prefix="rlhf-image-") as scratch:
        archive = Path(scratch) / "image.tar"
        run("docker", "save", f"--output={archive}", image)
        run(
            "skopeo",
            "--insecure-policy",
            "copy",
            "--quiet",
            f"docker-archive:{archive}",
            f"oci:{layout}:{image}",
        )


def read_layout(layout: Path) -> dict[str, str]:
    """The digest of each image in it."""
    index = layout / "index.json"
    entries = json.loads(index.read_text())["manifests"] if index.is_file() else []
    named = {
        each.get("annotations", {}).get("org.opencontainers.image.ref.name"): each["digest"]
        for each in entries
    }
    return {image: named[image] for image in IMAGES if image in named}


def explain_failures(failed: dict[str, str]) -> str:
    """Images that were not built, the reason of each, and how to build them."""
    reasons = "".join(f"\n  {image}: {reason}" for image, reason in failed.items())
    commands = "".join(
        f"\n  {shlex.join(('docker', 'build', *ARGUMENTS[image], f'--tag={image}', base_image(), '.'))}"
        for image in failed
    )
    return (
        f"error: the release lacks images:{reasons}\nTo build them, run `make release` again where the base image and "
        f"the packages can be had; to see an error in full, one of these in {ROOT}:{commands}"
    )
