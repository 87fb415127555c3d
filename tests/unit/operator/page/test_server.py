"""The page's server: who is let in, what it says of runs, and what it does not reread."""

import asyncio
import os
from contextlib import asynccontextmanager

import aiohttp
import pytest
from tests.support.run_folders import append_lines, write_run

from rlhf_operator import cli
from rlhf_operator.page.answers.paths import answer
from rlhf_operator.page.folder.catalog import Catalog
from rlhf_operator.page.serve import replies, server, static_files

TOKEN = "t" * 20


class Browser:
    """Requests to a served page."""

    def __init__(self, session, origin):
        self._session, self._origin = session, origin

    async def get(self, path, *, token=TOKEN, method="GET", **headers):
        if token:
            headers |= {"Authorization": f"Bearer {token}"}
        url = f"{self._origin}{path}"
        async with self._session.request(method, url, headers=headers, skip_auto_headers=["Host"]) as reply:
            is_json = reply.content_type == "application/json" and reply.status != 304
            return reply.status, await reply.json() if is_json else await reply.text(), reply.headers


@asynccontextmanager
async def browsing(*places):
    listener = server.listen(0)
    async with server.serving(Catalog(places), TOKEN, listener), aiohttp.ClientSession() as session:
        origin, _, fragment = server.address_of(listener, TOKEN).partition("/#")
        assert fragment == f"token={TOKEN}"
        yield Browser(session, origin)


def browse(act, *places):
    """The result of `act(browser)` on the page of these places."""

    async def all_of_it():
        async with browsing(*places) as browser:
            return await act(browser)

    return asyncio.run(all_of_it())


@pytest.fixture
def runs(tmp_path):
    steps = [{"step": step, "reward_mean": step / 10, "seconds": 2.0} for step in (1, 2, 3)]
    held_out = [{"step": step, "set": "easy", "mean": step / 4} for step in (0, 2)]
    write_run(tmp_path / "a", name="first", steps=steps, evaluations=held_out)
    write_run(tmp_path / "sweep" / "b", name="second", phase="Running")
    return tmp_path


def test_runs_are_listed_with_how_far_they_are(runs):
    status, body, _ = browse(lambda page: page.get("/api/v1/runs"), runs)
    assert status == 200
    by_name = {run["name"]: run for run in body["runs"]}
    assert (
        by_name["first"] | {"phase": "Succeeded", "step": 3, "heldOut": 0.5, "seconds": 600}
        == by_name["first"]
    )
    assert by_name["second"]["phase"] == "Running"


def test_a_run_whose_process_was_killed_says_so(runs):
    os.utime(runs / "sweep" / "b" / "status.json", (1, 1))
    _, body, _ = browse(lambda page: page.get("/api/v1/runs"), runs)
    (died,) = [run for run in body["runs"] if run["name"] == "second"]
    assert (died["phase"], "--resume" in died["reason"]) == ("Died", True)


def test_figures_are_served_by_step_and_the_new_ones_alone(runs):
    async def act(page):
        run = next(run for run in (await page.get("/api/v1/runs"))[1]["runs"] if run["name"] == "first")
        path = f"/api/v1/runs/{run['id']}/metrics"
        first = (await page.get(f"/api/v1/runs/{run['id']}"))[1]["first"]
        values = (await page.get(f"{path}?names=reward_mean,evaluation/easy/mean"))[1]
        append_lines(runs / "a" / "metrics.jsonl", [{"step": 4, "reward_mean": 0.4, "seconds": 2.0}])
        return first, values, (await page.get(f"{path}?names=reward_mean&after=3"))[1]

    first, values, new = browse(act, runs)
    assert [chart["names"] for chart in first] == [["reward_mean"], ["evaluation/easy/mean"], ["seconds"]]
    assert values["steps"] == [0, 1, 2, 3]
    assert values["elapsed"] == [0.0, 2.0, 4.0, 6.0]
    assert values["series"] == {
        "reward_mean": [None, 0.1, 0.2, 0.3],
        "evaluation/easy/mean": [0.0, None, 0.5, None],
    }
    assert (new["steps"], new["series"]) == ([4], {"reward_mean": [0.4]})


def test_a_job_of_many_rewards_and_sets_has_its_first_charts(tmp_path):
    """Their values are one request, which has at most 64 names."""
    rewards = {f"reward_{number}_mean": 0.5 for number in range(40)}
    sets = [{"step": 1, "set": f"set_{number}", "mean": 0.5} for number in range(40)]
    figures = {
        "kl_mean": 0.1,
        "entropy": 1.0,
        "loss": 0.1,
        "policy_loss": 0.1,
        "critic_loss": 0.1,
        "seconds": 1.0,
    }
    write_run(tmp_path, steps=[{"step": 1, "reward_mean": 1.0, **rewards, **figures}], evaluations=sets)

    async def act(page):
        path = f"/api/v1/runs/{(await page.get('/api/v1/runs'))[1]['runs'][0]['id']}"
        first = (await page.get(path))[1]["first"]
        names = ",".join(name for chart in first for name in chart["names"])
        return first, (await page.get(f"{path}/metrics?names={names}"))[0]

    first, status = browse(act, tmp_path)
    assert status == 200
    assert [chart["title"] for chart in first[:2]] == [
        "Reward (6 of 41, the others by search)",
        "Held-out score (6 of 40, the others by search)",
    ]
    assert first[0]["names"][0] == "reward_mean"


def test_an_unchanged_answer_is_not_sent_again(runs):
    async def act(page):
        tag = (await page.get("/api/v1/runs"))[2]["ETag"]
        return await page.get("/api/v1/runs", **{"If-None-Match": tag})

    status, body, _ = browse(act, runs)
    assert (status, body) == (304, "")


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "t"])
def test_without_the_token_there_is_no_answer(runs, token):
    status, body, headers = browse(lambda page: page.get("/api/v1/runs", token=token), runs)
    assert status == 401
    assert "runs" not in body
    assert "script-src 'self'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost:1@x"]
)
def test_another_name_of_this_address_is_refused(runs, host):
    status, body, _ = browse(lambda page: page.get("/api/v1/runs", Host=host), runs)
    assert (status in (400, 421), "runs" in body) == (True, False)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "[::1]:9", "127.0.0.1"])
def test_names_of_this_machine_are_let_in(runs, host):
    assert browse(lambda page: page.get("/api/v1/runs", Host=host), runs)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(runs, method):
    assert browse(lambda page: page.get("/api/v1/runs", method=method), runs)[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "/runs/..%2f..%2fetc%2fpasswd",
        "/runs/0123456789abcdef",
        "/runs/zz",
        "/",
        "/runs/0123456789abcdef/../x",
        "/%00",
    ],
)
def test_a_path_of_no_run_is_refused(runs, path):
    status, body, _ = browse(lambda page: page.get(f"/api/v1{path}"), runs)
    assert (status, list(body)) == (404, ["error"])


@pytest.mark.parametrize("query", ["names=", "names=" + "a," * 100, "names=a&after=-1", "names=a&after=x"])
def test_a_wrong_argument_is_named(runs, query):
    async def act(page):
        run = (await page.get("/api/v1/runs"))[1]["runs"][0]
        return await page.get(f"/api/v1/runs/{run['id']}/metrics?{query}")

    status, body, _ = browse(act, runs)
    assert status == 400
    assert body["error"].startswith(("names must", "after must"))


def test_a_page_that_was_not_built_says_how(runs, monkeypatch, tmp_path):
    monkeypatch.setattr(replies, "find_assets", lambda: static_files.find_assets(tmp_path / "none"))
    status, body, _ = browse(lambda page: page.get("/", token=""), runs)
    assert status == 404
    assert body.startswith("this installation has no page; `make page` builds it")


def test_only_the_built_files_are_served(runs, monkeypatch, tmp_path):
    folder = tmp_path / "static"
    (folder / "fonts").mkdir(parents=True)
    (folder / "index.html").write_text("<p>page")
    (folder / "fonts" / "a.css").write_text("p{}")
    (folder / "secret.py").write_text("x")
    (folder / "out.css").symlink_to("/etc/hostname")
    monkeypatch.setattr(replies, "find_assets", lambda: static_files.find_assets(folder))

    async def act(page):
        paths = ("/", "/fonts/a.css", "/secret.py", "/out.css", "/../static_files.py", "/fonts")
        return [(await page.get(path, token=""))[:2] for path in paths]

    page, style, *others = browse(act, runs)
    assert (page, style) == ((200, "<p>page"), (200, "p{}"))
    assert {status for status, _ in others} == {404}


def test_a_hostile_folder_is_read_without_an_error(tmp_path):
    folder = write_run(tmp_path / "a", steps=[{"step": 1, "reward_mean": 1}])
    (folder / "run.json").write_bytes(b"\xff" * 100)
    (folder / "evaluation.jsonl").write_bytes(
        b'{"step": 1, "set": {"a": 1}, "mean": NaN}\n{"step": "\xff"}\n'
    )
    deep = write_run(tmp_path / "b")
    (deep / "status.json").write_text("[" * 100_000)
    (deep / "run.json").write_text('{"job": ' + "[" * 100_000)
    huge = write_run(tmp_path / "c", status={"phase": "Levitating", "of_another_release": 1})
    (huge / "run.json").write_text('{"spec": "' + "x" * (9 << 20) + '"}')

    async def act(page):
        listed = (await page.get("/api/v1/runs"))[1]["runs"]
        replies = [
            await page.get(f"/api/v1/runs/{run['id']}{rest}")
            for run in listed
            for rest in ("", "/metrics", "/metrics?names=reward_mean")
        ]
        return listed, {status for status, _, _ in replies}

    listed, statuses = browse(act, tmp_path)
    assert len(listed) == 3
    assert statuses == {200}
    assert {run["phase"] for run in listed} == {"Succeeded", "Unknown"}


def test_no_secret_of_the_environment_is_served(tmp_path):
    write_run(tmp_path / "a", spec={"env": {"API_TOKEN": "hunter2hunter2"}})

    async def act(page):
        run = (await page.get("/api/v1/runs"))[1]["runs"][0]
        return (await page.get(f"/api/v1/runs/{run['id']}"))[1]

    assert "hunter2" not in str(browse(act, tmp_path))


def test_runs_that_were_not_used_for_longest_make_room(tmp_path, monkeypatch):
    for name in ("a", "b"):
        write_run(tmp_path / name, steps=[{"step": step, "kl_mean": 0.1} for step in range(100)])
    catalog = Catalog([tmp_path])
    first, second = catalog.runs()
    catalog.load(first)
    catalog.load(second)
    assert first.memory_bytes == second.memory_bytes > 0
    monkeypatch.setattr("rlhf_operator.page.folder.catalog.MOST_BYTES", first.memory_bytes + 1)
    catalog.load(first)
    assert (first.memory_bytes > 0, second.memory_bytes) == (True, 0)


def test_all_figures_of_a_long_run_have_fewer_steps(runs, monkeypatch):
    monkeypatch.setattr("rlhf_operator.page.answers.figures.MOST_VALUES", 4)
    catalog = Catalog([runs / "a"])
    (run,) = catalog.runs()
    reply = answer(catalog, f"/runs/{run.id}/metrics", {"names": "*"})
    assert reply["steps"] == [0, 3]
    assert reply["series"]["reward_mean"] == [None, 0.3]


def test_a_place_that_is_no_folder_is_one_error(capsys):
    assert cli.main(["ui", "none"]) == 2
    error = capsys.readouterr().err
    assert ("no such directory" in error, error.count("\n")) == (True, 1)


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_that_is_none_is_one_error(capsys, tmp_path, port):
    assert cli.main(["ui", str(tmp_path), "--port", port]) == 2
    assert f"--port must be a port, 1 to 65535; got {port}" in capsys.readouterr().err
