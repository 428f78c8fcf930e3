import importlib.util
import os
import sys

import pytest
import yaml
from honest_claims import SWEEP

from dllm_audit.claims import document
from dllm_audit.claims.document import MAXIMUM_BYTES, DocumentError, parse_document, read_document


def refusal(text):
    with pytest.raises(DocumentError) as caught:
        parse_document(text)
    return caught.value.line, str(caught.value)


def test_words_and_dates_stay_text_and_only_plain_numbers_are_numbers():
    document = parse_document("a: yes\nb: 2025-05-28\nc: 27.6\nd: 1024\ne: 1e3\nf: 1:30\ng: 27.6x\nh: true\ni:\n")
    assert document.data == {
        "a": "yes",
        "b": "2025-05-28",
        "c": 27.6,
        "d": 1024,
        "e": 1000.0,
        "f": "1:30",
        "g": "27.6x",
        "h": True,
        "i": None,
    }


def test_every_field_and_list_item_has_its_line():
    lines = parse_document("a: 1\nb:\n  c: 2\n  d:\n    - x\n    - {e: 3}\n").lines
    assert lines[("b", "c")] == 3
    assert lines[("b", "d", 1)] == 6
    assert lines[("b", "d", 1, "e")] == 6


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!!binary", "!!set", "!mine"]
)
def test_tags_that_construct_objects_are_refused_and_nothing_runs(tag):
    line, message = refusal(f"a: 1\nb: {tag} [x]\n")
    assert line == 2
    assert message.endswith("is not allowed: a claim file holds text and numbers only.")


def test_anchors_and_aliases_are_refused_before_they_multiply():
    assert refusal("a: &x [1, 2]\nb: [*x, *x]\n") == (
        2,
        "Anchors and aliases (&name, *name) are not allowed.",
    )


def test_a_field_given_twice_is_refused_with_both_lines():
    assert refusal("value: 1\nunit: x\nvalue: 2\n") == (
        3,
        "The field 'value' is given twice, first on line 1.",
    )


def test_broken_yaml_is_refused_with_its_line():
    line, message = refusal("a: 1\nb: [1, 2\nc: 3\n")
    assert line == 3
    assert message.startswith("This is not valid YAML: ")


def test_a_number_that_its_tag_denies_is_refused():
    assert refusal("a: !!int abc\n") == (1, "'abc' is not a whole number of usual length.")


@pytest.mark.parametrize(
    ("text", "found"),
    [("", "empty"), ("- a\n", "a list"), ("words\n", "a single value"), ("# only a note\n", "empty")],
)
def test_a_file_without_fields_is_refused(text, found):
    assert refusal(text) == (1, f"A claim file holds one mapping of fields, but this one is {found}.")


@pytest.mark.parametrize("opening", ["[", "{a: "])
def test_what_is_nested_without_end_is_refused(opening):
    assert refusal("a: " + opening * 5000) == (1, "Lists or mappings are nested too deeply.")


def test_without_libyaml_a_claim_reads_the_same(monkeypatch):
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    spec = importlib.util.spec_from_file_location("plain_document", document.__file__)
    plain = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "plain_document", plain)
    spec.loader.exec_module(plain)
    found, usual = plain.parse_document(SWEEP), parse_document(SWEEP)
    assert (found.data, found.lines) == (usual.data, usual.lines)
    for text in ("a: &x 1\nb: *x\n", "a: \x07\n", "a: 1\nb: [1, 2\n", "a: " + "[" * 2000):
        with pytest.raises(plain.DocumentError) as caught:
            plain.parse_document(text)
        assert caught.value.line == refusal(text)[0]


def test_ten_megabytes_are_refused_without_being_read(tmp_path):
    path = tmp_path / "large.yaml"
    path.write_bytes(b"a: " + b"x" * 10_000_000)
    with pytest.raises(DocumentError, match=r"^The file is larger than 64 kB; a claim takes about 3 kB\.$"):
        read_document(path)


def test_a_file_of_just_the_largest_size_is_read(tmp_path):
    path = tmp_path / "large.yaml"
    path.write_bytes(b"a: " + b"x" * (MAXIMUM_BYTES - 3))
    assert len(read_document(path).data["a"]) == MAXIMUM_BYTES - 3


def test_bytes_that_are_not_text_are_refused_with_their_line(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"a: 1\nb: \xe9\n")
    with pytest.raises(DocumentError) as caught:
        read_document(path)
    assert (caught.value.line, str(caught.value)) == (2, "The file is not UTF-8 text.")


def test_a_pipe_a_folder_and_a_device_are_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "device.yaml").symlink_to("/dev/zero")
    for name in ("pipe", "folder", "device"):
        with pytest.raises(DocumentError, match=r"^This is no file but a folder, a pipe or a device\.$"):
            read_document(tmp_path / f"{name}.yaml")


def test_a_file_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(DocumentError, match=r"^The file cannot be read: No such file or directory\.$"):
        read_document(tmp_path / "none.yaml")
