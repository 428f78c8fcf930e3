from dllm_audit.analysis.plain import fact_value, fact_words, one_line, short_value, visible
from dllm_audit.analysis.tables import aligned


def test_control_and_bidirectional_characters_are_spelled_out():
    assert visible("a\x1b[31m\u202eb\u2066") == "a\\x1b[31m\\u202eb\\u2066"


def test_a_lone_surrogate_can_be_shown():
    assert visible("\ud800") == "\\ud800"


def test_line_ends_and_letters_of_any_script_stay():
    assert visible("Größe 数\nline\ttab 😀") == "Größe 数\nline\ttab 😀"


def test_one_line_marks_line_ends_and_is_cut():
    assert one_line("a\r\nb\x00", 200) == "a⏎b\\x00"
    assert one_line("abcdef", 4) == "abc…"


def test_a_table_is_aligned_and_a_cell_never_breaks_it():
    assert aligned([("a", "1"), ("long\nname", "22")], right={1}) == "a           1\nlong⏎name  22"


def test_facts_in_bytes_read_as_people_write_sizes_and_the_name_drops_the_unit():
    assert fact_value("memory_bytes", 25_276_502_016) == "25.3 GB"
    assert fact_value("memory_available_bytes_before", 512_000_000) == "512.0 MB"
    assert fact_words("memory_available_bytes_before") == "memory_available_before"
    assert (fact_value("bytes_per_weight", 2), fact_words("bytes_per_weight")) == ("2", "bytes_per_weight")
    assert fact_value("last_level_cache", "32768K") == "32 MiB"
    assert fact_value("memory_bytes", "unknown: no file") == "unknown: no file"
    assert fact_value("threads", 2) == "2"


def test_values_of_a_manifest_read_as_words():
    assert short_value(None) == "not recorded"
    assert short_value(True) == "yes"
    assert short_value(1_500_000) == "1,500,000"
    assert short_value({"a": "f" * 64}) == "a: ffffffffffff…"
    assert short_value([0.5, 2]) == "0.5, 2"
