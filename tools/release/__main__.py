"""Makes a release in a folder and checks it, publishes it to a registry, or packs it for a site without a network.

Images are built from the one that BASE_IMAGE names by its digest; IMAGE_ARGS has more arguments for `build`, PLATFORMS
others than those that the base has too. An image that cannot be built is an error, after all else is in place.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from tools.release import files, images
from tools.release.artifacts import Registry
from tools.release.krew import make_plugin
from tools.release.publish import bundle, publish
from tools.release.steps import REGISTRY, SUMS, VERSION, Failed, expect, say


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="make|publish|bundle")
    for verb in ("make", "publish", "bundle"):
        one = verbs.add_parser(verb)
        one.add_argument("folder", type=Path)
        if verb == "publish":
            one.add_argument(
                "--registry", default=REGISTRY, metavar="HOST[/PATH]", help="default %(default)s"
            )
            one.add_argument("--key", type=Path, help="private key for signatures, PEM, on the curve P-256")
            one.add_argument("--plain-http", action="store_true", help="the registry has no TLS")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if arguments.verb == "make":
        make(folder)
    elif arguments.verb == "publish":
        publish(folder, Registry(arguments.registry, arguments.plain_http), arguments.key)
    else:
        bundle(folder)


def make(destination: Path) -> None:
    earlier = (destination / SUMS).is_file()
    expect(
        earlier or not destination.exists(),
        f"{destination} is there and no release; remove it or name another",
    )
    images.base_image()
    with tempfile.TemporaryDirectory(prefix="rlhf-release-") as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        wheel = files.make_wheel(made)
        files.make_chart(made)
        files.make_lists(made)
        make_plugin(made, wheel)
        files.make_operator_bill(made, files.try_wheel(wheel, Path(scratch) / "environment"))
        for engine in ("cpu", "gpu"):
            files.make_trainer_bill(made, engine, Path(scratch) / f"{engine}.json")
        files.write_sums(made)
        # Whole or not at all: what an earlier or a failed call left cannot be taken for this release.
        if earlier:
            shutil.rmtree(destination)
        shutil.copytree(made, destination)
    finish(destination)


def finish(destination: Path) -> None:
    """Builds the images, and says what this release has and what it lacks."""
    failed = images.make_images(destination / "images")
    files.write_sums(destination)
    names = sorted(f"{each.name}/" if each.is_dir() else each.name for each in destination.iterdir())
    say(f"\nrelease {VERSION}, checked, in {destination}: {', '.join(names)}")
    if built := images.read_layout(destination / "images"):
        say(f"images, checked: {', '.join(built)}")
    if failed:
        raise Failed(images.explain_failures(failed))


if __name__ == "__main__":
    main()
