"""Questions that are scored together: the same values as alone, every sequence counted, every second booked."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_models import GRID, model_of

from dllm_audit.decode.likelihood import LikelihoodSettings, score_answer
from dllm_audit.decode.loop import seed_of
from dllm_audit.decode.questions import QuestionSession
from dllm_audit.errors import Interrupted, UsageError
from dllm_audit.models.loading import find_model, load_model
from dllm_audit.records import Failure, ForwardShape, Question, ScoredAnswer

FAMILIES = ("llama", "llada", "dream", "llada-moe", "llama-block")


def question(id: str, prompt: int, answer: int, **fields) -> Question:
    """A question of so many tokens, whose ids follow from its name."""
    generator = torch.Generator().manual_seed(sum(map(ord, id)))
    ids = torch.randint(3, 90, (prompt + answer,), generator=generator).tolist()
    return Question(id, prompt_ids=tuple(ids[:prompt]), answer_ids=tuple(ids[prompt:]), key=f"key of {id}", **fields)


#: Unequal in every way: long and short, answers that are enumerated and answers that are sampled.
QUESTIONS = [question("a", 6, 3), question("b", 1, 9), question("c", 17, 1), question("d", 3, 12), question("e", 9, 2)]


def scored(family, questions=QUESTIONS, concurrency=1, seed=0, **settings):
    """(results by id, in the order in which they came; log)."""
    found = {}
    session = QuestionSession(model_of(family), LikelihoodSettings(**{"samples": 20, **settings}), seed)

    def keep(result) -> None:
        assert result.id not in found, "a question is answered once"
        found[result.id] = result

    log = session.score(questions, keep, concurrency)
    return found, log


def values(results):
    return {id: (r.loglikelihood, r.standard_error) for id, r in results.items()}


# -- values --


@pytest.mark.parametrize("family", FAMILIES)
def test_a_value_depends_on_the_question_alone_whatever_is_in_flight_with_it_and_in_which_order(family):
    alone, _ = scored(family)
    for questions, concurrency, batch_size in ((QUESTIONS, 3, 16), (QUESTIONS[::-1], 2, 5), (QUESTIONS[3:], 9, 1)):
        together, _ = scored(family, questions, concurrency, batch_size=batch_size)
        assert together.keys() == {q.id for q in questions}
        for id, result in together.items():
            assert result.loglikelihood == pytest.approx(alone[id].loglikelihood, abs=2e-3)
            assert result.standard_error == pytest.approx(alone[id].standard_error, abs=2e-3)
            assert (result.samples, result.exact, result.is_greedy) == (
                alone[id].samples,
                alone[id].exact,
                alone[id].is_greedy,
            )


@pytest.mark.parametrize("family", ["llama", "dream", "llama-block"])
def test_a_value_is_that_of_the_answer_scored_with_the_seed_of_its_key(family):
    results, _ = scored(family, seed=5)
    for q in QUESTIONS:
        alone = score_answer(
            model_of(family), q.prompt_ids, q.answer_ids, LikelihoodSettings(samples=20), seed_of(5, q.key)
        )
        assert results[q.id].loglikelihood == pytest.approx(alone.loglikelihood, abs=1e-4)
        assert results[q.id].is_greedy == alone.is_greedy


def test_another_seed_draws_other_copies_and_the_same_content_the_same():
    first, again, other = (scored("dream", seed=seed)[0] for seed in (1, 1, 2))
    assert values(first) == values(again)
    assert first["d"].loglikelihood != other["d"].loglikelihood
    assert first["a"].loglikelihood == other["a"].loglikelihood, "an answer of three tokens is enumerated"


def test_the_answer_of_greedy_decoding_is_told_from_others_while_copies_share_its_forwards():
    """What `uncached` decodes one token per step, and the same with its last token changed."""
    from small_models import generate

    from dllm_audit import Request

    prompt = QUESTIONS[0].prompt_ids
    decoded, _ = generate("uncached", [Request("x", prompt_ids=prompt)], {"gen_length": 6, "block_length": 6})
    answer = decoded["x"].output_ids
    changed = (*answer[:-1], (answer[-1] + 1) % 90)
    asked = [
        Question("right", prompt_ids=prompt, answer_ids=answer),
        Question("wrong", prompt_ids=prompt, answer_ids=changed),
    ]
    for batch_size in (1, 4):
        results, _ = scored("llada", asked, 2, batch_size=batch_size)
        assert (results["right"].is_greedy, results["wrong"].is_greedy) == (True, False)


# -- counts --


class Counted:
    """Forwards of a module as somebody outside sees them: (rows, width) of each."""

    def __init__(self, module) -> None:
        self.seen: list[tuple[int, int]] = []
        self.handle = module.model.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, module, args, kwargs) -> None:
        self.seen.append(tuple(kwargs["input_ids"].shape))


@pytest.mark.parametrize("family", ["llama", "dream", "llama-block"])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_counts_are_what_somebody_counts_who_watches_the_model(family, concurrency):
    watch = Counted(model_of(family).module)
    try:
        results, log = scored(family, concurrency=concurrency)
    finally:
        watch.handle.remove()
    assert log.batch_forwards == len(watch.seen)
    assert {shape.kind for shape in log.shapes} == {"score"}
    assert sorted((s.rows, s.width) for s in log.shapes for _ in range(s.count)) == sorted(watch.seen)
    assert sum(r.forwards["score"] for r in results.values()) == sum(rows for rows, _ in watch.seen) == log.row_forwards
    if concurrency == 1:
        assert sum(r.query_positions for r in results.values()) == sum(rows * width for rows, width in watch.seen)


def test_an_autoregressive_answer_is_one_forward_without_its_last_token():
    results, log = scored("llama", concurrency=5)
    for q in QUESTIONS:
        assert results[q.id].forwards == {"score": 1}
        assert results[q.id].query_positions == len(q.prompt_ids) + len(q.answer_ids) - 1
    (shape,) = log.shapes
    assert (shape.rows, shape.count, shape.width) == (5, 1, 17)


def test_before_each_result_the_forwards_up_to_it_are_told():
    told, results = [], []
    session = QuestionSession(model_of("llama"), LikelihoodSettings(), 0)
    log = session.score(
        QUESTIONS, results.append, 1, lambda shapes: told.append((len(results), sum(s.count for s in shapes)))
    )
    assert told == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert log.batch_forwards == 5


def test_an_exact_value_runs_every_masked_copy_and_the_greedy_check_until_a_token_differs():
    """Three tokens have seven copies of nine positions; the first greedy token is another one: eight sequences."""
    (result,) = scored("dream", QUESTIONS[:1])[0].values()
    assert (result.exact, result.samples, result.is_greedy) == (True, 7, False)
    assert (result.forwards, result.query_positions) == ({"score": 8}, 72)
    assert (result.prompt_tokens, result.scored_tokens) == (6, 3)


def test_copies_that_were_drawn_twice_are_run_once():
    """Of 400 draws over 511 copies many are equal, and all count in the estimate."""
    (result,) = scored("dream", QUESTIONS[1:2], samples=400)[0].values()
    assert (result.exact, result.samples) == (False, 400)
    assert result.forwards["score"] < 300


def test_guidance_counts_both_halves():
    plain, guided = (scored("llada", QUESTIONS[:1], cfg_scale=scale)[0]["a"] for scale in (0.0, 1.0))
    assert guided.forwards == {"score": 8, "cfg": 8}
    assert guided.query_positions == 2 * plain.query_positions
    assert abs(guided.loglikelihood - plain.loglikelihood) > 1e-3


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("family", ["llama", "llama-block"])
def test_the_seconds_of_a_question_add_up_and_its_forwards_are_booked_as_scoring(family, concurrency):
    results, log = scored(family, concurrency=concurrency)
    for result in results.values():
        items = {name: value for name, value in result.seconds.items() if name != "total"}
        assert sum(items.values()) == pytest.approx(result.seconds["total"])
        assert items["score"] > 0
        assert items["denoise"] == items["prefill"] == 0
        assert result.seconds["total"] <= result.elapsed_seconds + 1e-9
    assert max(r.elapsed_seconds for r in results.values()) <= log.makespan_seconds
    if concurrency == 1:
        assert all(r.seconds["waiting"] == 0 for r in results.values())
        assert sum(r.seconds["score"] for r in results.values()) == pytest.approx(sum(s.seconds for s in log.shapes))


def test_forwards_of_scoring_can_be_measured_apart():
    for family in ("llama", "dream", "llama-block"):
        session = QuestionSession(model_of(family), LikelihoodSettings(samples=20))
        log = session.score(QUESTIONS[:2], lambda result: None, 2)
        costs = session.forward_costs(log.shapes, 0.01)
        assert len(costs) == len(log.shapes)
        assert all(cost > 0 for cost in costs)
    # More positions than the vocabulary has tokens, and than the head sees at once.
    wide = ForwardShape("score", 700, 1, 1, 1.0, decided=650, keys=700)
    assert QuestionSession(model_of("dream"), LikelihoodSettings()).forward_costs([wide], 0.01)[0] > 0


# -- texts --


def test_a_text_longer_than_the_context_is_the_sum_of_its_windows():
    model = model_of("dream")
    short = replace(model, source=replace(model.source, traits=replace(model.traits, max_positions=4)))
    ids = QUESTIONS[0].prompt_ids
    session = QuestionSession(short, LikelihoodSettings(exact=True))
    found: list[ScoredAnswer | Failure] = []
    session.score([Question("t", answer_ids=ids, rolling=True)], found.append)
    parts = [((), ids[:4]), (ids[2:4], ids[4:])]
    alone = [score_answer(model, known, scored, LikelihoodSettings(exact=True)) for known, scored in parts]
    (result,) = found
    assert result.loglikelihood == pytest.approx(sum(a.loglikelihood for a in alone), abs=1e-4)
    assert (result.scored_tokens, result.prompt_tokens, result.is_greedy) == (6, 0, None)
    assert result.forwards == {"score": 15 + 3}


def test_a_text_of_an_autoregressive_model_is_one_forward_a_window():
    model = model_of("llama")
    short = replace(model, source=replace(model.source, traits=replace(model.traits, max_positions=4)))
    found: list[ScoredAnswer | Failure] = []
    text = Question("t", answer_ids=tuple(range(10, 20)), rolling=True)
    QuestionSession(short, LikelihoodSettings()).score([text], found.append)
    assert (found[0].forwards, found[0].query_positions, found[0].scored_tokens) == ({"score": 3}, 12, 10)


def test_texts_are_tokenised_and_without_a_prompt_begin_with_the_start():
    model = load_model(find_model("tiny-ar"), "cpu", "float32")
    session = QuestionSession(model, LikelihoodSettings())
    found: dict[str, ScoredAnswer | Failure] = {}
    session.score(
        [
            Question("split", prompt="Sam has 3 ", answer="red pens"),
            Question("joined", prompt="Sam has 3", answer=" red pens"),
            Question("text", answer="Sam has 3 red pens", rolling=True),
            Question("no prompt", answer="Sam has 3 red pens"),
            Question("empty", prompt="Sam has 3", answer=""),
            Question("no text", answer="", rolling=True),
        ],
        lambda result: found.update({result.id: result}),
        4,
    )
    assert found["split"].loglikelihood == pytest.approx(found["joined"].loglikelihood, abs=1e-4)
    assert found["text"].loglikelihood == pytest.approx(found["no prompt"].loglikelihood, abs=1e-4)
    assert found["text"].scored_tokens > found["joined"].scored_tokens
    assert found["empty"].message == "The answer is empty, so there is nothing to score."
    assert found["no text"].message == "The text is empty, so there is nothing to score."


# -- what does not go well --


def test_a_question_that_cannot_be_scored_fails_alone():
    asked = [question("long", 2040, 20), QUESTIONS[0], Question("none", prompt_ids=(5,), answer_ids=())]
    results, _ = scored("dream", asked, 2)
    assert list(results) == ["long", "none", "a"]
    assert [type(r).__name__ for r in results.values()] == ["Failure", "Failure", "ScoredAnswer"]
    exact, _ = scored("dream", [QUESTIONS[0], question("longer", 3, 17)], exact=True)
    assert "exact enumeration ends at 16 tokens" in exact["longer"].message
    assert exact["a"].exact
    # A block holds few enough, however long the answer.
    assert scored("llama-block", [question("blocks", 3, 2 * GRID)], exact=True)[0]["blocks"].exact


def test_a_value_that_is_not_finite_is_a_failure():
    model = load_model(model_of("llama").source, "cpu", "float32")
    with torch.no_grad():
        model.module.lm_head.weight.fill_(float("nan"))
    found: list[ScoredAnswer | Failure] = []
    QuestionSession(model, LikelihoodSettings()).score(QUESTIONS[:1], found.append)
    assert isinstance(found[0], Failure)
    assert found[0].message.startswith("The log-likelihood is not finite (NaN or infinite)")


def test_an_interruption_keeps_what_had_finished_and_the_log():
    kept: list[str] = []

    def keep(result) -> None:
        kept.append(result.id)
        if len(kept) == 2:
            raise KeyboardInterrupt

    session = QuestionSession(model_of("llama"), LikelihoodSettings())
    with pytest.raises(Interrupted) as stopped:
        session.score(QUESTIONS, keep)
    assert kept == ["a", "b"]
    assert stopped.value.log.batch_forwards == 2


def test_wrong_use_is_a_sentence():
    with pytest.raises(UsageError, match="concurrency=0: at least one request"):
        scored("llama", concurrency=0)
    with pytest.raises(UsageError, match="Two requests have the id 'a'"):
        scored("llama", [QUESTIONS[0], QUESTIONS[0]])
    with pytest.raises(UsageError, match="compat=fast-dllm reproduces a way of decoding text"):
        LikelihoodSettings(compat="fast-dllm")
    assert scored("llama", [])[1].shapes == ()
