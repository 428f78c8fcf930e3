"""Verdicts from stored runs: every verdict once, with its reason, and which runs a recipe takes."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from honest_claims import SCORE, SWEEP, claim_of
from stored_runs import store_run

from dllm_audit.analysis.pairing import Comparisons
from dllm_audit.claims.recipes import commands, fits, schedule, sides_of
from dllm_audit.claims.registry import load_claims
from dllm_audit.claims.schema import Recipe
from dllm_audit.claims.verdicts import Verdict, check_claims
from dllm_audit.cli.claims import command
from dllm_audit.errors import ModelError, UsageError
from dllm_audit.store.database import Store

STEPS = {"gen_length": 64, "block_length": 32, "tokens_per_step": None, "threshold": None, "temperature": 0.0}
THRESHOLD = {**STEPS, "threshold": 0.9}
ONE = {**STEPS, "tokens_per_step": 1}

MECHANISM = {
    "shows": "A threshold is faster.",
    "backend": "uncached",
    "model": "tiny-mdm",
    "baseline": "uncached",
    "baseline_settings": {"tokens_per_step": 1},
    "task": "gsm_mini",
    "num_fewshot": 0,
    "settings": {"threshold": 0.9},
    "quantity": "speed ratio",
    "expect": {"low": 1.5, "wording": "at least 1.5x"},
}

WIDENED = "95 %, widened 1.10x for noise from run to run"


@pytest.fixture
def database(tmp_path):
    return tmp_path / "results.duckdb"


def verdict_of(database, claim):
    """The one check of a claim with one recipe."""
    if not database.exists():
        (check,) = check_claims([claim], None, database)
        return check
    with Store.open(database) as store:
        (check,) = check_claims([claim], store, database)
    return check


def mechanism(**changes):
    return claim_of(SWEEP, mechanisms=[{**MECHANISM, **changes}])


def replication(**changes):
    recipe = {name: value for name, value in MECHANISM.items() if name != "shows"}
    return claim_of(SWEEP, recipe={**recipe, **changes})


def two_runs(database, seconds=0.5, documents=40, **candidate):
    both = {"documents": documents}
    store_run(
        database, "fast", "uncached", settings=THRESHOLD, given=["threshold"], seconds=seconds, **both, **candidate
    )
    store_run(
        database, "slow", "uncached", settings=ONE, given=["tokens_per_step"], seconds=1.0, right=range(30), **both
    )


def test_reproduced_lists_runs_rule_and_numbers(database):
    two_runs(database, right=range(30))
    check = verdict_of(database, mechanism())
    assert check.verdict is Verdict.REPRODUCED
    assert (check.claim, check.scope, check.embedded) == ("honest-sweep", "mechanism", True)
    assert check.reason == f"The speed ratio 2.00x (1.82 to 2.20; {WIDENED}) lies where the rule has it."
    assert check.rule == "at least 1.5x, with the whole 95 % interval"
    assert check.runs == ("fast", "slow")
    assert check.numbers[0].basis == (
        "40 paired documents, one run each, widened by 1.100x for what runs of one configuration differ by"
    )
    assert check.next_commands == ()


def test_a_mechanism_is_seen_and_never_called_reproduced(database):
    two_runs(database, right=range(30))
    facts = verdict_of(database, mechanism()).as_dict()
    assert facts["outcome"] == "mechanism seen here"
    assert (
        verdict_of(database, mechanism(expect={"low": 3, "wording": "at least 3x"})).outcome
        == "mechanism not seen here"
    )
    assert verdict_of(database, replication()).outcome.startswith("reproduced")


def test_a_check_of_a_mechanism_says_what_was_tested_and_that_the_published_figure_was_not(database):
    two_runs(database, right=range(30))
    check = verdict_of(database, mechanism())
    assert check.tested == (
        "uncached with tiny-mdm on gsm_mini (threshold 0.9) against uncached with tiny-mdm on gsm_mini (tokens_per_step 1); "
        "40 documents that both answered; small models that come with the package"
    )
    assert check.not_tested.startswith("the published figure itself (")
    assert check.not_tested.endswith("); the rule on the speed ratio is this check's own")
    assert verdict_of(database, replication()).not_tested == ""


def test_an_interval_that_is_not_the_comparisons_stands_beside_the_one_that_is(database):
    two_runs(database, right=range(27))
    with Store.open(database) as store:
        compared = Comparisons(store).compare("fast", "slow")
    speed = verdict_of(database, mechanism())
    assert speed.numbers[0].ends == WIDENED
    (same,) = [number for number in speed.numbers if number.name == "speed ratio as the comparison has it, 95 %"]
    assert (same.low, same.high) == (compared.speed.low, compared.speed.high)
    margin = {"low": -10, "wording": "a loss of less than 10 points"}
    quality = verdict_of(database, mechanism(quantity="quality difference", expect=margin))
    assert quality.numbers[0].ends == "one-sided 5 % each"
    difference = compared.quality.difference
    (same,) = [n for n in quality.numbers if n.name == "quality difference as the comparison has it, 95 %"]
    assert (same.low, same.high) == pytest.approx((difference.low * 100, difference.high * 100))


def test_agreement_is_the_comparisons_own(database):
    two_runs(database, right=range(30), tokens=lambda doc: [doc % 2] * 10)
    with Store.open(database) as store:
        tokens = Comparisons(store).compare("fast", "slow").agreement.tokens
    check = verdict_of(database, mechanism(quantity="agreement", expect={"low": 0.8, "wording": "at least 80 %"}))
    found = check.numbers[0]
    assert (found.value, found.low, found.high, found.ends) == (tokens.value, tokens.low, tokens.high, "")


def test_not_reproduced_when_the_whole_interval_lies_outside_but_on_the_right_side(database):
    two_runs(database, seconds=0.8, right=range(30))
    check = verdict_of(database, mechanism())
    assert check.verdict is Verdict.NOT_REPRODUCED
    assert check.reason == f"The speed ratio 1.25x (1.14 to 1.38; {WIDENED}) lies wholly outside."
    assert check.next_commands == (f"dllm-audit compare fast slow --db {database}",)
    assert check.fails


def test_contradicted_when_it_is_slower(database):
    two_runs(database, seconds=2.0, right=range(30))
    check = verdict_of(database, mechanism())
    assert check.verdict is Verdict.CONTRADICTED
    assert check.reason == f"The speed ratio 0.50x (0.45 to 0.55; {WIDENED}) shows the opposite."


def test_undecided_says_how_many_documents_would_settle_it(database):
    two_runs(database, right=range(27))
    claim = mechanism(quantity="quality difference", expect={"low": -10, "wording": "a loss of less than 10 points"})
    check = verdict_of(database, claim)
    assert check.verdict is Verdict.UNDECIDED
    # 3 of 40 lost: -7.5 points, and a one-sided bound well below -10.
    assert check.reason.startswith("The quality difference (acc) -7.5 points (-")
    assert check.rule == "a loss of less than 10 points, by Tango's test of paired documents, one-sided 5 %"
    assert "About 1,022 documents would settle it if the estimate stays." in check.reason
    assert check.next_commands[0].startswith(
        "dllm-audit run --backend uncached --model tiny-mdm --task gsm_mini --limit 1022 "
    )


def test_a_loss_within_the_margin_is_reproduced_and_one_beyond_it_contradicted(database):
    claim = mechanism(quantity="quality difference", expect={"low": -20, "wording": "a loss of less than 20 points"})
    two_runs(database, right=range(30))
    assert verdict_of(database, claim).verdict is Verdict.REPRODUCED


def test_a_loss_beyond_the_margin_is_contradicted(database):
    claim = mechanism(quantity="quality difference", expect={"low": -20, "wording": "a loss of less than 20 points"})
    two_runs(database, right=range(10))
    assert verdict_of(database, claim).verdict is Verdict.CONTRADICTED


def test_a_break_is_reproduced_when_the_loss_is_large(database):
    claim = mechanism(quantity="quality difference", expect={"high": -10, "wording": "a loss of more than 10 points"})
    two_runs(database, right=())
    assert verdict_of(database, claim).verdict is Verdict.REPRODUCED


def test_a_reference_that_answers_nothing_is_no_standard(database):
    claim = mechanism(quantity="quality difference", expect={"low": -10, "wording": "a loss of less than 10 points"})
    store_run(database, "fast", "uncached", settings=THRESHOLD, given=["threshold"])
    store_run(database, "slow", "uncached", settings=ONE, given=["tokens_per_step"])
    check = verdict_of(database, claim)
    assert check.verdict is Verdict.NOT_COMPARABLE
    assert check.reason == "The reference answers 0 % correctly, so there is nothing to lose or keep."


def test_what_the_machine_makes_up_by_itself_is_no_difference(database):
    two_runs(database, seconds=0.9, right=range(30))
    for name, seconds, role in (("ar 1", 1.0, "baseline"), ("ar 2", 1.2, "control")):
        store_run(database, name, "ar", settings={}, model="tiny-ar", seconds=seconds, role=role)
    check = verdict_of(database, mechanism(expect={"low": 1, "wording": "above 1x"}))
    assert check.verdict is Verdict.UNDECIDED
    assert check.reason == (
        "The speed ratio 1.11x (0.93 to 1.33; 95 %, widened 1.20x for noise from run to run) lies across the edge. "
        "5 interleaved repeats on a quiet machine say what runs of one configuration differ by."
    )
    assert check.numbers[1].name == "the same against itself"
    assert check.numbers[1].value == pytest.approx(1 / 1.2)
    assert all(" --repeats 5 " in line for line in check.next_commands)


# -- times that are not reliable --

TIMED = {
    "speed ratio": {"expect": {"low": 1.2, "wording": "at least 1.2x"}},
    "time ratio": {"expect": {"low": 1.2, "wording": "at least 1.2x"}},
    "throughput": {
        "baseline": None, "baseline_settings": None, "expect": {"low": 10, "wording": "at least 10 tokens/s"},
    },
}  # fmt: skip


@pytest.mark.parametrize("quantity", TIMED)
@pytest.mark.parametrize(
    ("off", "verdict", "factor"),
    [
        (0.05, Verdict.REPRODUCED, None),
        (0.2, Verdict.CAVEAT, "1.20x"),
        (-0.2, Verdict.CAVEAT, "1.25x"),
        (0.3, Verdict.UNDECIDED, None),
    ],
)
def test_no_speed_is_reproduced_without_a_word_from_books_that_do_not_close(database, quantity, off, verdict, factor):
    two_runs(database, right=range(6), books=off, documents=8)
    check = verdict_of(database, mechanism(quantity=quantity, **TIMED[quantity]))
    assert check.verdict is verdict
    share = f"{(1 + off) * 100:.3g} %"
    if verdict is Verdict.REPRODUCED:
        assert not check.caveats
    else:
        assert check.caveats[0].startswith(
            f"The times of uncached, threshold 0.9 are not reliable: its parts add up to {share} of its wall time."
        )
    if factor:
        assert f"widened by {factor} because the books do not close" in check.numbers[0].basis
    if verdict is Verdict.UNDECIDED:
        assert check.numbers[0].low is None
        assert "is without an interval" in check.reason
        assert all(" --repeats 5 " in line for line in check.next_commands)


@pytest.mark.parametrize("quantity", ["tokens per forward ratio", "agreement"])
def test_what_is_counted_does_not_depend_on_the_clock(database, quantity):
    two_runs(database, forwards=5, right=range(6), books=0.9, documents=8)
    check = verdict_of(database, mechanism(quantity=quantity, expect={"low": 0.6, "wording": "at least 0.6"}))
    assert (check.verdict, check.caveats) == (Verdict.REPRODUCED, ())


def test_a_time_ratio_is_widened_by_what_runs_differ_by(database):
    two_runs(database, right=range(30))
    check = verdict_of(database, mechanism(quantity="time ratio"))
    assert check.reason == f"The time ratio 2.00x (1.82 to 2.20; {WIDENED}) lies where the rule has it."


def test_requests_that_share_forwards_have_no_interval_and_repeats_are_asked_for(database):
    store_run(database, "fast", "uncached", settings=THRESHOLD, given=["threshold"], seconds=0.5, concurrency=4)
    store_run(database, "slow", "uncached", settings=ONE, given=["tokens_per_step"], concurrency=4)
    check = verdict_of(database, mechanism(quantity="time ratio", concurrency=4))
    assert check.verdict is Verdict.UNDECIDED
    assert "needs at least 5 interleaved repeats" in check.reason
    assert all(" --repeats 5 " in line for line in check.next_commands)


def test_five_repeats_are_judged_together_and_all_of_them_listed(database):
    for n in range(5):
        for name, settings, given, seconds in (
            ("fast", THRESHOLD, ["threshold"], 0.5 + 0.01 * n),
            ("slow", ONE, ["tokens_per_step"], 1.0),
        ):
            store_run(
                database, f"{name} {n}", "uncached", settings=settings, given=given, seconds=seconds, repeat=n,
                right=range(6), concurrency=4, documents=8,
            )  # fmt: skip
    check = verdict_of(database, mechanism(concurrency=4))
    assert check.verdict is Verdict.REPRODUCED
    assert check.numbers[0].basis == "5 repeats"
    assert len(check.runs) == 10


def test_runs_over_more_documents_are_judged_rather_than_fewer_of_one_command(database):
    for name, settings, given, seconds, made_by, documents in (
        ("few fast", THRESHOLD, ["threshold"], 0.5, "one", 4),
        ("few slow", ONE, ["tokens_per_step"], 1.0, "one", 4),
        ("many fast", THRESHOLD, ["threshold"], 0.5, "two", 40),
        ("many slow", ONE, ["tokens_per_step"], 1.0, "three", 40),
    ):
        store_run(
            database, name, "uncached", settings=settings, given=given, seconds=seconds, documents=documents,
            invocation=made_by,
        )  # fmt: skip
    assert verdict_of(database, mechanism(quantity="time ratio")).runs == ("many fast", "many slow")


# -- many at once --


def test_a_margin_that_is_shown_only_by_chance_among_many_has_a_caveat(database):
    two_runs(database, right=range(29))

    # One of 40 lost: that it is less than 12 points has p = 0.032, by Tango's score.
    def margin(points):
        return mechanism(
            quantity="quality difference", expect={"low": -points, "wording": f"less than {points} points lost"}
        )

    with Store.open(database) as store:
        (alone,) = check_claims([margin(12)], store, database)
        together = check_claims([margin(points) for points in (12, 1, 1, 1, 1)], store, database)
    assert alone.p_value == pytest.approx(0.0322, abs=0.0001)
    assert (alone.verdict, alone.caveats) == (Verdict.REPRODUCED, ())
    assert together[0].verdict is Verdict.CAVEAT
    assert together[0].caveats == (
        "Of the 5 margins tested together some are shown by chance: at a false discovery rate of 5 % "
        f"(Benjamini-Hochberg) this one is not shown, p = {alone.p_value:.3g}.",
    )
    assert [check.verdict for check in together[1:]] == [Verdict.UNDECIDED] * 4


def test_verdicts_by_intervals_have_no_p_value(database):
    two_runs(database, right=range(30))
    assert verdict_of(database, mechanism()).p_value is None


def test_tokens_per_forward_are_compared_by_document(database):
    two_runs(database, forwards=5, right=range(30))
    claim = mechanism(quantity="tokens per forward ratio", expect={"low": 1.5, "wording": "at least 1.5 times as many"})
    check = verdict_of(database, claim)
    assert check.verdict is Verdict.REPRODUCED
    assert check.reason.startswith("The tokens per forward ratio 2.00x")


def test_agreement_is_the_share_of_equal_tokens_in_place(database):
    def nine_of_ten(doc):
        return [doc] * 9 + [99]

    two_runs(database, tokens=nine_of_ten, right=range(30))
    claim = mechanism(quantity="agreement", expect={"low": 0.8, "wording": "at least 80 %"})
    check = verdict_of(database, claim)
    assert check.verdict is Verdict.REPRODUCED
    assert check.numbers[0].value == pytest.approx(0.9)


def test_a_shorter_answer_disagrees_where_it_ends(database):
    two_runs(database, tokens=lambda doc: [doc] * 5, right=range(30))
    claim = mechanism(quantity="agreement", expect={"low": 0.8, "wording": "at least 80 %"})
    check = verdict_of(database, claim)
    assert check.numbers[0].value == pytest.approx(0.5)
    assert check.verdict is Verdict.NOT_REPRODUCED


def test_sides_that_do_not_commit_alike_are_not_compared_in_quality(database):
    two_runs(database, forwards=20, right=range(30))
    claim = mechanism(
        quantity="quality difference",
        expect={"low": -10, "wording": "a loss of less than 10 points"},
        at_least_tokens_per_forward=1,
    )
    check = verdict_of(database, claim)
    assert check.verdict is Verdict.NOT_COMPARABLE
    assert check.reason == (
        "The sides do not commit alike: 0.50 tokens per forward against 1.00, where at least 1 times as many are asked for."
    )


def test_shorter_answers_and_an_unfinished_run_are_caveats(database):
    store_run(
        database, "fast", "uncached", settings=THRESHOLD, given=["threshold"], seconds=0.2, tokens=lambda doc: [doc] * 5,
        status="interrupted", right=range(30),
    )  # fmt: skip
    store_run(database, "slow", "uncached", settings=ONE, given=["tokens_per_step"], right=range(30))
    check = verdict_of(database, mechanism())
    assert check.verdict is Verdict.CAVEAT
    assert check.caveats == (
        "One side is unfinished (uncached, threshold 0.9, 40 of 40 requests): what is missing is in no figure.",
        "The answers are 50 % shorter than the reference's.",
    )
    assert check.next_commands == (f"dllm-audit compare fast slow --db {database}",)


def test_a_published_speed_is_not_reproduced_when_its_quality_is_not(database):
    two_runs(database, right=range(5))
    check = verdict_of(database, replication(margin_points=5))
    assert check.verdict is Verdict.NOT_REPRODUCED
    assert check.reason.endswith("But the quality is worse by more than 5 points.")


def test_a_published_speed_has_a_caveat_while_its_quality_is_open_or_the_machine_another(database):
    two_runs(database, right=range(30))
    check = verdict_of(database, replication(margin_points=1))
    assert check.verdict is Verdict.CAVEAT
    assert check.caveats[0] == (
        "A ratio travels between machines with a warning only: the claim's is NVIDIA H100, this is A processor."
    )
    assert check.caveats[-1].startswith("Whether the quality holds within 1 points is not decided. About ")


def test_a_claim_of_being_slower_promises_no_quality(database):
    two_runs(database, seconds=2.0, right=range(5))
    check = verdict_of(database, replication(margin_points=1, expect={"high": 1, "wording": "below 1x"}))
    assert check.verdict is Verdict.CAVEAT
    assert len(check.caveats) == 1


def test_without_expect_the_claims_own_ratio_is_the_measure(database):
    two_runs(database, right=range(30))
    check = verdict_of(database, replication(expect=None, quantity=None))
    assert check.rule == "at least 1.44x, 80 % of 1.8x, with the whole 95 % interval"


def test_absolute_speeds_are_judged_on_the_same_hardware_only(database):
    claim = replication(
        baseline=None,
        baseline_settings=None,
        quantity="throughput",
        expect={"low": 5, "wording": "at least 5 tokens/s"},
    )
    two_runs(database, right=range(30))
    check = verdict_of(database, claim)
    assert check.verdict is Verdict.NOT_COMPARABLE
    assert check.reason == (
        "Absolute speeds are judged on the same hardware only: the claim's is NVIDIA H100, this is A processor."
    )


def test_absolute_speeds_are_judged_on_the_same_hardware(database):
    claim = replication(
        baseline=None,
        baseline_settings=None,
        quantity="throughput",
        expect={"low": 5, "wording": "at least 5 tokens/s"},
    )
    two_runs(database, right=range(30), environment={"gpu": "NVIDIA H100 80GB HBM3"})
    check = verdict_of(database, claim)
    assert check.verdict is Verdict.CAVEAT
    assert check.caveats == ("The quality that goes with it was not held against the claim's.",)
    assert check.numbers[0].value == pytest.approx(400 / 20.8)  # 40 answers of 10 tokens, the last at 20.8 s


@pytest.mark.parametrize(
    ("claimed", "here", "same"),
    [
        ({"device": "NVIDIA H100", "count": 1}, "NVIDIA H100 PCIe", False),
        ({"device": "NVIDIA H100", "count": 8}, "NVIDIA H100 80GB HBM3", False),
        ({"device": "NVIDIA Blackwell", "count": 1}, "NVIDIA RTX PRO 4500 Blackwell", False),
        ({"device": "NVIDIA A100", "count": 1}, "NVIDIA A100-SXM4-80GB", True),
        ({"device": "An unknown chip", "count": 1}, "An Unknown Chip", True),
    ],
)
def test_hardware_is_the_same_only_when_device_and_number_are(database, claimed, here, same):
    expect = {"low": 5, "wording": "at least 5 tokens/s"}
    claim = replication(baseline=None, baseline_settings=None, quantity="throughput", expect=expect)
    claim = claim.model_copy(update={"hardware": type(claim.hardware).model_validate(claimed)})
    two_runs(database, right=range(6), environment={"gpu": here}, documents=8)
    assert (verdict_of(database, claim).verdict is not Verdict.NOT_COMPARABLE) == same


def test_quality_alone_is_held_against_the_published_score(database):
    store_run(database, "good", "uncached", settings=ONE, given=["tokens_per_step"], right=range(28))
    recipe = {"backend": "uncached", "model": "tiny-mdm", "task": "gsm_mini", "settings": {"tokens_per_step": 1}}
    check = verdict_of(database, claim_of(SCORE, recipe=recipe))
    assert check.quantity == "quality"
    assert check.rule == "within 2 points of 70 %, with the whole 95 % interval"
    assert check.verdict is Verdict.UNDECIDED


def test_more_documents_than_the_task_has_are_not_asked_for(database):
    recipe = {"backend": "uncached", "model": "tiny-mdm", "task": "gsm_mini", "settings": {"tokens_per_step": 1}}
    store_run(
        database, "all", "uncached", settings=ONE, given=["tokens_per_step"], right=range(27),
        prompts={"limit": None, "documents": 40},
    )  # fmt: skip
    check = verdict_of(database, claim_of(SCORE, recipe=recipe))
    assert check.verdict is Verdict.UNDECIDED
    assert check.reason.endswith("documents if the estimate stays, and the task has 40.")
    assert check.next_commands == (f"dllm-audit show all --db {database}",)


def test_another_precision_is_a_caveat_of_a_speed(database):
    two_runs(database, right=range(30), dtype="float32")
    check = verdict_of(database, replication())
    assert "The claim's precision is bf16, the run's is float32." in check.caveats


def test_without_runs_the_commands_that_make_them_are_named(database):
    check = verdict_of(database, mechanism())
    assert check.verdict is Verdict.NOT_COMPARABLE
    assert check.reason == (
        f"{database} has no run of uncached with tiny-mdm on gsm_mini (threshold 0.9) "
        "and none of uncached with tiny-mdm on gsm_mini (tokens_per_step 1)."
    )
    assert check.next_commands == (
        f"dllm-audit run --backend uncached --model tiny-mdm --task gsm_mini --num-fewshot 0 --threshold 0.9 --db {database}",
        f"dllm-audit run --backend uncached --model tiny-mdm --task gsm_mini --num-fewshot 0 --tokens-per-step 1 --db {database}",
    )


def test_a_claim_without_recipe_is_not_comparable(database):
    check = verdict_of(database, claim_of(SWEEP))
    assert check.verdict is Verdict.NOT_COMPARABLE
    assert check.reason == "The claim has no recipe: nobody has written down what to run for it."


@pytest.mark.parametrize(
    "changes",
    [
        {"backend": "dualcache"},
        {"model": "other"},
        {"task": "gsm8k"},
        {"settings": {**THRESHOLD, "threshold": 0.8}},
        {"settings": {**THRESHOLD, "temperature": 0.7}, "given": ["threshold", "temperature"]},
        {"num_fewshot": 5},
        {"role": "control"},
        {"prompts": {"part": {"name": "tuning", "tuning_documents": 10}}},
        {"prompts": {"template": {"name": "short", "doc_to_text": "Q: {{question}}"}}},
        {"load": "poisson"},
    ],
)
def test_a_run_of_something_else_is_not_taken(database, changes):
    run = {"settings": THRESHOLD, "given": ["threshold"], "backend": "uncached"} | changes
    backend = run.pop("backend")
    store_run(database, "other", backend, **run)
    side = sides_of(Recipe.model_validate({k: v for k, v in MECHANISM.items() if k != "shows"})).candidate
    with Store.open(database) as store:
        assert not fits(store.run("other"), side)


def test_schedules_are_compared_by_what_they_come_to():
    assert schedule({"gen_length": 64, "steps": 16}) == schedule({"tokens_per_step": 4}) == ("tokens per step", 4)
    assert schedule({"gen_length": 64}) == ("tokens per step", 1)
    assert schedule({"tokens_per_step": 4, "threshold": 0.9}) == ("threshold", 0.9)


def test_sides_with_the_same_settings_are_one_interleaved_command(tmp_path):
    recipe = Recipe.model_validate(
        {
            "backend": "dualcache",
            "model": "M",
            "baseline": "ar",
            "baseline_model": "N",
            "task": "gsm8k",
            "settings": {"threshold": 0.9},
        }
    )
    (made,) = commands(recipe, sides_of(recipe))
    assert made.line(tmp_path / "r") == (
        f"dllm-audit run --backend dualcache --model M --baseline ar --baseline-model N --task gsm8k --threshold 0.9 --db {tmp_path / 'r'}"
    )


def test_another_model_is_a_caveat_of_the_claims_recipe(database):
    two_runs(database, right=range(30))
    recipe = {name: value for name, value in MECHANISM.items() if name != "shows"}
    claim = claim_of(SWEEP, recipe={**recipe, "model": "GSAI-ML/LLaDA-8B-Instruct"})
    with Store.open(database) as store:
        (check,) = check_claims([claim], store, database, model="tiny-mdm")
    assert "Another model decoded: tiny-mdm instead of GSAI-ML/LLaDA-8B-Instruct." in check.caveats


def test_recipes_that_ask_for_nothing_or_for_the_impossible_are_refused():
    for changes, message in [
        ({"expect": {"wording": "anything"}}, "every result would meet it"),
        ({"expect": {"low": 2, "high": 1, "wording": "x"}}, "which nothing can meet"),
        ({"baseline": None, "baseline_settings": None}, "needs a baseline to compare with"),
        ({"expect": None}, "needs both quantity and expect"),
        ({"baseline_settings": None}, "compares a decoder with itself"),
    ]:
        with pytest.raises(ValueError, match=message):
            mechanism(**changes)


# -- the command --


def write(folder, claim_text):
    folder.mkdir(exist_ok=True)
    (folder / "claim.yaml").write_text(claim_text)
    return folder


def with_mechanism(low):
    return SWEEP + (
        "mechanisms:\n"
        "  - {shows: A threshold is faster., backend: uncached, model: tiny-mdm, baseline: uncached, task: gsm_mini,\n"
        "     baseline_settings: {tokens_per_step: 1}, settings: {threshold: 0.9}, quantity: speed ratio,\n"
        f"     expect: {{low: {low}, wording: at least {low}x}}}}\n"
    )


@pytest.mark.parametrize(("low", "strict", "status"), [(1.5, True, 0), (3, True, 1), (3, False, 0)])
def test_strict_fails_when_a_claim_does(tmp_path, database, low, strict, status):
    two_runs(database, right=range(30))
    folder = write(tmp_path / "claims", with_mechanism(low))
    arguments = ["check", "--claims", str(folder), "--db", str(database), *(["--strict"] if strict else [])]
    assert CliRunner().invoke(command, arguments, catch_exceptions=False).exit_code == status


def test_check_prints_a_paragraph_and_the_counts(tmp_path, database):
    two_runs(database, right=range(30))
    folder = write(tmp_path / "claims", with_mechanism(1.5))
    text = CliRunner().invoke(command, ["check", "--claims", str(folder), "--db", str(database)]).stdout
    assert text.startswith("MECHANISM SEEN HERE  honest-sweep\n  shows       A threshold is faster.\n")
    assert "\n1 mechanism seen here.\nA mechanism is looked for with small models on this machine" in text


def test_check_as_json_and_without_a_results_file(tmp_path, database):
    folder = write(tmp_path / "claims", with_mechanism(1.5))
    result = CliRunner().invoke(command, ["check", "--claims", str(folder), "--db", str(database), "--json"])
    (check,) = json.loads(result.stdout)["checks"]
    assert check["verdict"] == "not comparable here"
    assert not database.exists()


def test_run_makes_the_missing_runs_and_then_judges(tmp_path, database, monkeypatch):
    made = []

    def run(arguments, *, obj, **_):
        # What is stored as the command of the runs.
        assert obj == ["run", *arguments]
        made.append(arguments[:-2])
        fast = "--threshold" in arguments
        settings = THRESHOLD if fast else ONE
        name = "threshold" if fast else "tokens_per_step"
        store_run(
            database,
            f"run {len(made)}",
            "uncached",
            settings=settings,
            given=[name],
            seconds=0.5 if fast else 1.0,
            right=range(30),
        )

    monkeypatch.setattr("dllm_audit.cli.run.command.main", run)
    folder = write(tmp_path / "claims", with_mechanism(1.5))
    arguments = ["check", "--claims", str(folder), "--db", str(database), "--run", "--limit", "40", "--device", "cpu"]
    for _ in range(2):
        result = CliRunner().invoke(command, arguments, catch_exceptions=False)
        assert result.stdout.startswith("MECHANISM SEEN HERE  honest-sweep\n")
    common = ["--backend", "uncached", "--model", "tiny-mdm", "--task", "gsm_mini", "--limit", "40"]
    # The second time nothing is missing.
    assert made == [
        [*common, "--threshold", "0.9", "--db", str(database)],
        [*common, "--tokens-per-step", "1", "--db", str(database)],
    ]


def test_a_recipe_that_cannot_be_run_here_leaves_the_others_alone(tmp_path, database, monkeypatch):
    def run(arguments, **_):
        raise ModelError("There is no such model here.")

    monkeypatch.setattr("dllm_audit.cli.run.command.main", run)
    folder = write(tmp_path / "claims", with_mechanism(1.5))
    result = CliRunner().invoke(
        command,
        ["check", "honest-sweep", "--claims", str(folder), "--db", str(database), "--run"],
        catch_exceptions=False,
    )
    assert "A recipe of honest-sweep cannot be run here: There is no such model here." in result.stderr
    assert result.stdout.startswith("NOT COMPARABLE HERE [mechanism]  honest-sweep\n")


def test_a_task_file_that_a_claim_names_is_not_opened_unless_that_is_allowed(tmp_path, database, monkeypatch):
    trace = tmp_path / "it ran"
    (tmp_path / "evil.py").write_text(f"open({str(trace)!r}, 'w').close()\ndef prompt(doc): return 'x'\n")
    task = tmp_path / "evil.yaml"
    task.write_text("task: evil\ndataset_path: json\ndoc_to_text: !function evil.prompt\n")
    folder = write(tmp_path / "claims", with_mechanism(1.5).replace("task: gsm_mini", f"task: {task}"))
    arguments = ["check", "honest-sweep", "--claims", str(folder), "--db", str(database), "--run"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.stderr == (
        f"A recipe of honest-sweep is not run: its task '{task}' is a file, and a task file may run Python code of its own "
        "with your rights. Read the file, then add --allow-task-files.\n"
    )
    assert not trace.exists()
    made = []
    monkeypatch.setattr("dllm_audit.cli.run.command.main", lambda arguments, **_: made.append(arguments))
    CliRunner().invoke(command, [*arguments, "--allow-task-files"], catch_exceptions=False)
    assert [line[line.index("--task") + 1] for line in made] == [str(task)] * 2


def test_a_run_of_a_task_file_is_found_by_the_command_that_named_it(database):
    command = "dllm-audit run --backend uncached --task 'my sums.yaml' --threshold 0.9"
    store_run(database, "named", "uncached", settings=THRESHOLD, given=["threshold"], task="sums", command=command)
    recipe = {name: value for name, value in MECHANISM.items() if name != "shows"}
    with Store.open(database) as store:
        run = store.run("named")
    for task, found in (("tasks/my sums.yaml", True), ("sums", True), ("tasks/sums.yaml", False)):
        assert fits(run, sides_of(Recipe.model_validate({**recipe, "task": task})).candidate) == found


def test_a_rule_that_stopped_a_run_is_a_caveat_of_what_it_did_not_watch(database):
    two_runs(database, right=range(30), sequential={"audit": "a", "margin": 0.1})
    for quantity, low in (("agreement", 0.8), ("quality difference", -20)):
        check = verdict_of(database, mechanism(quantity=quantity, expect={"low": low, "wording": "the rule"}))
        assert check.verdict is Verdict.CAVEAT
        assert any("too sure" in caveat for caveat in check.caveats)


def test_where_a_rule_watched_the_margin_its_own_interval_decides(database, monkeypatch):
    two_runs(database, right=range(30))
    usual = Comparisons.compare

    def watched(self, *args):
        comparison = usual(self, *args)
        difference = replace(comparison.quality.difference, low=-0.25, high=0.25, basis="40 documents, always-valid")
        quality = replace(comparison.quality, p_value=None, difference=difference)
        return replace(comparison, quality=quality)

    monkeypatch.setattr(Comparisons, "compare", watched)
    check = verdict_of(
        database,
        mechanism(quantity="quality difference", expect={"low": -20, "wording": "a loss of less than 20 points"}),
    )
    assert (check.verdict, check.p_value) == (Verdict.UNDECIDED, None)
    assert check.reason.startswith("The quality difference (acc) 0.0 points (-25.0 to 25.0) lies across the edge.")


@pytest.mark.parametrize("task", ["gsm_mini,evil.yaml", "--allow-code-execution"])
def test_a_recipe_names_one_task_and_no_option(task):
    with pytest.raises(ValueError, match=r"has a comma in it|would take for an option"):
        mechanism(task=task)


def test_more_documents_than_are_stored_are_decoded_again(database, tmp_path):
    two_runs(database)
    recipe = Recipe.model_validate({k: v for k, v in MECHANISM.items() if k != "shows"})
    with Store.open(database) as store:
        runs = store.runs()
    for limit, done in ((None, True), (40, True), (41, False)):
        assert {made.is_done(runs) for made in commands(recipe, sides_of(recipe), limit)} == {done}


def test_limit_and_device_are_for_run_only(database):
    with pytest.raises(UsageError, match="Give --run too"):
        CliRunner().invoke(command, ["check", "--limit", "3", "--db", str(database)], catch_exceptions=False)


def test_every_published_mechanism_says_what_it_shows_in_one_sentence():
    shown = [m.shows for claim in load_claims().claims for m in claim.mechanisms]
    assert len(shown) >= 4
    assert all(text.endswith(".") and "\n" not in text for text in shown)


def test_every_embedded_recipe_names_backends_and_settings_that_exist():
    from dllm_audit.plugins import load_plugins

    backends = load_plugins().backends
    recipes = [m for claim in load_claims().claims for m in claim.mechanisms if m.is_embedded]
    for recipe in recipes:
        assert recipe.backend in backends
        assert set(recipe.settings) <= set(backends[recipe.backend].settings)
        if recipe.baseline:
            assert recipe.baseline in backends
            assert set(recipe.baseline_settings or {}) <= set(backends[recipe.baseline].settings)


@pytest.mark.parametrize("manifest", [{}, {"command": "dllm-audit 'run"}, {"command": 5, "prompts": None}])
def test_a_run_of_which_too_little_is_recorded_is_not_taken_and_does_no_harm(database, manifest):
    store_run(database, "bare", "uncached", settings=THRESHOLD, given=["threshold"])
    recipe = Recipe.model_validate({k: v for k, v in MECHANISM.items() if k != "shows"} | {"num_fewshot": 0})
    with Store.open(database) as store:
        run = {**store.run("bare"), "manifest": manifest}
    assert not fits(run, sides_of(recipe).candidate)
    assert not fits({**run, "task": "another"}, sides_of(recipe).candidate)
