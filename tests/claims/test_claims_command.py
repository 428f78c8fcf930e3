"""`dllm-audit claims list, show, validate, new, diff` as a person meets them."""

import json

import pytest
from click.testing import CliRunner
from honest_claims import REPLICATED, SWEEP

from dllm_audit.claims.registry import load_claims
from dllm_audit.cli.claims import command
from dllm_audit.errors import ClaimError, UsageError


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "claims"
    folder.mkdir()
    (folder / "honest-sweep.yaml").write_text(SWEEP)
    spoiled = REPLICATED.replace("concurrency: 256", "concurrency: 1").replace("honest-replicated", "spoiled")
    (folder / "spoiled.yaml").write_text(spoiled)
    return folder


def call(*arguments, status=0):
    result = CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def test_list_is_a_table_with_disclosure_and_traps(folder):
    assert call("list", "--claims", folder).stdout == (
        "claim         system   kind        value       disclosed    traps\n"
        "honest-sweep  Example  speedup     1.8x        100 % of 11  0\n"
        "spoiled       Example  throughput  4000 tok/s  100 % of 7   1\n"
    )


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--kind", "speedup"], ["honest-sweep"]),
        (["--trap", "batch_1_only"], ["spoiled"]),
        (["--system", "exam"], ["honest-sweep", "spoiled"]),
        (["--vendor", "nobody"], []),
        (["--min-score", "0.9"], ["honest-sweep", "spoiled"]),
        (["--max-score", "0.5"], []),
    ],
)
def test_list_filters(folder, options, ids):
    result = call("list", "--claims", folder, "--json", *options)
    assert [fact["id"] for fact in json.loads(result.stdout)] == ids


def test_an_unknown_kind_or_trap_is_wrong_use_with_the_nearest_name(folder):
    with pytest.raises(UsageError, match=r"There is no kind 'speedups' of claim\. Did you mean 'speedup'\?"):
        call("list", "--kind", "speedups", "--claims", folder)
    with pytest.raises(UsageError, match=r"There is no trap 'other_gpus'\. Did you mean 'other_gpu'"):
        call("list", "--trap", "other_gpus", "--claims", folder)


def test_show_has_the_claim_the_answers_the_traps_and_the_physics(folder):
    text = call("show", "spoiled", "--claims", folder).stdout
    assert text.startswith("spoiled: 4000 tok/s, output tokens per second and device\n")
    assert "Disclosed: 100 % of 7 fields that can be judged; 0 could not be read or were not noted." in text
    assert "  concurrency answered. Concurrency 1." in text
    assert "- Batch 1 only (batch_1_only): One request at a time" in text
    assert "- a cloud provider: 3950 tok/s (its own post)" in text
    assert "Physics (modelled): " in text


def test_show_as_json_gives_the_same_facts(folder):
    facts = json.loads(call("show", "spoiled", "--claims", folder, "--json").stdout)
    assert facts["disclosure"] == {"share": 1.0, "judged_fields": 7, "unknown_fields": 0}
    assert [trap["id"] for trap in facts["traps"]] == ["batch_1_only"]
    assert [question["label"] for question in facts["questions"]] == ["concurrency", "baseline", "quality", "time"]
    assert facts["physics"]["status"] == "modelled"
    assert facts["claim"]["schema"] == 1


def test_show_names_the_nearest_claims_for_an_unknown_one(folder):
    with pytest.raises(ClaimError, match=r"There is no claim 'spoilt'\. Did you mean 'spoiled'\?"):
        call("show", "spoilt", "--claims", folder)


def test_show_does_not_fill_the_screen_with_ids_when_none_is_near(folder):
    with pytest.raises(ClaimError, match=r"There is no claim 'zzz'\. See: dllm-audit claims list"):
        call("show", "zzz", "--claims", folder)


def test_a_contradiction_is_shown_on_both_claims():
    text = call("show", "fastdllm-27.6x").stdout
    assert "- fastdllm-latency-266s-12s: 266 s over 12 s is 22.2x" in text


def test_validate_says_file_line_and_sentence_and_fails(folder):
    bad = folder / "bad.yaml"
    bad.write_text(SWEEP.replace("value: 1.8", "value: 1.8x"))
    result = call("validate", bad, "--claims", folder, status=1)
    assert result.stdout.startswith(f"{bad}:12: value: is the text '1.8x'; write the number 1.8 alone")


def test_validate_of_good_files_and_of_a_folder(folder):
    assert call("validate", folder / "honest-sweep.yaml", "--claims", folder).stderr == "1 valid.\n"
    assert call("validate", "--claims", folder).stderr == "2 valid.\n"


def test_validate_sees_a_repeated_id_and_a_dangling_contradiction(folder):
    copy = folder / "copy.yaml"
    copy.write_text(SWEEP + "contradicts: [{claim: nobody, finding: nothing}]\n")
    result = call("validate", folder / "honest-sweep.yaml", copy, "--claims", folder, status=1)
    assert (
        f"{copy}:2: id: 'honest-sweep' is already the id of {folder / 'honest-sweep.yaml'}; ids are unique."
        in result.stdout
    )
    assert "contradicts: there is no claim 'nobody'." in result.stdout


def test_validate_of_single_files_sees_a_circle_of_contradictions_and_survives_one_of_links(folder):
    (folder / "loop.yaml").symlink_to("loop.yaml")
    ours, theirs = (folder / name for name in ("a.yaml", "b.yaml"))
    for path, other in ((ours, "b"), (theirs, "a")):
        text = SWEEP.replace("honest-sweep", path.stem)
        path.write_text(f"{text}contradicts: [{{claim: {other}, finding: they disagree}}]\n")
    # The other of the two is beside it in the folder, and may be given too.
    for files in ([ours], [theirs], [ours, theirs]):
        result = call("validate", *files, "--claims", folder, status=1)
        assert "write a contradiction on one of the two claims only." in result.stdout
        assert len(result.stdout.splitlines()) == 1


def test_validate_sees_an_id_that_the_registry_has_already(folder, tmp_path):
    elsewhere = tmp_path / "mine.yaml"
    elsewhere.write_text(SWEEP)
    result = call("validate", elsewhere, "--claims", folder, status=1)
    assert result.stdout == (
        f"{elsewhere}:2: id: 'honest-sweep' is already the id of {folder / 'honest-sweep.yaml'}; ids are unique.\n"
    )


def test_validate_of_a_missing_file(folder):
    with pytest.raises(ClaimError, match=r"There is no file nowhere\.yaml"):
        call("validate", "nowhere.yaml")


def test_a_new_file_is_refused_until_filled_and_valid_then(tmp_path, folder):
    path = tmp_path / "mine.yaml"
    call("new", "mine", "-o", path)
    assert "is empty" in call("validate", path, "--claims", folder, status=1).stdout
    answers = {
        "reported_by": "authors",
        "date": "2025-05",
        "primary_read": "yes",
        "value_from": "primary",
        "kind": "speedup",
        "value": "2.5",
        "aggregate": "single setting",
        "rate_of": "one request",
        "status": "measured",
        "schedule": "threshold",
    }
    gaps = {"same_gpu", "same_engine", "kv_cache", "same_runs", "prompt", "padding", "prefill", "commit_pass"}
    gaps |= {"devices", "count", "concurrency", "prompt_tokens", "output_tokens", "block_length", "steps", "threshold"}
    gaps |= {"tokens_per_step", "shots", "at_speed", "reference", "fixed_overhead"}
    groups = {"source", "baseline", "hardware", "decode", "quality", "counts", "time_includes"}
    lines = []
    for line in path.read_text().splitlines():
        field, colon, rest = line.partition(":")
        name, value = field.strip(), rest.partition("#")[0].strip()
        if colon and not name.startswith("#") and not value and name not in groups:
            filler = "not stated" if name in gaps else "some words"
            line = f"{field}: {answers.get(name, filler)}"
        lines.append(line)
    path.write_text("\n".join(lines))
    assert call("validate", path, "--claims", folder).stderr == "1 valid.\n"


def test_new_overwrites_nothing_and_takes_no_id_that_exists_or_is_none(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("precious")
    with pytest.raises(UsageError, match="exists already"):
        call("new", "mine", "-o", path)
    with pytest.raises(UsageError, match=r"There is a claim 'fastdllm-27\.6x' already"):
        call("new", "fastdllm-27.6x")
    with pytest.raises(UsageError, match="'My Claim' is no id"):
        call("new", "My Claim")
    assert path.read_text() == "precious"


def test_diff_wraps_long_texts_and_cuts_none():
    text = call("diff", "fastdllm-27.6x", "fastdllm-latency-266s-12s").stdout
    assert "..." not in text
    (first, second, third) = [line[31:77].strip() for line in text.splitlines()[1:4]]
    assert f"{first} {second} {third}" == load_claims().get("fastdllm-27.6x").statement


def test_diff_shows_fields_and_traps_that_differ(folder):
    other = folder / "other.yaml"
    other.write_text(SWEEP.replace("honest-sweep", "other").replace("same_gpu: yes", "same_gpu: no"))
    assert call("diff", "honest-sweep", "other", "--claims", folder).stdout == (
        "field              honest-sweep  other\n"
        "baseline.same_gpu  yes           no\n"
        "trap other_gpu     -             yes\n"
    )


@pytest.mark.parametrize("name", sorted(command.commands))
def test_every_help_ends_with_an_example(name):
    last = call(name, "--help").stdout.rstrip().splitlines()[-1]
    assert last.strip().startswith(f"Example: dllm-audit claims {name}") or "dllm-audit" in last
