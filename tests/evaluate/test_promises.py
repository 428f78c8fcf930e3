"""A backend of anybody's may break what it promises: its requests then fail by name, and nothing is silently gone."""

import sys
from dataclasses import replace

import pytest

from dllm_audit.errors import BackendError
from dllm_audit.evaluate.promises import HeldSession
from dllm_audit.records import EngineLog, Failure, Request, ScoredAnswer

LOG = EngineLog((), 1.0, 0.0, {})
REQUESTS = [Request("0", prompt="a"), Request("1", prompt="b")]


class Giving:
    """A session that gives these results, whatever it is asked for."""

    def __init__(self, results, log=LOG, costs=None):
        self.results, self.log, self.costs = results, log, costs

    def generate(self, requests, on_result, concurrency=1, traced=False, on_shapes=None, arrivals=None):
        for result in self.results:
            on_result(result)
        return self.log

    def score(self, questions, on_result, concurrency=1, on_shapes=None):
        return self.generate(questions, on_result)

    def forward_costs(self, shapes, seconds):
        return self.costs


def taken(results, log=LOG):
    """(results as they are passed on, the log)."""
    found = []
    return found, HeldSession(Giving(results, log), "mine", 100).generate(REQUESTS, found.append)


def test_results_that_can_be_true_are_passed_on_as_they_are(build):
    results = [build("generation", "0"), build("diffusion_generation", "1")]
    found, log = taken(results)
    assert all(a is b for a, b in zip(found, results, strict=True))
    assert log is LOG


def test_a_request_without_a_result_is_a_failure_that_names_the_backend(build):
    found, _ = taken([build("generation", "1")])
    assert found[1] == Failure("0", "BackendError", "Backend 'mine' ended without a result for this request.")


@pytest.mark.parametrize("id", ["0", "7", None, 1])
def test_a_result_that_nobody_asked_for_is_left_out_with_a_note(build, id):
    results = [build("generation", "0"), build("generation", "1")]
    found, log = taken([*results, replace(results[0], id=id)])
    assert found == results
    assert log.notes == (
        "Backend 'mine' gave a result for a request that it was not asked for or had answered before; it is left out.",
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"seconds": {"total": -1.0}}, "total seconds is -1.0"),
        ({"seconds": {"total": float("nan")}}, "total seconds is nan"),
        ({"seconds": {}}, "its seconds are no items of the clock with a total"),
        ({"seconds": {"denoise": 1.0, "total": 0.1}}, "its items add up to 1 s and its total is 0.1 s"),
        ({"elapsed_seconds": float("inf")}, "elapsed_seconds is inf"),
        ({"ttft_seconds": -0.1}, "ttft_seconds is -0.1"),
        ({"forwards": {"magic": 3}}, "its forwards are not of the kinds prefill, denoise, refresh, commit, score, cfg"),
        ({"forwards": {"denoise": -3}}, "denoise forwards is -3"),
        ({"forwards": {}}, "it has tokens and no forward"),
        ({"query_positions": 1.5}, "query_positions is 1.5"),
        ({"output_ids": (1, 2, 3, 4, 100)}, "output_ids holds what is no token id of this model, from 0 to 99"),
        ({"answer_ids": (-1, 2, 3, 4)}, "answer_ids holds what is no token id of this model, from 0 to 99"),
        ({"answered_tokens": 200}, "answered_tokens is 200 for 4 answer ids"),
        ({"answered_tokens": 6, "answer_ids": (1,) * 6}, "more was answered than was decoded"),
        (
            {"committed_tokens": 50},
            "50 committed positions and 0 masks are not the 5 that were decoded",
        ),
        ({"text": 5}, "its text is no text"),
        ({"stop": "because"}, "it stopped for 'because', which is none of length, eos, until"),
    ],
)
def test_a_result_that_cannot_be_true_is_a_failure_of_its_request_alone(build, change, why):
    good = build("generation", "1")
    found, _ = taken([replace(build("generation", "0"), **change), good])
    assert found == [Failure("0", "BackendError", f"Backend 'mine' gave a result that cannot be true: {why}."), good]


def test_a_score_is_no_answer_and_must_be_a_number():
    score = ScoredAnswer(
        "0", 1, 1, float("nan"), 0.0, 1, True, None, {"score": 1}, 2, {"score": 1.0, "total": 1.0}, 1.0
    )
    found: list = []
    HeldSession(Giving([score, replace(score, id="1", loglikelihood=-1.0)]), "mine", 100).score(REQUESTS, found.append)
    assert "its log-likelihood is nan with the standard error 0.0" in found[0].message
    assert found[1].loglikelihood == -1.0
    assert "it is a ScoredAnswer and no Generation" in taken([score])[0][0].message


def test_forwards_of_a_foreign_engine_that_its_log_does_not_have_are_noted(build):
    results = [build("generation", "0"), build("generation", "1")]
    found, log = taken(results, replace(LOG, shapes=(build("shape", "denoise", 4, 1, 20, 0.1),)))
    assert found == results
    assert log.notes == (
        "Backend 'mine' counts 10 forwards in its results and 20 in the log of its engine, so its tokens per forward are not "
        "to be relied on.",
    )
    agreeing = replace(LOG, shapes=(build("shape", "denoise", 4, 1, 10, 0.1),))
    assert taken(results, agreeing)[1] is agreeing


def test_an_engine_without_a_log_is_an_error_after_its_results(build):
    found: list = []
    with pytest.raises(BackendError, match=r"Backend 'mine' returned NoneType where the log of its engine is due"):
        HeldSession(Giving([build("generation", "0")], None), "mine", 100).generate(REQUESTS, found.append)
    assert [result.id for result in found] == ["0", "1"]


def test_a_backend_that_ends_the_program_fails_and_does_not_pass_for_success(monkeypatch):
    held = HeldSession(Giving([]), "mine", 100)
    monkeypatch.setattr(held.session, "generate", lambda *asked, **more: sys.exit(0))
    with pytest.raises(BackendError, match="Backend 'mine' wanted to end the program"):
        held.generate(REQUESTS, [].append)


@pytest.mark.parametrize("costs", [[1.0], [1.0, -1.0], [1.0, float("nan")], "no costs", 5])
def test_costs_that_are_none_of_the_shapes_close_no_books(build, costs):
    shapes = [build("shape", "denoise", 4, 1, 2, 0.1)] * 2
    assert HeldSession(Giving([], costs=costs), "mine", 100).forward_costs(shapes, 1.0) is None
