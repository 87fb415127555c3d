"""The sets of an evaluation: what each has of its own, what it has of the section, and what is refused."""

import pytest
from tests.unit.api.manifests import job, refusals

from rlhf_api.errors.problem import InvalidJob

TWO = "{name: greedy, data: [a], temperature: 0}, {name: eight, data: [b], samples: 8}"


def test_a_set_has_its_own_samples_and_temperature_or_those_of_all():
    spec = job(f"spec.evaluation={{function: 'a:b', sets: [{TWO}]}}", "spec.sampling.temperature=0.7").spec
    sets = [(s.name, s.data, s.samples, s.temperature) for s in spec.evaluation_sets()]
    assert sets == [("greedy", ("a",), 1, 0), ("eight", ("b",), 8, 0.7)]
    spec = job("spec.evaluation={function: 'a:b', data: [a], samples: 4, temperature: 0.5}").spec
    assert [(s.name, s.samples, s.temperature) for s in spec.evaluation_sets()] == [("held_out", 4, 0.5)]
    assert job("spec.evaluation=null").spec.evaluation_sets() == ()


REFUSED = [
    ("", "spec.evaluation", "neither is set"),
    (f"data: [a], sets: [{TWO}]", "spec.evaluation", "both are set"),
    ("data: [a], samples: 2, temperature: 0", "spec.evaluation.samples", "are the same; use 1; got 2"),
    (
        "temperature: 0, sets: [{name: a, data: [a], samples: 3}]",
        *("spec.evaluation.sets[0].samples", "use 1; got 3"),
    ),
    ("data: [a], temperature: 0.005", "spec.evaluation.temperature", "at least 0.01, the lowest"),
    (
        "data: [a], temperature: 2.1",
        "spec.evaluation.temperature",
        "must be less than or equal to 2; got 2.1",
    ),
    ("sets: [{name: a, data: [a]}, {name: a, data: [b]}]", "spec.evaluation.sets[1].name", "got 'a'"),
]


@pytest.mark.parametrize(("fields", "where", "says"), REFUSED)
def test_sets_that_mean_nothing_are_refused(fields, where, says):
    assert says in refusals(f"spec.evaluation={{function: 'a:b', everySteps: 3, {fields}}}")[where]


SCORED = "spec.reward.models=[{name: gold, model: g, weight: 0}]"
METRICS = [
    ("{name: a, model: model}, {name: b, model: gold}", None, ""),
    (
        "{name: a, model: golden}",
        "[0].model",
        "which has model, gold (spec.reward.models, spec.model.reward); got",
    ),
    (
        "{name: a, model: gold, url: 'http://h'}",
        "[0]",
        "exactly one of function, url, program and model; got",
    ),
    ("{name: a}", "[0]", "exactly one of function, url, program and model; got none"),
    ("{model: gold}", "[0]", "needs a name"),
    ("{name: a, model: gold, retries: 3}", "[0]", "retries does not apply to model, which is asked as"),
    ("{name: a, function: 'a:b', weight: 2}", "[0].weight", "unknown field"),
    ("{function: 'a:b'}, {function: 'c:b'}", "[1].name", "two metrics have this name; give this one another"),
]


@pytest.mark.parametrize(("metrics", "where", "says"), METRICS)
def test_metrics_are_each_by_one_of_what_scores_responses(metrics, where, says):
    given = f"spec.evaluation={{data: [a], metrics: [{metrics}]}}"
    if where is None:
        assert [*job(SCORED, given).spec.evaluation.placed_metrics] == [
            f"spec.evaluation.metrics[{i}]" for i in range(2)
        ]
    else:
        assert says in refusals(SCORED, given)[f"spec.evaluation.metrics{where}"]


def test_a_function_and_metrics_at_once_are_refused():
    given = "spec.evaluation={data: [a], function: 'a:b', metrics: [{name: a, url: 'http://h'}]}"
    assert "short form of one metric" in refusals(given)["spec.evaluation.function"]


def test_penalties_are_for_evaluation():
    for key in ("repetitionPenalty", "presence_penalty"):
        with pytest.raises(InvalidJob, match=rf"spec\.sampling\.{key}: .* as a field of spec\.evaluation"):
            job(f"spec.sampling.{key}=1.2")
    spec = job("spec.evaluation={function: 'a:b', data: [a], repetitionPenalty: 1.2}").spec
    assert spec.evaluation.penalties == (1.2, 0, 0)
