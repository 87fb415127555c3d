"""`rlhf graph` as a user runs it: Mermaid of every algorithm, and algorithms of one's own."""

import re
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from tests.unit.api.manifests import document

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.graph import Graph
from rlhf_api.rules.own_algorithm import resolve
from rlhf_operator import cli
from rlhf_operator.graph.command import usual

OWN = """
from rlhf_api.algorithms import Algorithm
from rlhf_api.graph import POLICY, SEQUENCES, Compute, Generate, Graph, Score, Train

def graph(spec, settings):
    best = Compute(name="best", function="own:best", reads=("scores",), writes=("keep",))
    reads = (SEQUENCES, READ)
    return Graph((Generate(), Score(), best, Train(name="train", model=POLICY, loss="own:loss", reads=reads)))

READ = "keep"
ALGORITHM = Algorithm(name="own", settings=None, graph=graph)
OTHER = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the module `own`, made the current one."""
    (tmp_path / "own.py").write_text(textwrap.dedent(OWN))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    yield tmp_path
    sys.modules.pop("own", None)


def manifest(folder: Path, *overrides: str) -> str:
    file = folder / "job.yaml"
    made = document(*overrides)
    if made["spec"]["algorithm"] != "ppo":
        del made["spec"]["ppo"]
    file.write_text(yaml.safe_dump(made))
    return str(file)


def arrows(text: str) -> set[tuple[str, str, str]]:
    """(writer, reader, column) of each arrow of a Mermaid flowchart, nodes by their names."""
    names = dict(re.findall(r"^ +(n\d+)\W+<b>(\w+)</b>", text, flags=re.M))
    links = re.findall(r'^ +(n\d+) -\.?->\|"(.*)"\| (n\d+)$', text, flags=re.M)
    return {(names[a], names[b], column) for a, columns, b in links for column in columns.split("<br/>")}


def graph_of(name: str) -> Graph:
    return resolve(usual(name)).graph


@pytest.mark.parametrize("name", ALGORITHMS)
def test_mermaid_shows_every_node_and_every_column_that_is_read(name, capsys):
    assert cli.main(["graph", name]) == 0
    shown = arrows(text := capsys.readouterr().out)
    graph = graph_of(name)
    writer = {column: node.name for node in graph.nodes for column in node.writes}
    expected = {(writer[column], node.name, column) for node in graph.nodes for column in node.reads}
    broadcast = {("train_policy", "generate", "weights")} if graph.generates else set()
    assert shown == expected | broadcast
    assert all(f"<b>{node.name}</b>" in text for node in graph.nodes)


def test_places_are_those_of_the_job(tmp_path, capsys):
    assert cli.main(["graph", manifest(tmp_path, "spec.ppo.klCoefficient=0")]) == 0
    text = capsys.readouterr().out
    assert re.search(r"<b>generate</b>.*<i>generator</i>.*:::generator", text)
    assert re.search(r"<b>score</b>.*<i>reward</i>.*:::reward", text)
    assert "reference" not in text
    shared = "spec.generator={sharedWithTrainer: true}"
    assert cli.main(["graph", manifest(tmp_path), "--set", shared]) == 0
    text = capsys.readouterr().out
    assert re.search(r"<b>generate</b>.*<i>trainer</i>.*:::trainer", text)
    assert "weights" not in text
    assert "classDef generator" not in text


def test_the_help_says_what_draws_the_output(capsys):
    with pytest.raises(SystemExit):
        cli.main(["graph", "--help"])
    assert "https://mermaid.live" in capsys.readouterr().out


def test_what_an_algorithm_of_ones_own_prints_is_no_part_of_the_graph(own, capsys):
    (own / "own.py").write_text(f"{OWN}\nprint('imported')\n")
    assert cli.main(["graph", "own:ALGORITHM"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("flowchart")
    assert printed.err == "imported\n"


def test_an_algorithm_of_ones_own(own, capsys):
    assert cli.main(["graph", "own:ALGORITHM"]) == 0
    assert ("best", "train", "keep") in arrows(capsys.readouterr().out)
    job = manifest(own, "spec.algorithm=own:ALGORITHM")
    assert cli.main(["graph", job]) == 0
    assert ("best", "train", "keep") in arrows(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("pp", 'pp: is neither a file nor an experiment (did you mean "ppo"?); experiments are sft, '),
        ("missing.yaml", "missing.yaml: cannot be read: No such file or directory"),
        ("own:", "spec.algorithm: must be one of sft, reward, process_reward, dpo"),
        (
            "absent:ALGORITHM",
            "'absent:ALGORITHM' cannot be imported: ModuleNotFoundError: No module named 'absent'",
        ),
        ("own:ABSENT", "'own:ABSENT' cannot be imported: AttributeError"),
        ("own:OTHER", "'own:OTHER' is a int, not an rlhf_api.Algorithm"),
    ],
)
@pytest.mark.usefixtures("own")
def test_what_is_refused(subject, message, capsys):
    assert cli.main(["graph", subject]) == 2
    assert message in capsys.readouterr().err


def test_a_graph_that_cannot_run(own, capsys):
    (own / "own.py").write_text(OWN.replace('READ = "keep"', 'READ = "kept"'))
    assert cli.main(["graph", "own:ALGORITHM"]) == 2
    assert "node 'train' reads 'kept', which no node before it writes" in capsys.readouterr().err


def test_a_job_whose_declaration_differs_from_its_graph(own, capsys):
    job = manifest(own, "spec.algorithm=own:ALGORITHM", "spec.custom={reference: true}")
    assert cli.main(["graph", job]) == 2
    assert "spec.custom: the graph of 'own:ALGORITHM' has" in capsys.readouterr().err
