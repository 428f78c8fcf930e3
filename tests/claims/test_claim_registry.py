from pathlib import Path

import pytest
import yaml
from honest_claims import SCORE, SWEEP
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dllm_audit.claims.document import parse_document
from dllm_audit.claims.registry import load_claims, read_claim
from dllm_audit.claims.schema import Gap
from dllm_audit.errors import ClaimError


def problems_of(tmp_path: Path, text: str):
    path = tmp_path / "claim.yaml"
    path.write_text(text)
    file = read_claim(path)
    assert file.claim is None
    return [(problem.line, problem.message) for problem in file.problems]


def line_of(text: str, start: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith(start))


def test_an_unknown_field_is_refused_with_the_nearest_known_one(tmp_path):
    text = SWEEP.replace("concurrency:", "concurency:")
    missing, unknown = problems_of(tmp_path, text)
    assert missing[1].startswith("claim: the field 'concurrency' is missing;")
    assert unknown[0] == line_of(text, "concurency")
    assert unknown[1].startswith("claim: unknown field 'concurency'. Did you mean 'concurrency'")


def test_an_unknown_field_inside_a_group_is_compared_with_the_fields_of_that_group(tmp_path):
    text = SWEEP.replace("  block_length: 32", "  block_length: 32\n  blok_length: 32")
    line = line_of(text, "  blok_length")
    assert problems_of(tmp_path, text) == [(line, "decode: unknown field 'blok_length'. Did you mean 'block_length'?")]


def test_a_missing_field_is_refused_with_the_four_non_answers(tmp_path):
    text = SWEEP.replace("precision: bf16\n", "")
    assert problems_of(tmp_path, text) == [
        (
            1,
            "claim: the field 'precision' is missing; where there is no answer, write which of "
            "'not stated', 'unreadable', 'not recorded', 'not applicable' it is.",
        )
    ]


def test_an_empty_field_is_not_an_answer(tmp_path):
    text = SWEEP.replace("  steps: not applicable", "  steps:")
    assert problems_of(tmp_path, text) == [
        (
            line_of(text, "  steps:"),
            "decode.steps: is empty; where there is no answer, write which of "
            "'not stated', 'unreadable', 'not recorded', 'not applicable' it is.",
        )
    ]


def test_a_number_with_a_unit_inside_is_refused(tmp_path):
    text = SWEEP.replace("value: 1.8\n", "value: 1.8x\n")
    assert problems_of(tmp_path, text) == [
        (
            line_of(text, "value:"),
            "value: is the text '1.8x'; write the number 1.8 alone and put 'x' into the unit.",
        )
    ]


def test_a_range_in_one_text_is_refused_with_the_way_to_write_it(tmp_path):
    ((_, message),) = problems_of(tmp_path, SWEEP.replace("value: 1.8\n", "value: up to two\n"))
    assert message.startswith("value: is 'up to two'; write a number, a group with qualifier and wording, or one of")


@pytest.mark.parametrize(
    ("date", "sentence"),
    [
        ("2026-02-30", "date: is '2026-02-30', which is not in the calendar."),
        ("2026-13", "date: is '2026-13', which is not in the calendar."),
        ("14 March 2026", "date: is '14 March 2026'; write a date as 2025, 2025-05 or 2025-05-28."),
    ],
)
def test_a_wrong_date_is_refused(tmp_path, date, sentence):
    text = SWEEP.replace("date: 2026-03-14", f"date: {date}")
    assert problems_of(tmp_path, text) == [(line_of(text, "date:"), sentence)]


def test_a_text_that_only_resembles_a_non_answer_is_refused(tmp_path):
    text = SWEEP.replace("precision: bf16", "precision: not stated, probably bf16")
    assert problems_of(tmp_path, text) == [
        (
            line_of(text, "precision:"),
            "precision: is 'not stated, probably bf16', which resembles a non-answer; "
            "write 'not stated' alone, and the rest in notes.",
        )
    ]


def test_true_is_not_yes(tmp_path):
    text = SWEEP.replace("same_gpu: yes", "same_gpu: true")
    assert problems_of(tmp_path, text) == [
        (line_of(text, "  same_gpu:"), "baseline.same_gpu: is true; write 'yes' or 'no'.")
    ]


def test_a_qualifier_without_its_figures_is_refused(tmp_path):
    text = SWEEP.replace("value: 1.8\n", "value: {qualifier: up to, low: 1.8, wording: up to 1.8x}\n")
    assert problems_of(tmp_path, text) == [
        (line_of(text, "value:"), "value: with the qualifier 'up to' takes high, but has low.")
    ]


def test_a_value_in_a_group_needs_its_qualifier_and_the_wording_of_the_source(tmp_path):
    text = SWEEP.replace("value: 1.8\n", "value: {high: 1.8}\n")
    line = line_of(text, "value:")
    assert problems_of(tmp_path, text) == [
        (line, f"value: the field {name!r} is missing; a value that is not one plain number needs it.")
        for name in ("qualifier", "wording")
    ]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "hardware: {device: NVIDIA H100, count: 1}",
            "hardware: [H100]",
            "hardware: must be a group of fields.",
        ),
        (
            "precision: bf16",
            "precision: 16",
            "precision: is the number 16, but a text belongs here; put it in quotes.",
        ),
        ("  documents: 5000", "  documents: 5000.5", "quality.documents: must be a whole number."),
        ("  documents: 5000", "  documents: -5", "quality.documents: is -5; it must be at least 1."),
        ("metric: ratio of output tokens per second", "metric: ''", "metric: is empty."),
    ],
)
def test_a_value_of_the_wrong_form_is_refused_in_plain_words(tmp_path, old, new, sentence):
    assert [message for _, message in problems_of(tmp_path, SWEEP.replace(old, new))] == [sentence]


def test_a_figure_inside_a_group_is_named_by_its_whole_path(tmp_path):
    text = SWEEP.replace("value: 1.8\n", "value:\n  qualifier: about\n  number: two\n  wording: about two\n")
    assert problems_of(tmp_path, text) == [(line_of(text, "  number:"), "value.number: must be a number.")]


def test_a_speedup_over_nothing_is_refused(tmp_path):
    start, end = SWEEP.index("baseline:\n"), SWEEP.index("hardware:")
    text = SWEEP[:start] + "baseline: none\n" + SWEEP[end:]
    assert problems_of(tmp_path, text) == [
        (line_of(text, "baseline:"), "baseline: is 'none', but a speed-up is over something.")
    ]


def test_an_unread_source_cannot_be_called_silent(tmp_path):
    text = SWEEP.replace("primary_read: yes", "primary_read: no").replace("threshold: 0.9", "threshold: not stated")
    assert problems_of(tmp_path, text) == [
        (
            line_of(text, "  threshold:"),
            "decode.threshold: is 'not stated', but the primary source was not read; write 'unreadable'.",
        )
    ]


def test_one_non_answer_stands_for_a_whole_group(tmp_path):
    path = tmp_path / "claim.yaml"
    path.write_text(SWEEP.replace("counts: {prompt: no, padding: no}", "counts: not stated"))
    claim = read_claim(path).claim
    assert (claim.counts.prompt, claim.counts.padding) == ("not stated", "not stated")


def test_several_mistakes_in_one_file_are_reported_together(tmp_path):
    text = SWEEP.replace("value: 1.8\n", "value: 1.8x\n").replace("kind: speedup", "kind: faster")
    assert [message.split(":")[0] for _, message in problems_of(tmp_path, text)] == ["kind", "value"]


def test_a_bad_file_is_refused_and_the_rest_loads(tmp_path):
    (tmp_path / "example").mkdir()
    (tmp_path / "example" / "honest-sweep.yaml").write_text(SWEEP)
    (tmp_path / "example" / "bad.yaml").write_text("a: !!python/object/apply:os.system [x]\n")
    registry = load_claims(tmp_path)
    assert [claim.id for claim in registry.claims] == ["honest-sweep"]
    (problem,) = registry.problems
    assert str(problem).startswith(f"{tmp_path}/example/bad.yaml:1: The tag ")


def test_the_second_file_with_the_same_id_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text(SWEEP)
    (tmp_path / "b.yaml").write_text(SWEEP)
    registry = load_claims(tmp_path)
    assert len(registry.claims) == 1
    assert [str(problem) for problem in registry.problems] == [
        f"{tmp_path}/b.yaml:2: id: 'honest-sweep' is already the id of {tmp_path}/a.yaml; ids are unique."
    ]


def contradicting(text: str, claim: str) -> str:
    return f"{text}contradicts:\n  - claim: {claim}\n    finding: the two disagree\n"


def test_a_contradiction_is_written_on_one_side_only(tmp_path):
    (tmp_path / "a.yaml").write_text(contradicting(SWEEP, "honest-score"))
    (tmp_path / "b.yaml").write_text(contradicting(SCORE, "honest-sweep"))
    registry = load_claims(tmp_path)
    assert [claim.id for claim in registry.claims] == ["honest-sweep"]
    (problem,) = registry.problems
    assert problem.line == line_of(contradicting(SCORE, "x"), "  - claim:")
    assert problem.message == (
        "contradicts: 'honest-sweep' contradicts 'honest-score' already; write a contradiction on one of the two claims only."
    )


def test_a_claim_cannot_contradict_itself(tmp_path):
    assert [str(p).partition(": ")[2] for p in _registry_of(tmp_path, a=("honest-sweep", "honest-sweep"))] == [
        "contradicts: a claim cannot contradict itself; put another figure of the same source into 'figures', with the "
        "relation 'same'."
    ]


def test_contradictions_that_go_round_in_a_circle_are_refused_where_it_closes(tmp_path):
    (problem,) = _registry_of(tmp_path, a=("a", "b"), b=("b", "c"), c=("c", "a"))
    assert problem.file.name == "c.yaml"
    assert problem.message == (
        "contradicts: the contradictions go round in a circle, c > a > b > c; write this one into 'a' instead."
    )


def test_three_claims_that_all_disagree_are_no_circle(tmp_path):
    text = contradicting(SWEEP.replace("honest-sweep", "a"), "b") + "  - {claim: c, finding: they disagree}\n"
    (tmp_path / "a.yaml").write_text(text)
    assert _registry_of(tmp_path, b=("b", "c"), c=("c", None)) == []
    assert len(load_claims(tmp_path).claims) == 3


def _registry_of(folder, **files):
    """The problems of a registry with these files: (id, what it contradicts)."""
    for name, (claim, other) in files.items():
        text = SWEEP.replace("honest-sweep", claim)
        (folder / f"{name}.yaml").write_text(contradicting(text, other) if other else text)
    return load_claims(folder).problems


def test_a_contradiction_with_an_unknown_claim_names_the_nearest(tmp_path):
    (tmp_path / "honest-sweep.yaml").write_text(contradicting(SWEEP, "honest-scores"))
    (tmp_path / "honest-score.yaml").write_text(SCORE)
    (problem,) = load_claims(tmp_path).problems
    assert problem.message.startswith("contradicts: there is no claim 'honest-scores'. Did you mean 'honest-score'")


def test_a_contradiction_with_a_claim_whose_file_is_bad_is_kept(tmp_path):
    (tmp_path / "honest-sweep.yaml").write_text(contradicting(SWEEP, "honest-score"))
    (tmp_path / "honest-score.yaml").write_text(SCORE.replace("value: 70.0", "value: 70 %"))
    assert [claim.id for claim in load_claims(tmp_path).claims] == ["honest-sweep"]


def test_an_unknown_id_is_an_error_with_the_nearest_one(tmp_path):
    (tmp_path / "a.yaml").write_text(SWEEP)
    with pytest.raises(ClaimError, match=r"^There is no claim 'honest-swep'\. Did you mean 'honest-sweep'\?$"):
        load_claims(tmp_path).get("honest-swep")


def test_a_folder_without_claim_files_is_an_error(tmp_path):
    with pytest.raises(ClaimError, match=r"There is no claim file in .*: their names end in \.yaml\."):
        load_claims(tmp_path)


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ClaimError, match="There is no folder of claims at"):
        load_claims(tmp_path / "none")


SCRAPS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from([str(gap) for gap in Gap]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(field=st.sampled_from(list(parse_document(SWEEP).data)), scrap=SCRAPS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_in_a_field_is_a_claim_or_a_sentence_never_a_traceback(tmp_path, field, scrap):
    path = tmp_path / "claim.yaml"
    path.write_text(yaml.safe_dump({**parse_document(SWEEP).data, field: scrap}, sort_keys=False))
    file = read_claim(path)
    assert (file.claim is None) == bool(file.problems)
    assert all(problem.line >= 1 and problem.message.endswith((".", "?")) for problem in file.problems)


@given(text=st.text(max_size=80))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_text_a_file_holds_is_a_sentence_never_a_traceback(tmp_path, text):
    path = tmp_path / "claim.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    assert read_claim(path).problems
