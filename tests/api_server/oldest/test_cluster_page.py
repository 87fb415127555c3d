"""The page of a cluster on a real API server and a real S3 server: two teams, and what each may see."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientSession, web
from tests.api_server.oldest.jobs import ROOT
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.kube import kubectl, new_namespace
from tests.support.servers.seaweed import Seaweed
from tests.support.stores import fill_store
from tests.unit.operator.page.test_stores import blobs

from rlhf_api.contract import sample_tokens
from rlhf_operator.page.cluster import fresh_replies
from rlhf_operator.page.cluster.api_server import connect
from rlhf_operator.page.cluster.application import make_application
from rlhf_operator.page.cluster.settings import Settings
from rlhf_operator.page.stored import store_copy

JOBS = ("list,get,watch", "rlhfjobs.rlhf.dev")
SECRET = "alice's secret of the store"
pytestmark = pytest.mark.usefixtures("crd")


class Page:
    """Requests to a served page, each with somebody's token."""

    def __init__(self, session: ClientSession, origin: str) -> None:
        self._session, self._origin = session, origin

    async def get(self, path: str, token: str = "", method: str = "GET", **headers: str) -> tuple[int, Any]:
        if token:
            headers["Authorization"] = f"Bearer {token}"
        async with self._session.request(method, f"{self._origin}{path}", headers=headers) as reply:
            assert "script-src 'self'" in reply.headers["Content-Security-Policy"]
            return reply.status, await (reply.json() if "json" in reply.content_type else reply.text())

    async def get_until(
        self, path: str, token: str, is_met: Callable[[tuple[int, Any]], bool]
    ) -> tuple[int, Any]:
        """The first reply of this kind: an API server takes a moment to learn of its own roles."""
        async with asyncio.timeout(60):
            while not is_met(reply := await self.get(path, token)):
                pass
        return reply

    async def ids(self, token: str, *namespaces: str) -> dict[str, str]:
        """Ids of the jobs that somebody sees, by name."""
        status, body = await self.get(f"/api/v1/runs?namespaces={','.join(namespaces)}", token)
        assert status == 200, body
        return {run["name"]: run["id"] for run in body["runs"]}


class Team:
    """A namespace with a job, whose store has its own keys in a Secret, and its people."""

    def __init__(self, admin: Path, namespace: str) -> None:
        self._admin, self.namespace = admin, namespace

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return kubectl(self._admin, *arguments, f"--namespace={self.namespace}", input=input)

    def add_person(self, name: str, *rights: tuple[str, str]) -> str:
        """An account with rights here; returns its token."""
        self.kubectl("create", "serviceaccount", name)
        for number, (verbs, resource) in enumerate(rights):
            role = f"{name}-{number}"
            self.kubectl("create", "role", role, f"--verb={verbs}", f"--resource={resource}")
            who = f"--serviceaccount={self.namespace}:{name}"
            self.kubectl("create", "rolebinding", role, f"--role={role}", who)
        return self.kubectl("create", "token", name).strip()

    def add_job(self, name: str, status: dict[str, Any] | None = None, **spec: Any) -> None:
        job = yaml.safe_load((ROOT / "examples" / "sentiment" / "sft.yaml").read_text())
        job = {**job, "metadata": {"name": name}, "spec": {**job["spec"], **spec}}
        self.kubectl("create", "-f", "-", input=json.dumps(job))
        full = {"phase": "Running", "totalSteps": 40, "step": 3, "reward": 0.25, **(status or {})}
        patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": full}))
        self.kubectl("patch", "rlhfjob", name, *patch)

    def add_stored_job(self, name: str, server: Seaweed) -> None:
        """A job whose bucket has figures and samples, and the Secret of its keys."""
        keys = {**server.environment, "LD_PRELOAD": "/evil.so", "NOTE": SECRET}
        literals = [f"--from-literal={key}={value}" for key, value in keys.items()]
        self.kubectl("create", "secret", "generic", f"{name}-keys", *literals)
        url = server.url(f"{self.namespace}/{name}")
        self.add_job(name, checkpoint={"store": url}, pods={"secrets": [f"{name}-keys"]})
        tokens = [
            {"prompt_id": "0/2+2", "texts": ["of"], "columns": {"response_tokens": [7], "logprobs": [-0.5]}}
        ]
        fill_store(url, {**blobs(3), sample_tokens.FILE: json.dumps({"responses": tokens}).encode()})


@pytest.fixture
def teams(control_plane: Cluster, namespace: str) -> Iterator[tuple[Team, Team]]:
    with new_namespace(control_plane.kubeconfig) as another:
        yield Team(control_plane.kubeconfig, namespace), Team(control_plane.kubeconfig, another)


@pytest.fixture
def stored(teams: tuple[Team, Team], seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> tuple[Team, Team]:
    """Teams `a` and `b`, each with a job of this name; the page itself has no keys."""
    with monkeypatch.context() as patched:
        for name, value in seaweed.environment.items():
            patched.setenv(name, value)
        for name, team in zip("ab", teams, strict=True):
            team.add_stored_job(f"job-{name}", seaweed)
    return teams


@pytest.fixture
def browse(control_plane: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a coroutine function with a served page; nothing that the API server said is taken for fresh."""
    monkeypatch.setattr(fresh_replies, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(store_copy, "_FRESH_SECONDS", 0.0)
    authority = tmp_path / "ca.crt"
    authority.write_text(control_plane.ca)
    copies = tmp_path / "copies"

    @asynccontextmanager
    async def serving(namespaces: tuple[str, ...]):
        settings = Settings(control_plane.server, str(authority), ("page.example",), namespaces, 0, copies)
        runner = web.AppRunner(make_application(settings, partial(connect, settings)), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with ClientSession() as session:
                yield Page(session, f"http://127.0.0.1:{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()
        assert not copies.exists(), "what was read is deleted"

    def run(act: Callable[[Page], Awaitable[Any]], *namespaces: str) -> Any:
        async def together() -> Any:
            async with serving(namespaces) as page:
                return await act(page)

        return asyncio.run(together())

    return run


def test_each_viewer_sees_the_jobs_that_the_api_server_lists_for_them(teams, browse, control_plane):
    first, second = teams
    for team in teams:
        team.add_job("same-name")
    alice, nobody = first.add_person("alice", JOBS), first.add_person("nobody")
    both = second.add_person("both", JOBS)
    who = f"--serviceaccount={second.namespace}:both"
    first.kubectl("create", "rolebinding", "both", "--role=alice-0", who)

    async def act(page: Page) -> list[Any]:
        names = f"/api/v1/runs?namespaces={first.namespace},{second.namespace}"
        return [(await page.get(names, token))[1] for token in (alice, both, nobody, control_plane.token)]

    of_alice, of_both, of_nobody, of_admin = browse(act)
    place = f"{first.namespace}/same-name"
    (run,) = of_alice["runs"]
    assert run == run | {"place": place, "phase": "Running", "step": 3, "steps": 40, "reward": 0.25}
    assert (of_alice["refused"], of_alice["asksNamespaces"]) == ([second.namespace], True)
    assert {each["place"] for each in of_both["runs"]} == {place, f"{second.namespace}/same-name"}
    assert of_nobody["runs"] == []
    assert of_admin["asksNamespaces"] is False
    assert {place, f"{second.namespace}/same-name"} <= {each["place"] for each in of_admin["runs"]}
    header = first.kubectl("get", "rlhfjobs").splitlines()[0].split()
    assert [column["name"].upper() for column in of_alice["columns"]] == ["NAMESPACE", *header]


def test_namespaces_of_the_chart_are_tried_for_each_viewer(teams, browse):
    first, second = teams
    for team in teams:
        team.add_job("job")
    alice = first.add_person("alice", JOBS)

    async def act(page: Page) -> Any:
        return (await page.get("/api/v1/runs", alice))[1]

    body = browse(act, first.namespace, second.namespace)
    assert [run["namespace"] for run in body["runs"]] == [first.namespace]
    assert body["refused"] == [], "she learns of no namespace that she has not named"


def test_figures_and_samples_come_from_the_job_s_bucket_with_the_viewer_s_rights(stored, browse, caplog):
    first, _ = stored
    caplog.set_level(logging.DEBUG)
    alice = first.add_person("alice", JOBS, ("get", "secrets"))

    async def act(page: Page) -> list[Any]:
        run = f"/api/v1/runs/{(await page.ids(alice, first.namespace))['job-a']}"
        tokens = "/samples/3.0/tokens"
        parts = ("", "/metrics?names=reward_mean", "/samples", tokens, "/alarms", "/marks")
        return [await page.get(f"{run}{part}", alice) for part in parts]

    replies = browse(act)
    assert {status for status, _ in replies} == {200}
    details, values, samples, tokens, *_ = [body for _, body in replies]
    assert (details["hidden"], details["phase"], details["namespace"]) == ("", "Running", first.namespace)
    assert [each["step"] for each in details["checkpoints"]] == [3]
    assert details["commands"]["status"] == f"kubectl rlhf status job-a -n {first.namespace}"
    assert values["series"] == {"reward_mean": [0.1, 0.2, 0.3]}
    assert [each["response"] for each in samples["samples"]] == ["of step 3"]
    assert [(each["text"], each["old"]) for each in tokens["tokens"]] == [("of", -0.5)]
    shown = json.dumps([body for _, body in replies])
    for secret in (SECRET, Seaweed("").secret, Seaweed("").key, alice):
        assert secret not in shown
        assert secret not in caplog.text


def test_a_job_of_another_namespace_is_not_there_even_after_its_own_viewer_has_read_it(stored, browse):
    first, second = stored
    alice = first.add_person("alice", JOBS, ("get", "secrets"))
    bob = second.add_person("bob", JOBS, ("get", "secrets"))

    async def act(page: Page) -> list[Any]:
        mine = (await page.ids(alice, first.namespace))["job-a"]
        theirs = (await page.ids(bob, second.namespace))["job-b"]
        assert (await page.get(f"/api/v1/runs/{theirs}/samples", bob))[1]["count"] == 1
        paths = (
            *(
                f"/api/v1/runs/{theirs}{part}"
                for part in ("", "/samples", "/samples/3.0/tokens", "/metrics?names=reward_mean", "/logs")
            ),
            f"/api/v1/compare?a={mine}&b={theirs}",
            "/api/v1/runs/0123456789abcdef",
        )
        return [await page.get(path, alice) for path in paths]

    replies = browse(act)
    assert {status for status, _ in replies} == {404}
    assert len({body["error"] for _, body in replies}) == 1, "nothing tells it from one that there is not"


def test_without_the_secret_only_the_status_is_shown_and_that_is_said(stored, browse):
    first, _ = stored
    alice = first.add_person("alice", JOBS, ("get", "secrets"))
    carol = first.add_person("carol", JOBS)

    async def act(page: Page) -> list[Any]:
        run = f"/api/v1/runs/{(await page.ids(alice, first.namespace))['job-a']}"
        assert (await page.get(f"{run}/samples", alice))[1]["count"] == 1
        await page.ids(carol, first.namespace)
        parts = ("", "/metrics", "/samples", "/samples/3.0/tokens")
        return [await page.get(f"{run}{part}", carol) for part in parts]

    (_, details), (_, metrics), (_, samples), (status, tokens) = browse(act)
    assert details["hidden"] == "you may not read Secret job-a-keys, which has the keys of its store"
    assert (details["phase"], details["step"], details["checkpoints"]) == ("Running", 3, [])
    assert (metrics["names"], samples["samples"], status) == ([], [], 404)
    assert "of step 3" not in json.dumps([details, samples, tokens])


def test_a_right_that_is_taken_away_ends_what_was_shown(stored, browse):
    first, _ = stored
    alice = first.add_person("alice", JOBS, ("get", "secrets"))

    async def act(page: Page) -> list[Any]:
        run = f"/api/v1/runs/{(await page.ids(alice, first.namespace))['job-a']}/samples"
        before = await page.get(run, alice)
        first.kubectl("delete", "rolebinding", "alice-1")
        without_secret = await page.get_until(run, alice, lambda reply: not reply[1].get("samples"))
        first.kubectl("delete", "rolebinding", "alice-0")
        without_job = await page.get_until(run, alice, lambda reply: reply[0] != 200)
        return [before, without_secret, without_job]

    before, without_secret, without_job = browse(act)
    assert (before[1]["count"], without_secret[1]["count"], without_job[0]) == (1, 0, 404)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({}, "on a volume of its pods"),
        ({"checkpoint": {"store": "file:///workspace/run"}}, "on a volume of its pods"),
        ({"checkpoint": {"store": "s3://bucket/run"}}, "has AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (
            {"checkpoint": {"store": "s3://bucket/run"}, "pods": {"secrets": ["none"]}},
            "there is no Secret none, which has the keys of its store",
        ),
    ],
)
def test_a_job_whose_data_cannot_be_shown_says_why(teams, browse, spec, reason):
    first, _ = teams
    first.add_job("job", **spec)
    alice = first.add_person("alice", JOBS, ("get", "secrets"))

    async def act(page: Page) -> Any:
        id = (await page.ids(alice, first.namespace))["job"]
        return (await page.get(f"/api/v1/runs/{id}", alice))[1]

    details = browse(act)
    assert reason in details["hidden"]
    assert (details["phase"], details["reward"]) == ("Running", 0.25)


def test_a_store_that_refuses_the_keys_is_said_without_its_words(stored, browse):
    first, _ = stored
    wrong = ("--type=merge", "-p", json.dumps({"stringData": {"AWS_SECRET_ACCESS_KEY": "wrong"}}))
    first.kubectl("patch", "secret", "job-a-keys", *wrong)
    alice = first.add_person("alice", JOBS, ("get", "secrets"))

    async def act(page: Page) -> Any:
        id = (await page.ids(alice, first.namespace))["job-a"]
        return (await page.get(f"/api/v1/runs/{id}", alice))[1]

    hidden = browse(act)["hidden"]
    assert "403 Forbidden" in hidden
    assert "signature" not in hidden.lower()


def test_who_is_nobody_gets_nothing(browse):
    async def act(page: Page) -> list[Any]:
        tokens = ("", "invented", "a\u00e4", "x" * 8001)
        return [await page.get("/api/v1/runs", token) for token in tokens]

    replies = browse(act)
    assert {status for status, _ in replies} <= {400, 401}
    assert [status for status, _ in replies][:2] == [401, 401]


def test_it_answers_to_its_own_names_and_reads_alone(browse):
    async def act(page: Page) -> list[int]:
        hosts = ("page.example", "localhost:8080", "evil.example", "page.example.evil.example")
        named = [(await page.get("/healthz", Host=host))[0] for host in hosts]
        return named + [(await page.get("/api/v1/runs", method=each))[0] for each in ("POST", "DELETE")]

    assert browse(act) == [200, 200, 421, 421, 405, 405]
