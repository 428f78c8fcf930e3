"""What the report says of published claims that its runs put to the test."""

import datetime as dt
import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from click.testing import CliRunner

from dllm_audit.claims.dossier import examine
from dllm_audit.claims.registry import Registry, load_claims
from dllm_audit.claims.schema import Expectation, Mechanism
from dllm_audit.claims.verdicts import Number, Obstacle, Verdict, check_claims
from dllm_audit.cli.report import command
from dllm_audit.report.build import render
from dllm_audit.report.page import gather
from dllm_audit.report.sections.checks import checks_section, quantity
from dllm_audit.store.database import Store

MOMENT = dt.datetime(2026, 1, 2, 3, 4)

#: Runs dual-1 and one-1 of the shared results: 8 tokens in 4 forwards against 8 in 8, each of six documents.
FASTER = Mechanism.model_validate(
    {
        "shows": "A threshold commits <several> tokens per forward.",
        "backend": "dualcache",
        "model": "tiny-mdm",
        "baseline": "dualcache",
        "baseline_settings": {"tokens_per_step": 1},
        "task": "gsm_mini",
        "settings": {"threshold": 0.9},
        "quantity": "tokens per forward ratio",
        "expect": {"low": 1.2, "wording": "at least 1.2x"},
    }
)
SLOWER = FASTER.model_copy(
    update={
        "shows": "A threshold commits fewer tokens per forward.",
        "expect": Expectation(high=0.9, wording="at most 0.9x"),
    }
)
ELSEWHERE = FASTER.model_copy(update={"shows": "It holds at 8B.", "model": "some/other-8B"})
BOTH = (
    "2 mechanisms behind published claims were looked for with other models: 1 seen here, 1 opposite of the mechanism seen "
    "here. No published number was tested by that."
)


@pytest.fixture(scope="module")
def registry():
    """A claim with three mechanisms, of which two have runs; one whose only recipe has none; one without a recipe."""
    plain = [claim for claim in load_claims().claims if claim.recipe is None and not claim.mechanisms]
    first = next(claim for claim in plain if claim.about_speed)
    second, third = [claim for claim in plain if claim is not first][:2]
    return Registry(
        [
            first.model_copy(update={"id": "first", "mechanisms": [FASTER, SLOWER, ELSEWHERE]}),
            second.model_copy(update={"id": "second", "mechanisms": [ELSEWHERE]}),
            third.model_copy(update={"id": "third"}),
        ],
        [],
    )


@pytest.fixture(scope="module")
def report(results, registry):
    with Store.open(results) as store:
        return gather(store, registry, made_at=MOMENT)


@pytest.fixture(scope="module")
def html(report):
    return render(report)


def section(html, name):
    """The text of one section without its tags."""
    found = re.search(rf'<section id="{name}".*?</section>', html, re.DOTALL)[0]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", found)).split())


def test_the_checks_are_those_of_claims_check(report, results, registry):
    with Store.open(results) as store:
        checks = check_claims(registry.claims, store, Path(results.name))
    shown = [card.check for card in (*report.checks.cards, *report.checks.without)]
    assert sorted(shown, key=str) == sorted((c for c in checks if c.obstacle != Obstacle.NO_RECIPE), key=str)


def test_a_check_has_an_obstacle_exactly_when_it_has_no_verdict(results, registry):
    with Store.open(results) as store:
        checks = check_claims([*registry.claims, *load_claims().claims], store, Path(results.name))
    assert all((check.verdict is Verdict.NOT_COMPARABLE) == (check.obstacle is not None) for check in checks)


def test_what_fails_comes_first(report):
    assert [str(card.check.verdict) for card in report.checks.cards] == ["contradicted", "reproduced"]


def test_a_card_says_rule_numbers_and_runs(html):
    text = section(html, "checks")
    assert (
        "opposite of the mechanism seen here mechanism, embedded models A threshold commits fewer tokens per forward."
        in text
    )
    assert "The tokens per forward ratio 2.00x (2.00 to 2.00) shows the opposite." in text
    assert "rule tokens per forward ratio: at most 0.9x, with the whole 95 % interval" in text
    assert "numbers candidate 2.00 tokens/forward" in text
    assert "basis 6 paired documents; derived" in text
    assert "runs 2 dualcache, threshold 0.9 against 3 dualcache, 1 token/step , on gsm_mini" in text
    assert "Look closer dllm-audit compare dual-1 one-1 --db results.duckdb" in text


def test_a_card_of_a_mechanism_says_what_was_tested_and_that_the_published_figure_was_not(html):
    text = section(html, "checks")
    assert (
        "tested dualcache with tiny-mdm on gsm_mini (threshold 0.9) against dualcache with tiny-mdm on gsm_mini" in text
    )
    assert text.count("not tested the published figure itself (") == 2
    assert "reproduced" not in re.sub(r"^.*?looked for with other models", "", text)


def test_verdicts_on_embedded_models_say_nothing_of_gpu_speed(html):
    assert "shown by embedded models it says nothing of the speed of a GPU" in section(html, "checks")


def test_what_a_mechanism_shows_is_escaped(html):
    assert "A threshold commits &lt;several&gt; tokens per forward." in html
    assert "<several>" not in html


def test_one_line_counts_the_claims_that_are_not_comparable_and_why(report, html):
    # The first claim has verdicts, so that its recipe without runs does not count.
    assert report.checks.no_verdict == (
        "2 of 3 claims are not comparable here: no run of what the recipe asks for (1), "
        "nobody has written down what to run (1)."
    )
    assert report.checks.no_verdict in section(html, "checks")


def test_recipes_without_runs_say_what_to_run(html):
    text = section(html, "checks")
    assert "2 recipes without a verdict, and what to run" in text
    assert "results.duckdb has no run of dualcache with some/other-8B on gsm_mini (threshold 0.9)" in text
    assert "dllm-audit run --backend dualcache --model some/other-8B --task gsm_mini --threshold 0.9" in text


def test_the_verdict_at_the_top_counts_what_was_put_to_the_test(html):
    assert f"{BOTH} See which" in section(html, "verdict")


def test_the_register_has_the_verdicts_of_each_claim(html):
    first = section(html, "claims").partition("Put to the test")[2]
    assert first.startswith(
        " opposite of the mechanism seen here mechanism, embedded models A threshold commits fewer tokens per forward."
    )
    assert "mechanism not comparable here mechanism, other models It holds at 8B." in first
    summary = re.search(
        r'<summary>(?:(?!</summary>).)*</summary>\s*<div class="body" id="claim-first">', html, re.DOTALL
    )[0]
    badges = re.findall(r'class="badge \w+">([\w ]*mechanism [\w ]+)<', summary)
    assert badges == ["opposite of the mechanism seen here", "mechanism seen here"]


def test_of_named_runs_only_those_are_used(results, registry):
    with Store.open(results) as store:
        report = gather(store, registry, [store.run("dual-1"), store.run("ar-1")], made_at=MOMENT)
    assert report.checks.cards == ()
    assert report.checks.sentence == "No published claim was put to the test by these runs."
    (faster,) = [card.check for card in report.checks.without if card.check.shows == FASTER.shows]
    assert faster.reason == "results.duckdb has no run of dualcache with tiny-mdm on gsm_mini (tokens_per_step 1)."


def test_a_run_that_the_report_leaves_out_is_named_by_its_id(report):
    (card,) = [card for card in report.checks.cards if card.check.shows == FASTER.shows]
    without = checks_section([card.check], [card.claim], {}).cards[0]
    assert [(run.run_id, run.row) for run in without.runs] == [("dual-1", None), ("one-1", None)]


def test_claims_themselves_are_counted_apart_from_mechanisms(report):
    card = report.checks.cards[0]
    itself = replace(card, check=replace(card.check, scope="claim", verdict=Verdict.CAVEAT))
    mixed = replace(report.checks, cards=(*report.checks.cards, itself))
    assert mixed.sentence == (
        f"{BOTH} 1 published claim was, by its own recipe, put to the test: 1 reproduced with a caveat."
    )


def test_caveats_are_shown(report):
    cards = tuple(
        replace(c, check=replace(c.check, caveats=("The answers are shorter.",))) for c in report.checks.cards
    )
    html = render(replace(report, checks=replace(report.checks, cards=cards)))
    assert html.count("<li>The answers are shorter.</li>") == 2


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Number("speed ratio", 6.842, 5.35, 8.74, "x", "derived"), "6.84x (5.35 to 8.74)"),
        (Number("agreement", 0.891, None, None, "share", "measured"), "0.891"),
        (Number("quality difference", -12.5, -20.04, -5.0, "points", "derived"), "−12.5 points (−20.0 to −5.00)"),
        (Number("throughput", None, None, None, "tokens/s", "measured"), "unknown"),
    ],
)
def test_numbers_have_their_unit_and_interval(figure, text):
    assert quantity(figure) == text


def test_every_claim_about_speed_has_its_physics_as_claims_show_has_it(results):
    registry = load_claims()
    with Store.open(results) as store:
        text = section(render(gather(store, registry)), "claims")
    about_speed = [claim for claim in registry.claims if claim.about_speed]
    assert text.count("Physics modelled ") == len(about_speed)
    for claim in about_speed[:20]:
        physics = examine(claim, registry).physics
        assert " ".join(" ".join((physics.sentence, *physics.assumptions)).split()) in text


def test_a_disputed_claim_names_the_claims_that_contradict_it_whichever_file_has_it(results):
    registry = load_claims()
    claim = next(claim for claim in registry.claims if claim.contradicts)
    other = registry.get(claim.contradicts[0].claim)
    with Store.open(results) as store:
        html = render(gather(store, Registry([claim, other], [])))
    assert html.count("<h4>Contradicted by other claims</h4>") == 2
    assert f'<a href="#claim-{other.id}">' in html
    assert f'<a href="#claim-{claim.id}">' in html


def test_a_dispute_with_a_claim_that_is_not_in_the_page_has_no_link(results):
    claim = next(claim for claim in load_claims().claims if claim.contradicts)
    with Store.open(results) as store:
        html = render(gather(store, Registry([claim], [])))
    assert f"<li><bdi>{claim.contradicts[0].claim}</bdi>: " in html


def test_the_command_gives_the_verdicts_as_json_and_in_its_last_line(results, tmp_path):
    output = str(tmp_path / "report.html")
    done = CliRunner().invoke(command, ["--db", str(results), "-o", output, "--json"])
    checks = json.loads(done.stdout)["checks"]
    lines = CliRunner().invoke(command, ["--db", str(results), "-o", output]).stdout.splitlines()
    assert lines[-1].endswith(checks["summary"])
    assert [check["scope"] for check in checks["verdicts"]] == ["mechanism"] * len(checks["verdicts"])
    assert sum(checks["not_comparable"].values()) <= len(load_claims().claims)
