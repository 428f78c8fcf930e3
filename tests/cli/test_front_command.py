"""`dllm-audit front`: configurations of a task, speed and quality together."""

import json

import pytest

from dllm_audit.cli.main import main


@pytest.fixture
def front(results, capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main(["front", "--db", str(results), *arguments])
        return end.value.code, *capsys.readouterr()

    return call


def test_every_configuration_has_a_line_and_every_decoder_a_latency_at_equal_accuracy(front):
    code, out, _ = front("--within", "0.4")
    assert code == 0
    assert out.startswith("gsm_mini: 3 configurations on the 6 documents that all of them answered, exact_match")
    assert "within 0.4 s" in out
    assert "Seconds per request at 83.3% accuracy (of ar on tiny-ar)" in out
    assert "Accuracy under parallelism (AUP" in out


def test_the_same_facts_are_there_as_json(front):
    code, out, _ = front("--accuracy", "75", "--json")
    assert code == 0
    facts = json.loads(out)
    assert (facts["accuracy"], facts["accuracy_of"]) == (0.75, "asked for")
    assert {method["name"] for method in facts["methods"]} == {"ar on tiny-ar", "dualcache on tiny-mdm"}
    assert all(point["goodput"] is None for point in facts["configurations"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--within", "0"), "a latency bound lies above 0 seconds"),
        (("--within", "nan"), "a latency bound lies above 0 seconds"),
        (("--accuracy", "101"), "between 0 and 100 points"),
        (("--accuracy", "nan"), "between 0 and 100 points"),
        (("--task", "nothing"), "no finished run of nothing"),
    ],
)
def test_what_means_nothing_is_a_sentence(front, arguments, said):
    code, out, err = front(*arguments)
    assert (code, out) == (2, "")
    assert said in err
