import base64
import datetime as dt
import hashlib
import re
from html.parser import HTMLParser

import pytest

from dllm_audit.claims.registry import Registry, load_claims
from dllm_audit.errors import UsageError
from dllm_audit.report.build import render
from dllm_audit.report.page import gather
from dllm_audit.report.sections.runs import newest_runs
from dllm_audit.store.database import Store

MOMENT = dt.datetime(2026, 1, 2, 3, 4)
NO_CLAIMS = Registry([], [])
VOID = {"meta", "br", "img", "link", "input", "hr", "path", "line", "rect"}


class Page(HTMLParser):
    """Every element with its attributes, and whether they nest."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.stack, self.problems = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.stack or self.stack.pop() != tag:
            self.problems.append(tag)

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def html(results):
    with Store.open(results) as store:
        return render(gather(store, load_claims(), made_at=MOMENT))


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_every_element_is_closed(page):
    assert page.problems == []
    assert page.stack == []


def test_the_page_has_no_script_and_nothing_that_loads(page):
    names = {name for name, _ in page.elements}
    assert names.isdisjoint({"script", "img", "iframe", "object", "embed", "link", "video", "form", "base"})
    assert not any(key.startswith("on") for _, attributes in page.elements for key in attributes)
    assert not any("style" in attributes for _, attributes in page.elements)
    assert not any("src" in attributes for _, attributes in page.elements)


def test_the_content_security_policy_allows_exactly_the_one_style_sheet(html, page):
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = next(m["content"] for m in page.named("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "@import" not in style
    assert "url(" not in style


def test_links_lead_into_the_page_or_to_arxiv(page):
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    for link in page.named("a"):
        target = link["href"]
        assert target[1:] in ids if target.startswith("#") else target.startswith("https://arxiv.org/abs/")


def test_no_id_is_used_twice(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_hostile_text_is_shown_and_does_nothing(html):
    assert "<script" not in html
    assert "</script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "\\u202ereversed\\u202c \\x1b[31mred\\x07" in html
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f]", html)


def test_hostile_names_of_models_tasks_and_settings_are_escaped(empty_store, build):
    hostile = "<script>alert(1)</script>\u202e\x1b'\""
    row = build(
        "diffusion_row", "r", backend=hostile, model=hostile, task=hostile, invocation=hostile, provenance=hostile,
        settings={hostile: hostile, "gen_length": 8}, setting_sources={hostile: "option"},
        manifest={"notes": [hostile], "environment": {hostile: hostile}, "command": hostile, "model": {"ref": hostile}},
    )  # fmt: skip
    build(
        "add_run", empty_store, row, [build("diffusion_generation", text=hostile)] * 6, [1] * 6, makespan=1.0,
        filters=(hostile,), metric=hostile, responses=[hostile], prompts=[hostile] * 6,
    )  # fmt: skip
    html = render(gather(empty_store, NO_CLAIMS))
    page = Page(html)
    assert page.named("script") == []
    assert page.problems == []
    assert "\u202e" not in html
    assert "\x1b" not in html


def test_every_table_has_a_caption_and_scrolls_in_a_box_of_its_own(html):
    assert html.count("<table>") == html.count("<caption>")
    assert len(re.findall(r'<div class="scroll"[^>]*>\s*<table>', html)) == html.count("<table>")


def test_charts_are_images_with_words(page):
    charts = [a for name, a in page.elements if name == "div" and a.get("class") == "chart"]
    assert charts
    assert all(chart["role"] == "img" and len(chart["aria-label"]) > 20 for chart in charts)


def test_embedded_models_are_no_evidence_about_gpu_speed(html):
    assert "These are embedded models." in html
    assert "never about the speed of a practical model on a GPU" in html


def test_the_verdict_of_open_questions_is_that_they_are_open(stored):
    report = gather(stored, NO_CLAIMS, made_at=MOMENT)
    assert report.verdict.headline == (
        "Some diffusion runs were faster than autoregressive decoding; none was shown to be faster and not worse."
    )
    assert report.verdict.ran == (
        "3 runs of 2 backends (ar and dualcache) with 2 models (tiny-ar and tiny-mdm) on 1 task (gsm_mini), "
        "18 requests answered, on Example CPU (2 cores)."
    )
    assert any(sentence.startswith("That quality is equal within 2 points") for sentence in report.verdict.may_not)


def test_a_diffusion_run_is_compared_with_both_references(stored):
    pairs = gather(stored, NO_CLAIMS).tasks[0].pairs
    assert [(pair.candidate.label, pair.baseline.label, pair.against) for pair in pairs] == [
        ("dualcache, threshold 0.9", "ar", "the autoregressive model"),
        ("dualcache, threshold 0.9", "dualcache, 1 token/step", "one token per step, same model"),
        ("dualcache, 1 token/step", "ar", "the autoregressive model"),
    ]


def test_the_example_shows_which_token_was_committed_in_which_forward(stored):
    def texts(run, ids):
        return [f"t{token}" for token in ids]

    trace = gather(stored, NO_CLAIMS, token_texts=texts).tasks[0].trace
    row = trace.rows[0]
    assert trace.document == 0
    assert row.run.label == "dualcache, threshold 0.9"
    assert [step.kind for step in row.steps] == ["refresh", "denoise", "denoise", "denoise"]
    assert [(token.position, token.text) for token in row.steps[0].tokens] == [(0, "t300"), (3, "t301")]
    assert [token.position for token in row.tokens] == list(range(8))


def test_without_a_tokenizer_the_example_shows_ids(stored):
    row = gather(stored, NO_CLAIMS).tasks[0].trace.rows[0]
    assert row.has_text is False
    assert row.tokens[0].text == "300"


def test_every_claim_of_the_registry_is_in_the_page(html):
    registry = load_claims()
    assert html.count('<details class="claim">') == len(registry.claims)
    assert all(f'id="claim-{claim.id}"' in html for claim in registry.claims)


def test_runs_of_different_provenance_are_never_called_fastest_of_each_other(empty_store, build):
    build("add_run", empty_store, build("run_row", "a"), [build("generation")] * 6, makespan=3.0)
    served = build("run_row", "b", provenance="served", backend="engine")
    build("add_run", empty_store, served, [build("generation")] * 6, makespan=1.0)
    sentences = gather(empty_store, NO_CLAIMS).tasks[0].sentences
    assert [sentence.partition(":")[0] for sentence in sentences[:2]] == [
        "The only configuration with 1 request in flight, reference",
        "The only configuration with 1 request in flight, served",
    ]


def _with_books(row, discrepancy):
    return {**row, "manifest": {**row["manifest"], "books": {"discrepancy": discrepancy}}}


def _timed(build, store, row, seconds, n=150, correct=1):
    """Requests of which half take a little longer, so that the speed has an interval of some width."""
    kind = "diffusion_generation" if row["kind"] == "diffusion" else "generation"
    answers = [build(kind, seconds={"denoise": seconds * (1 + i % 2)}, text=f"#### {row['run_id']}") for i in range(n)]
    build("add_run", store, row, answers, [correct] * n, makespan=1.5 * seconds * n)


def test_the_fastest_is_named_where_its_interval_lies_beyond_the_others(empty_store, build):
    _timed(build, empty_store, build("run_row", "a"), 0.5)
    _timed(build, empty_store, build("diffusion_row", "b"), 0.2)
    report = gather(empty_store, NO_CLAIMS)
    assert report.tasks[0].sentences[0].startswith("Fastest: dualcache, threshold 0.9 on tiny-mdm, ")
    assert any("so intervals are over the requests of one run only" in sentence for sentence in report.verdict.may_not)


def test_the_headline_speaks_only_of_tasks_that_have_an_autoregressive_baseline(empty_store, build):
    _timed(build, empty_store, build("run_row", "a"), 0.5)
    _timed(build, empty_store, build("diffusion_row", "b"), 0.495)
    _timed(build, empty_store, build("diffusion_row", "c", task="lists_copy", content_key="c"), 0.2)
    assert gather(empty_store, NO_CLAIMS).verdict.headline == (
        "On no task with an autoregressive baseline (gsm_mini) was a diffusion run shown to be faster than autoregressive "
        "decoding and not worse."
    )


def test_a_caption_explains_once_and_afterwards_only_names_its_task(empty_store, build):
    for task in ("gsm_mini", "lists_copy"):
        for kind, name in (("run_row", "a"), ("diffusion_row", "b")):
            _timed(build, empty_store, build(kind, f"{name} {task}", task=task, content_key=f"{name} {task}"), 0.5)
    html = render(gather(empty_store, NO_CLAIMS))
    for said in ("Fast-dLLM's Theorem 1", "Repeats and bigrams are of neighbouring words", "Ramp-up is the share",
                 "The first text is delivered with", "The first token counts when", "paired by document"):  # fmt: skip
        assert html.count(f"{said}") == 1, said
    for name in ("How the answers read", "Latency", "What was in flight", "Forward passes per answered request"):
        assert html.count(f"<caption><span>{name} on ") == 2


def test_no_fastest_is_named_where_intervals_overlap(empty_store, build):
    _timed(build, empty_store, build("run_row", "a"), 0.5)
    _timed(build, empty_store, build("diffusion_row", "b"), 0.495)
    sentence = gather(empty_store, NO_CLAIMS).tasks[0].sentences[0]
    assert sentence.startswith("No fastest can be named: the intervals of dualcache, threshold 0.9 (")
    assert sentence.endswith(" overlap.")


def test_no_fastest_is_named_where_single_runs_differ_by_no_more_than_runs_of_one_configuration(empty_store, build):
    _timed(build, empty_store, build("run_row", "a"), 0.5, n=2000)
    _timed(build, empty_store, build("diffusion_row", "b"), 0.46, n=2000)
    report = gather(empty_store, NO_CLAIMS)
    assert report.tasks[0].pairs[0].comparison.speed_verdict == "open"
    sentence = report.tasks[0].sentences[0]
    assert sentence.startswith("No fastest can be named: the intervals of dualcache, threshold 0.9 (")
    assert sentence.endswith(" overlap within the 1.10x that runs of one configuration differ by.")


def test_times_that_are_far_off_make_nobody_the_fastest(empty_store, build):
    _timed(build, empty_store, _with_books(build("run_row", "a"), -0.947), 5.0)
    _timed(build, empty_store, build("diffusion_row", "b"), 0.2)
    report = gather(empty_store, NO_CLAIMS)
    reason = "the times of ar are not reliable: its parts add up to 5.3 % of its wall time"
    assert report.verdict.headline == f"No speed can be compared: {reason}."
    assert report.tasks[0].sentences[1] == (
        "No speed is concluded from ar: its times are not reliable (its parts add up to 5.3 % of its wall time)."
    )
    assert (
        report.tasks[0]
        .sentences[0]
        .startswith("The only configuration with reliable times: dualcache, threshold 0.9 on ")
    )
    assert report.tasks[0].pairs[0].comparison.speed_verdict == "unknown"
    assert not any("faster" in sentence for sentence in report.verdict.may)
    assert any(sentence.startswith("Any speed of ar (") for sentence in report.verdict.may_not)
    _timed(build, empty_store, build("run_row", "c", task="lists_copy", content_key="c"), 0.5)
    may_not = gather(empty_store, NO_CLAIMS).verdict.may_not
    assert any(sentence.startswith("Any speed of ar on gsm_mini (") for sentence in may_not)


def test_of_several_conditions_reliable_times_are_named_beside_how_many_were_in_flight(empty_store, build):
    _timed(build, empty_store, _with_books(build("run_row", "a"), -0.947), 5.0)
    _timed(build, empty_store, build("diffusion_row", "b"), 0.2)
    _timed(build, empty_store, build("diffusion_row", "c", concurrency=4, content_key="c"), 0.2)
    assert (
        gather(empty_store, NO_CLAIMS)
        .tasks[0]
        .sentences[0]
        .startswith("The only configuration with reliable times and 1 request in flight: dualcache, threshold 0.9 on ")
    )


def test_the_best_quality_is_named_without_a_speed_that_is_not_reliable(empty_store, build):
    _timed(build, empty_store, _with_books(build("run_row", "a"), -0.947), 5.0)
    _timed(build, empty_store, build("diffusion_row", "b"), 0.2, correct=0)
    assert (
        "Highest quality observed: ar on tiny-ar at 100 % exact match."
        in gather(empty_store, NO_CLAIMS).tasks[0].sentences
    )


def test_an_interval_that_is_wider_than_in_the_table_says_why(empty_store, build):
    _timed(build, empty_store, _with_books(build("run_row", "a"), -0.2), 0.5)
    _timed(build, empty_store, build("diffusion_row", "b"), 0.495)
    sentence = gather(empty_store, NO_CLAIMS).tasks[0].sentences[0]
    assert sentence.endswith("tokens/s), widened because the books do not close, overlap.")


def test_a_control_is_a_row_and_a_sentence_and_counts_as_a_run(empty_store, build):
    _timed(build, empty_store, build("run_row", "a", role="baseline"), 0.5)
    _timed(build, empty_store, build("run_row", "c", role="control"), 0.45)
    _timed(build, empty_store, build("diffusion_row", "b"), 0.2)
    report = gather(empty_store, NO_CLAIMS)
    assert report.verdict.ran.startswith("3 runs (1 control among them) of 2 backends")
    assert "450 requests answered" in report.verdict.ran
    assert len(report.tasks[0].shown) == 3
    sentences = report.tasks[0].sentences
    (twice,) = [
        sentence
        for sentence in sentences
        if sentence.startswith("The same configuration twice (ar, baseline): 1.11x (")
    ]
    assert twice.endswith(
        "). The machine alone makes such a difference: in that command, a ratio within 1.11x of 1 is noise, since the A/A "
        "control differs from itself by that."
    )
    assert any("but for what the control repeated" in sentence for sentence in report.verdict.may_not)
    assert "The same configuration twice (A/A control)" in render(gather(empty_store, NO_CLAIMS))


def test_a_decided_quality_is_concluded_also_where_no_speed_is(empty_store, build):
    _timed(build, empty_store, _with_books(build("run_row", "a"), -0.9), 0.5)
    _timed(build, empty_store, build("diffusion_row", "b"), 0.2, correct=0)
    may = gather(empty_store, NO_CLAIMS).verdict.may
    assert may[0].startswith(
        "On gsm_mini, worse against the autoregressive model: dualcache, threshold 0.9 (−100.0 points, −100.0 to "
    )


def test_a_speed_within_what_single_runs_differ_by_is_not_concluded(stored):
    # 0.909x: another run of the same configuration could have done that.
    assert gather(stored, NO_CLAIMS).verdict.may == (
        "Counts of tokens and forwards do not hang on a machine's speed: they hold wherever kernels and number format "
        "give the same tokens.",
    )


def test_an_unfinished_run_is_named(empty_store, build):
    build("add_run", empty_store, build("run_row", "a"), [build("generation")] * 3, makespan=1.5, status="interrupted")
    report = gather(empty_store, NO_CLAIMS)
    assert "Unfinished: ar (3 of 6 requests). What is missing is in no figure." in report.tasks[0].sentences
    assert any("unfinished runs" in sentence for sentence in report.verdict.may_not)


def test_commands_go_into_one_file_and_start_from_nothing(empty_store, build):
    for n, command in enumerate(
        ["dllm-audit run --task t --db old.duckdb", "dllm-audit run --task t --resume", "dllm-audit run --task u"]
    ):
        row = build("run_row", str(n))
        row = {**row, "manifest": {**row["manifest"], "command": command}}
        build("add_run", empty_store, row, [build("generation")], makespan=0.5)
    assert gather(empty_store, NO_CLAIMS).commands == (
        "dllm-audit run --task t --db empty.duckdb",
        "dllm-audit run --task u --db empty.duckdb",
    )


def test_many_of_the_same_token_in_a_row_are_one_with_their_number(stored):
    row = gather(stored, NO_CLAIMS, token_texts=lambda run, ids: ["<end>"] * len(ids)).tasks[0].trace.rows[0]
    assert [(token.text, token.count, token.position, token.step, token.end_step) for token in row.tokens] == [
        ("<end>", 8, 0, 0, 3)
    ]


@pytest.mark.parametrize(
    ("name", "shown"),
    [("lm_eval", "lm-eval"), ("env_OMP_NUM_THREADS", "OMP_NUM_THREADS"), ("cpu_mhz", "CPU clock (MHz)")],
)
def test_facts_have_names_that_a_person_writes(name, shown):
    from dllm_audit.report.sections.environment import _fact_name

    assert _fact_name(name) == shown


def test_a_damaged_results_file_still_gives_a_report(results, tmp_path):
    import shutil

    shutil.copy(results, tmp_path / "damaged.duckdb")
    with Store.open(tmp_path / "damaged.duckdb", write=True) as store:
        for ordinal, change in enumerate(
            ["total_seconds = NULL", "denoise_seconds = 'NaN'", "elapsed_seconds = -1", "ttft_seconds = 'inf'"]
        ):
            store._connection.execute(f"UPDATE requests SET {change} WHERE ordinal = {ordinal}")
        store._connection.execute("UPDATE runs SET makespan_seconds = 'NaN'")
        store._connection.execute("UPDATE trace_commits SET confidence = 'NaN'")
        store._connection.execute("UPDATE metrics SET value = 'NaN'")
        store._connection.execute("UPDATE answers SET value = 'NaN' WHERE doc_id = 4")
        html = render(gather(store, load_claims()))
    assert "4 of 6 stored requests are in no figure, because a time or a count of theirs is missing" in html


def test_an_older_run_of_the_same_content_is_left_out_but_a_broken_one_replaces_nothing(stored):
    first = {**stored.run("ar-1"), "content_key": "same"}
    second = {**first, "run_id": "ar-2"}
    broken = {**first, "run_id": "ar-3", "status": "interrupted"}
    assert [run["run_id"] for run in newest_runs([first, second, broken])] == ["ar-2"]


def test_an_older_baseline_stays_beside_the_runs_that_it_was_interleaved_with(stored):
    candidate = {**stored.run("dual-1"), "invocation": "first"}
    baseline = {**stored.run("ar-1"), "invocation": "first", "role": "baseline", "content_key": "same"}
    again = {**baseline, "run_id": "ar-2", "invocation": "second"}
    assert [run["run_id"] for run in newest_runs([candidate, baseline, again])] == ["dual-1", "ar-1", "ar-2"]


def test_failures_are_a_category_of_their_own(empty_store, build):
    from dllm_audit.records import Failure

    results = [build("generation")] * 5 + [Failure("5", "RequestError", "The prompt is too long.")]
    build("add_run", empty_store, build("run_row", "r"), results, [1] * 5, makespan=2.5, status="failed")
    html = render(gather(empty_store, NO_CLAIMS))
    assert "1 × RequestError: The prompt is too long." in html
    assert "They are in no figure below: neither a wrong answer nor a time." in html


def test_without_a_run_there_is_a_sentence(empty_store):
    with pytest.raises(UsageError, match=r"There are no runs in .*empty.duckdb. Make some with: dllm-audit run"):
        render(gather(empty_store, NO_CLAIMS))


def test_a_run_that_answered_nothing_still_gives_a_report(empty_store, build):
    from dllm_audit.records import Failure

    build("add_run", empty_store, build("run_row", "r"), [Failure("0", "RequestError", "No.")], status="failed")
    assert "Nothing was timed." in render(gather(empty_store, NO_CLAIMS))


def test_repeats_are_one_point_and_one_comparison_with_an_interval_over_repeats(empty_store, build):
    for number in range(5):
        shared = {"repeat": number, "concurrency": 4}
        ar = build("run_row", f"ar-{number}", **shared)
        build("add_run", empty_store, ar, [build("generation")] * 6, [1] * 6, makespan=1.0 + number / 10)
        dual = build("diffusion_row", f"dual-{number}", **shared)
        build("add_run", empty_store, dual, [build("diffusion_generation")] * 6, [1] * 6, makespan=0.5 + number / 20)
    task = gather(empty_store, NO_CLAIMS).tasks[0]
    assert (len(task.runs), len(task.shown)) == (10, 2)
    assert [row.label for row in task.repeated] == ["ar, concurrency 4", "dualcache, threshold 0.9, concurrency 4"]
    (pair,) = task.pairs
    assert pair.comparison.speed.value == pytest.approx(2.0)
    assert pair.comparison.speed.basis == "5 repeats"
    assert pair.comparison.speed_verdict == "faster"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("Mercury report, arXiv:2506.17298: medians", "Also seen in: Mercury report, arXiv:2506.17298: medians."),
        ("A paper, arXiv:2505.22618v2: its table", ""),
        ("A rule of arithmetic", "Why: A rule of arithmetic."),
    ],
)
def test_a_trap_names_where_else_it_was_met_or_why_it_is_one(source, said):
    from types import SimpleNamespace

    from dllm_audit.report.sections.claims import seen_in

    claim = SimpleNamespace(source=SimpleNamespace(identifier="arXiv:2505.22618"))
    assert seen_in(SimpleNamespace(source=source), claim) == said


def test_every_claim_says_how_to_look_at_it_in_a_terminal(html):
    assert all(f"dllm-audit claims show {claim.id}</code>" in html for claim in load_claims().claims)


def test_the_glossary_explains_the_words_of_the_tables(html):
    glossary = html.partition('id="glossary"')[2]
    for term in (
        "Makespan",
        "Books",
        "Host, sampling",
        "Correct/s",
        "Control (A/A)",
        "McNemar",
        "strict-match",
        "commit pass",
    ):
        assert term in glossary


def test_nobody_says_that_autoregressive_decoding_reads_the_prompt_in_its_first_forward(empty_store, build):
    answers = [build("generation", forwards={"denoise": 5})] * 6
    build("add_run", empty_store, build("run_row", "a"), answers, makespan=3.0)
    assert "reads the prompt inside its first forward" not in render(gather(empty_store, NO_CLAIMS))


def test_the_verdict_of_a_pair_is_a_row_of_its_own(html):
    section = html[html.index('<section id="pairs"') :]
    section = section[: section.index("</section>")]
    assert section.count('<tr class="words">') == section.count('<tr class="pair">') == 3


def test_the_row_of_the_verdict_has_the_difference_in_quality_too(html):
    rows = re.findall(r'<tr class="words">.*?</tr>', html, re.DOTALL)
    assert len([row for row in rows if re.search(r"Quality: \S+ points \(\S+ to \S+\)\.", row)]) == 3
