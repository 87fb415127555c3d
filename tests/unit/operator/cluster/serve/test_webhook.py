"""The admission webhook refuses what the operator would fail, in the same words; over real TLS."""

import asyncio
import json
import ssl
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from tests.support.ports import free_port
from tests.unit.api.manifests import document
from tests.unit.api.schema.cel_cases import failed

from rlhf_api.contract.status import CORRECTABLE
from rlhf_operator.cluster.config.limits import Limits
from rlhf_operator.cluster.config.settings import Settings
from rlhf_operator.cluster.serve import webhook

PLAIN = Settings("image", b"k" * 32)


def review_request(*overrides: str, **metadata: object) -> dict:
    body = document(*overrides)
    body["metadata"] |= {"namespace": "ns", "uid": "1", **metadata}
    return {"request": {"uid": "42", "operation": "CREATE", "object": body}}


def test_a_good_job_is_allowed():
    answer = webhook.review(review_request(), PLAIN)
    assert answer["response"] == {"uid": "42", "allowed": True}
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")


def test_a_bad_one_is_refused_with_field_and_fix():
    response = webhook.review(review_request("spec.sampling.topK=-2"), PLAIN)["response"]
    assert response["allowed"] is False
    assert "spec.sampling.topK: must be greater than or equal to -1; got -2" in response["status"]["message"]


def test_a_job_whose_roles_share_gpus_claims_them():
    refused = review_request("spec.placement=shared", "spec.pods.gpu={count: 1}")
    response = webhook.review(refused, PLAIN)["response"]
    assert "claim it with deviceClass, which needs Kubernetes 1.34" in response["status"]["message"]
    assert webhook.review(review_request("spec.placement=shared"), PLAIN)["response"]["allowed"]


def test_what_the_limits_do_not_allow_is_refused_and_older_jobs_may_change_their_metadata():
    limited = replace(PLAIN, limits=Limits())
    bad = review_request("spec.pods.priorityClass=system")
    response = webhook.review(bad, limited)["response"]
    assert "priorityClassName: this cluster's limits do not allow it" in response["status"]["message"]
    same = {"request": {**bad["request"], "oldObject": bad["request"]["object"]}}
    assert webhook.review(same, limited)["response"]["allowed"]


def test_a_job_may_leave_its_service_account_to_its_runtime():
    limited = replace(PLAIN, limits=Limits.model_validate({"serviceAccounts": ("training",)}))
    for overrides, allowed in (((), False), (("spec.runtime={name: h100}",), True)):
        assert webhook.review(review_request(*overrides), limited)["response"]["allowed"] is allowed


def test_a_label_may_not_name_a_priority_that_the_limits_do_not_list_also_later():
    limited = replace(PLAIN, limits=Limits.model_validate({"priorityClasses": ("batch",)}))
    urgent = review_request(labels={"kueue.x-k8s.io/priority-class": "urgent"})["request"]
    for before in (None, review_request()["request"]["object"]):
        response = webhook.review({"request": {**urgent, "oldObject": before}}, limited)["response"]
        assert "priorityClasses may be batch; got 'urgent'" in response["status"]["message"]


def test_labels_and_annotations_of_a_job_that_today_is_wrong_may_change():
    wrong = "spec.sampling.topK=-2"
    stored, annotated = review_request(wrong), review_request(wrong)
    annotated["request"]["object"]["metadata"]["annotations"] = {"rlhf.dev/checkpoint": "now"}
    change = {"request": {**annotated["request"], "oldObject": stored["request"]["object"]}}
    assert webhook.review(change, PLAIN)["response"]["allowed"]
    change["request"]["object"] = review_request(wrong, "spec.steps=9")["request"]["object"]
    assert not webhook.review(change, PLAIN)["response"]["allowed"]


@pytest.mark.parametrize(
    ("stored", "change", "refused"),
    [
        ((), "spec.suspend=true", None),
        ((), "spec.ttlSecondsAfterFinished=60", None),
        ((), "spec.activeDeadlineSeconds=60", None),
        ((), "spec.generator.replicas=2", None),
        ((), "spec.generator.replicas=-1", "spec.generator.replicas"),
        ((), "spec.pods.volumes=[{name: data, mountPath: /data, hostPath: /etc}]", "hostPath"),
        (("spec.suspend=true",), "spec.suspend=false", "priorityClassName"),
        (("spec.suspend=true",), "spec.ttlSecondsAfterFinished=60", None),
    ],
)
@pytest.mark.parametrize("wrong", ["spec.pods.priorityClass=system", "spec.sampling.topK=-2"])
def test_a_job_that_runs_is_not_judged_by_limits_and_rules_of_today(wrong, stored, change, refused):
    limited = replace(PLAIN, limits=Limits())
    after, before = review_request(wrong, *stored, change), review_request(wrong, *stored)
    asks = {"request": {**after["request"], "oldObject": before["request"]["object"]}}
    response = webhook.review(asks, limited)["response"]
    assert response["allowed"] is (refused is None)
    if refused and "priority" in wrong:
        assert refused in response["status"]["message"]


def test_what_runs_changes_only_while_it_is_suspended():
    def change(*before: str) -> dict:
        after = review_request("spec.ppo.klCoefficient=0.5")
        return {"request": {**after["request"], "oldObject": review_request(*before)["request"]["object"]}}

    refused = webhook.review(change(), PLAIN)["response"]
    assert "spec.ppo: cannot change while the job runs; suspend it first" in refused["status"]["message"]
    assert webhook.review(change("spec.suspend=true"), PLAIN)["response"]["allowed"]
    assert webhook.review(change("spec.sampling.topK=-2"), PLAIN)["response"]["allowed"]


@pytest.mark.parametrize("reason", [*CORRECTABLE, "BackoffLimitExceeded"])
def test_a_job_that_failed_by_its_spec_may_be_corrected(reason):
    after, before = review_request("spec.pods.priorityClass=batch"), review_request()["request"]["object"]
    change = {"request": {**after["request"], "oldObject": {**before, "status": failed(reason)}}}
    assert webhook.review(change, PLAIN)["response"]["allowed"] is (reason in CORRECTABLE)


def test_deleting_is_always_allowed():
    assert webhook.review({"request": {"uid": "1", "operation": "DELETE", "object": None}}, PLAIN)[
        "response"
    ]["allowed"]
    deletion = review_request("spec.steps=0", deletionTimestamp="2026-01-01T00:00:00Z")
    assert webhook.review(deletion, PLAIN)["response"]["allowed"]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    issue(tmp_path, "first")
    return tmp_path


def issue(folder: Path, name: str) -> None:
    subject = ("-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt"))
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject, *files)
    subprocess.run(command, check=True, capture_output=True)


def settings(folder: Path) -> Settings:
    port = free_port()
    return Settings("image", b"k" * 32, webhook_port=port, webhook_certificates=str(folder))


async def post(made: Settings, body: bytes, query: str = "") -> tuple[int, dict, str]:
    trust = ssl.create_default_context(cafile=str(Path(made.webhook_certificates, "tls.crt")))
    url = f"https://localhost:{made.webhook_port}/validate{query}"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body, ssl=trust) as answer,
    ):
        text = await answer.text()
        return answer.status, json.loads(text) if answer.ok else {}, text


def test_it_serves_tls_and_takes_a_renewed_certificate(certificate):
    async def story() -> None:
        made = settings(certificate)
        runner = await webhook.serve(made)
        assert runner is not None
        try:
            good = json.dumps(review_request()).encode()
            status, answer, _ = await post(made, good)
            assert (status, answer["response"]["allowed"]) == (200, True)
            for garbage in (b"no json", b"[]", b'{"request": {}}'):
                status, _, text = await post(made, garbage)
                assert status == 400
                assert "not an AdmissionReview" in text
            issue(certificate, "second")
            assert (await post(made, good))[0] == 200  # trusts the second only
        finally:
            await runner.cleanup()

    asyncio.run(story())


def test_the_operator_works_on_while_a_job_is_validated(certificate, monkeypatch):
    """A spec of a megabyte takes a second or two, in which no other job would be looked at."""
    begun, worked_on = threading.Event(), threading.Event()

    def review(*arguments) -> dict:
        begun.set()
        assert worked_on.wait(20), "the event loop waits for this"
        return webhook_review(*arguments)

    webhook_review = webhook.review
    monkeypatch.setattr(webhook, "review", review)

    async def story() -> None:
        made = settings(certificate)
        runner = await webhook.serve(made)
        assert runner is not None
        try:
            call = asyncio.create_task(post(made, json.dumps(review_request()).encode()))
            while not begun.is_set():
                await asyncio.sleep(0.01)
            worked_on.set()
            assert (await call)[1]["response"]["allowed"]
        finally:
            await runner.cleanup()

    asyncio.run(story())


def test_who_has_left_or_waited_too_long_is_not_served_and_namespaces_take_turns(certificate, monkeypatch):
    """A tenant's flood of large dry runs kept everybody's jobs waiting, long after their callers had gone."""
    reviewed, go = list[str](), threading.Event()

    def review(asks: dict, _settings: Settings) -> dict:
        reviewed.append(asks["request"]["uid"])
        assert go.wait(20)
        return {"response": {"allowed": True}}

    monkeypatch.setattr(webhook, "review", review)

    def call(made: Settings, namespace: str, uid: str, query: str = "") -> asyncio.Task:
        large = {"pods": {"template": {"spec": {"note": "x" * 100_000}}}}
        # In the order of the API server's own type.
        request = {"uid": uid, "name": uid, "namespace": namespace, "object": {"spec": large}}
        text = json.dumps({"kind": "AdmissionReview", "request": request}, separators=(",", ":"))
        return asyncio.create_task(post(made, text.encode(), query))

    async def story() -> None:
        made = settings(certificate)
        runner = await webhook.serve(made)
        assert runner is not None
        waiting = runner.app[webhook._TURNS]._waiting

        async def until_waits(namespace: str, number: int) -> None:
            while len(waiting.get(namespace, ())) != number:
                await asyncio.sleep(0.01)

        try:
            calls = [call(made, "a", "a1")]
            while not reviewed:
                await asyncio.sleep(0.01)
            closed, late = call(made, "a", "gone"), call(made, "a", "late", "?timeout=1s")
            await until_waits("a", 2)
            closed.cancel()
            assert (await late)[0] == 503
            await until_waits("a", 0)
            for number, (namespace, uid) in enumerate([("a", "a2"), ("a", "a3"), ("b", "b1")]):
                calls.append(call(made, namespace, uid, "?timeout=30s"))
                await until_waits(namespace, number + 1 if namespace == "a" else 1)
            go.set()
            assert [status for status, *_ in await asyncio.gather(*calls)] == [200] * 4
            assert reviewed == ["a1", "a2", "b1", "a3"]
        finally:
            await runner.cleanup()

    asyncio.run(story())


def test_without_a_certificate_it_says_which_files_it_needs(tmp_path):
    with pytest.raises(ValueError, match=r"tls\.crt and tls\.key"):
        asyncio.run(webhook.serve(settings(tmp_path)))
