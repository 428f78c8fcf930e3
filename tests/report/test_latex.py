import re

from dllm_audit.report.latex import escape, runs_table


def test_every_special_character_is_escaped():
    assert escape('a_b & 50% #1 $x {y} \\ ~ ^ < > | "') == (
        "a\\_b \\& 50\\% \\#1 \\$x \\{y\\} \\textbackslash{} \\textasciitilde{} \\textasciicircum{} "
        "\\textless{} \\textgreater{} \\textbar{} \\textquotedbl{}"
    )


def test_a_name_cannot_start_a_command_or_a_new_line():
    assert escape("\\input{/etc/passwd}\n\\end") == ("\\textbackslash{}input\\{/etc/passwd\\}⏎\\textbackslash{}end")


def test_the_table_has_one_line_a_run_with_intervals(stored):
    lines = runs_table(stored, stored.runs()).splitlines()
    assert lines[:4] == [
        "% dllm-audit: runs; needs \\usepackage{booktabs}",
        "\\begin{tabular}{lllrrrrr}",
        "\\toprule",
        "Decoder & Model & Task & Requests & Tokens/s & Quality & $\\tau$ & $G$ \\\\",
    ]
    assert lines[5] == "ar & tiny-ar & gsm\\_mini & 6 & 8.0 [8.0, 8.0] & 0.833 [0.436, 0.970] & 1.00 & 2.8 \\\\"
    assert lines[-2:] == ["\\bottomrule", "\\end{tabular}"]


def test_what_a_reader_must_know_stands_under_the_table_once_with_its_number_beside_every_such_run(empty_store, build):
    build("add_run", empty_store, build("run_row", "a"), [build("generation")], makespan=1.0)
    for name in ("b", "c"):
        row = build("run_row", name, content_key=name)
        row["manifest"] = {**row["manifest"], "books": {"discrepancy": -0.5}}
        build("add_run", empty_store, row, [build("generation")], makespan=1.0)
    empty_store.resume_run("c")
    empty_store.end_run("c", "interrupted")
    lines = runs_table(empty_store, empty_store.runs()).splitlines()
    marks = [re.search(r"textsuperscript\{([\d,]+)\}", line) for line in lines[5:8]]
    assert [mark and mark[1] for mark in marks] == [None, "1", "1,2,3"]
    under = lines[lines.index("\\end{tabular}") + 1 :]
    starts = ["The books do not close", "The run is interrupted: ", "The run was resumed: 2 sittings"]
    assert len(under) == 3
    for number, (line, start) in enumerate(zip(under, starts, strict=True), 1):
        assert line.startswith(f"\\par\\noindent{{\\footnotesize\\textsuperscript{{{number}}} {start}")
        assert line.endswith(".\\par}")
