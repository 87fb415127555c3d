"""The one private part of kopf that is used: this fails where a release of kopf has changed it."""

import asyncio
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import kopf

from rlhf_operator.cluster.discovered import Discovered

ROOT = Path(__file__).parents[2]


def test_kopf_takes_what_it_fills_in() -> None:
    assert "insights" in inspect.signature(kopf.spawn_tasks).parameters


def test_nothing_is_known_before_the_first_discovery() -> None:
    """`tests/kube/test_watch.py` asks a real kopf what it found."""

    async def ask() -> set[str]:
        discovered = Discovered()
        asking = asyncio.create_task(discovered.plurals())
        await asyncio.sleep(0)
        assert not asking.done()
        discovered.insights.ready_resources.set()
        return await asyncio.wait_for(asking, 10)

    assert asyncio.run(ask()) == set()


def test_no_other_module_reaches_into_kopf() -> None:
    reaching = [f.name for f in ROOT.glob("operator/**/*.py") if "kopf._" in f.read_text()]
    assert reaching == ["discovered.py"]


def test_its_version_is_bound_to_the_minor_release_that_is_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    major, minor, *_ = version("kopf").split(".")
    assert f"kopf>={major}.{minor},<{major}.{int(minor) + 1}" in extras["operator"]
