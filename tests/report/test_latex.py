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
