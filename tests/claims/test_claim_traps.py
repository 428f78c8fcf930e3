from types import ModuleType, SimpleNamespace

import pluggy
import pytest
from honest_claims import HONEST, REPLICATED, SCORE, SWEEP, claim_of

from dllm_audit.claims.traps import TRAPS, Trap, TrapFinding, find_traps, load_traps


def sentence(claim, trap_id):
    """What the one trap says of a claim that walks into no other."""
    (finding,) = find_traps(claim)
    assert finding.id == trap_id
    return finding.sentence


@pytest.mark.parametrize("name", HONEST)
def test_no_trap_fires_on_a_claim_written_to_be_honest(name):
    assert find_traps(claim_of(HONEST[name])) == []


def test_every_trap_has_a_title_and_a_source_and_a_name_of_its_own():
    assert len({trap.id for trap in TRAPS}) == len(TRAPS)
    assert all(trap.title and trap.source for trap in TRAPS)


def test_other_gpu():
    claim = claim_of(SWEEP, baseline__same_gpu="no")
    assert sentence(claim, "other_gpu") == "The baseline (AR 7B) ran on other hardware than NVIDIA H100."


def test_other_gpu_when_not_even_the_models_own_is_stated():
    claim = claim_of(SWEEP, baseline__same_gpu="no", hardware="not stated")
    assert sentence(claim, "other_gpu") == "The baseline (AR 7B) ran on other hardware than the model."


def test_other_engine():
    claim = claim_of(SWEEP, baseline__same_engine="no", baseline__engine="vLLM against our own")
    assert sentence(claim, "other_engine") == (
        "The engines of the two sides differ (vLLM against our own): the engine may explain the gap."
    )


def test_weak_baseline_by_its_share_of_what_the_hardware_allows():
    claim = claim_of(SWEEP, baseline__share_of_bound=0.26)
    assert sentence(claim, "weak_baseline") == "The baseline reaches 26 % of what its hardware allows."


def test_half_of_what_the_hardware_allows_is_not_weak():
    assert find_traps(claim_of(SWEEP, baseline__share_of_bound=0.5)) == []


def test_weak_baseline_by_a_stronger_rival():
    rival = {"model": "AR 7B drafted", "value": 2400, "unit": "tok/s", "where": "Table 3"}
    assert sentence(claim_of(SWEEP, baseline__stronger=rival), "weak_baseline") == (
        "The baseline runs at 1200 tok/s, but AR 7B drafted, at 2400 tok/s (Table 3)."
    )


def test_a_rival_that_is_hardly_faster_does_not_make_the_baseline_weak():
    rival = {"model": "AR 7B drafted", "value": 1250, "unit": "tok/s", "where": "Table 3"}
    assert find_traps(claim_of(SWEEP, baseline__stronger=rival)) == []


def test_a_rival_that_is_slower_or_in_another_unit_does_not_make_the_baseline_weak():
    slower = {"model": "AR 7B eager", "value": 300, "unit": "tok/s", "where": "Table 3"}
    other = {"model": "AR 7B drafted", "value": 2400, "unit": "ms", "where": "Table 3"}
    assert find_traps(claim_of(SWEEP, baseline__stronger=slower)) == []
    assert find_traps(claim_of(SWEEP, baseline__stronger=other)) == []


def test_a_stronger_rival_in_time_is_the_one_that_takes_less():
    rival = {"model": "AR 7B drafted", "value": 400, "unit": "ms", "where": "Table 3"}
    claim = claim_of(SWEEP, baseline__value=900, baseline__unit="ms", baseline__stronger=rival)
    assert sentence(claim, "weak_baseline") == ("The baseline runs at 900 ms, but AR 7B drafted, at 400 ms (Table 3).")


def test_synthetic_baseline():
    claim = claim_of(SWEEP, baseline__synthetic="yes")
    assert sentence(claim, "weak_baseline") == "The baseline (AR 7B) is partly assumed, not measured."


def test_uncached_baseline():
    assert sentence(claim_of(SWEEP, baseline__kv_cache="no"), "uncached_baseline") == (
        "The baseline (AR 7B) recomputes everything at every step: it has no KV cache."
    )


def test_estimate_assembled_from_parts():
    assembly = {"parts": ["a prefill", "ten passes"], "left_out": ["the refresh"]}
    assert sentence(claim_of(SWEEP, status="estimated", assembly=assembly), "assembled_estimate") == (
        "The figure was put together from a prefill and ten passes, never run as a whole; left out: the refresh."
    )
    assert sentence(claim_of(SWEEP, status="estimated"), "assembled_estimate") == (
        "The figure is an estimate; nothing was run."
    )


def test_batch_1_only():
    assert sentence(claim_of(SWEEP, concurrency=1), "batch_1_only") == (
        "One request at a time, which leaves compute idle: with more requests the comparison changes."
    )


def test_concurrency_unknown():
    assert sentence(claim_of(SWEEP, concurrency="not stated"), "concurrency_unknown") == (
        "The source does not say how many requests ran at once, so the figure has no place on any curve."
    )
    words = {"qualifier": "words", "wording": "low to medium"}
    assert sentence(claim_of(SWEEP, concurrency=words), "concurrency_unknown") == (
        "The concurrency is given only as 'low to medium'."
    )


def test_a_concurrency_that_could_not_be_read_is_no_trap():
    assert find_traps(claim_of(SWEEP, concurrency="unreadable")) == []


def test_prompt_or_padding_tokens_counted():
    assert sentence(claim_of(REPLICATED, counts__prompt="yes"), "prompt_tokens_counted") == (
        "The rate counts prompt tokens as if they had been generated."
    )
    assert sentence(claim_of(REPLICATED, counts__padding="suspected"), "prompt_tokens_counted") == (
        "The rate is suspected of counting padding tokens as if they had been generated."
    )


def test_prefill_excluded():
    claim = claim_of(SWEEP, time_includes__prefill="no")
    assert sentence(claim, "prefill_excluded") == "The time to process the prompt is left out."


def test_commit_pass_excluded():
    assert sentence(claim_of(SWEEP, time_includes__commit_pass="no"), "commit_pass_excluded") == (
        "The pass that writes or refreshes the cache after each block is left out."
    )


def test_overhead_excluded_says_what_is_left_of_the_rate_when_the_seconds_are_known():
    # 200 / (200 / 4000 + 0.95) = 200 and 1000 / (1000 / 4000 + 0.95) = 833.3
    time = {"prefill": "yes", "commit_pass": "yes", "fixed_overhead": "no", "overhead_seconds": 0.95}
    assert sentence(claim_of(REPLICATED, time_includes=time), "overhead_excluded") == (
        "0.95 s a request are left out: with them 200 tokens come at 200 tok/s and 1,000 tokens at 833 tok/s."
    )
    assert sentence(claim_of(SWEEP, time_includes__fixed_overhead="no"), "overhead_excluded") == (
        "Fixed costs of every request are left out."
    )


@pytest.mark.parametrize("quality", ["none", "not stated"])
def test_steps_fixed_without_quality(quality):
    assert sentence(claim_of(REPLICATED, quality=quality), "fixed_steps_without_quality") == (
        "The steps were fixed beforehand (8), the fewer the faster, and no quality is given for that number."
    )


def test_one_token_a_step_is_the_slowest_schedule_and_hides_no_quality():
    assert find_traps(claim_of(REPLICATED, quality="none", decode__tokens_per_step=1)) == []


def test_as_many_steps_as_tokens_are_one_token_a_step_where_only_they_are_stated():
    changes = {"decode__tokens_per_step": "not stated", "output_tokens": 1000, "quality": "none"}
    assert find_traps(claim_of(REPLICATED, **changes, decode__steps=1000)) == []
    assert sentence(claim_of(REPLICATED, **changes, decode__steps=999), "fixed_steps_without_quality")


def test_a_threshold_without_quality_is_silence_but_not_the_trap_of_fixed_steps():
    assert find_traps(claim_of(SWEEP, quality="none")) == []


def test_speed_and_quality_from_different_settings():
    assert sentence(claim_of(SWEEP, quality__same_runs="no"), "speed_and_quality_apart") == (
        "The quality quoted was obtained with other settings or on other tasks than the speed."
    )


def test_range_quoted_by_its_end():
    parts = [
        {"what": task, "value": value, "unit": "x", "relation": "part", "where": "Table 2"}
        for task, value in (("maths", 1.8), ("chat", 1.1))
    ]
    assert sentence(claim_of(SWEEP, aggregate="best", figures=parts), "range_quoted_by_its_end") == (
        "The figure is the best of several: they run from 1.1 to 1.8x."
    )
    end = {"qualifier": "up to", "high": 1.8, "wording": "up to 1.8x"}
    assert (
        sentence(claim_of(SWEEP, value=end), "range_quoted_by_its_end")
        == "The figure is the end of a range (up to 1.8x)."
    )


def test_the_flattering_end_of_a_time_is_the_lower_one():
    latency = {"kind": "latency", "unit": "s", "baseline__unit": "s", "figures": []}
    below, above = ({"qualifier": q, end: 2, "wording": f"{q} 2 s"} for q, end in (("below", "high"), ("above", "low")))
    assert sentence(claim_of(SWEEP, **latency, value=below), "range_quoted_by_its_end") == (
        "The figure is the end of a range (below 2 s)."
    )
    assert find_traps(claim_of(SWEEP, **latency, value=above)) == []


def test_several_devices_counted_as_one():
    assert sentence(claim_of(REPLICATED, rate_of="one request"), "several_devices") == (
        "The figure takes 8 devices (NVIDIA H100) as if they were one."
    )


def test_a_ratio_with_as_many_devices_on_both_sides_is_fair():
    assert find_traps(claim_of(SWEEP, hardware__count=8, baseline__devices=8)) == []
    assert sentence(claim_of(SWEEP, hardware__count=8, baseline__devices="not stated"), "several_devices")


def test_a_ratio_whose_baseline_could_not_be_read_may_be_fair():
    assert find_traps(claim_of(SWEEP, hardware__count=8, baseline__devices="unreadable")) == []


def test_contradicting_figures_by_a_pair_that_comes_to_another_ratio():
    pair = {
        "what": "latency",
        "value": 12,
        "unit": "s",
        "baseline_value": 266,
        "relation": "same",
        "where": "Figure 1",
    }
    claim = claim_of(SWEEP, value=27.6, figures=[pair])
    assert sentence(claim, "contradicting_figures") == (
        "Claimed is 27.6x, but Figure 1 gives 12 against 266 s, which is 22.2x."
    )


def test_contradicting_figures_by_the_same_thing_given_twice():
    twice = {
        "what": "its abstract",
        "value": 4100,
        "unit": "tok/s",
        "relation": "same",
        "where": "The report",
    }
    assert sentence(claim_of(REPLICATED, figures=[twice]), "contradicting_figures") == (
        "Claimed is 4000 tok/s, but The report gives 4100 tok/s (its abstract)."
    )


def test_rounding_is_no_contradiction():
    pair = {
        "what": "rate",
        "value": 19.3,
        "unit": "tok/s",
        "baseline_value": 0.7,
        "relation": "same",
        "where": "T3",
    }
    assert find_traps(claim_of(SWEEP, value=27.6, figures=[pair])) == []


def test_a_smaller_figure_does_not_contradict_up_to():
    twice = {"what": "a second place", "value": 9.0, "unit": "x", "relation": "same", "where": "Section 2"}
    end = {"qualifier": "up to", "high": 10, "wording": "up to 10x"}
    assert [f.id for f in find_traps(claim_of(SWEEP, value=end, figures=[twice]))] == ["range_quoted_by_its_end"]


def test_contradicting_figures_by_a_part_that_beats_the_best():
    parts = [
        {"what": task, "value": value, "unit": "tok/s", "relation": "part", "where": "Table 3"}
        for task, value in (("code", 4000), ("logic", 4090))
    ]
    findings = {f.id: f.sentence for f in find_traps(claim_of(REPLICATED, aggregate="best", figures=parts))}
    assert findings == {
        "range_quoted_by_its_end": "The figure is the best of several: they run from 4000 to 4090 tok/s.",
        "contradicting_figures": "Claimed is 4000 tok/s, but Table 3 has a better one, 4090 tok/s (logic).",
    }


def test_contradicting_figures_by_another_claim():
    contradiction = {"claim": "honest-score", "finding": "the same run gives 1.2x there"}
    assert sentence(claim_of(SWEEP, contradicts=[contradiction]), "contradicting_figures") == (
        "Claimed is 1.8x, but the same run gives 1.2x there."
    )


def test_self_reported_only():
    assert sentence(claim_of(SWEEP, reported_by="vendor"), "self_reported_only") == (
        "Only the vendor reports it: no other run of it is known."
    )
    assert sentence(claim_of(REPLICATED, replications=[]), "self_reported_only") == (
        "Only the authors report it: no other run of it is known."
    )


def test_quality_margin_that_the_benchmark_cannot_decide():
    # 1,319 documents decide 2.165 points, so a stated margin of 2 is out of reach and one of 2.2 is not.
    assert sentence(claim_of(SCORE, quality__claimed_margin_points=2), "undecidable_margin") == (
        "GSM8K has 1,319 documents, which decide a loss of 2.2 points "
        "(10 % discordance, one-sided 5 %, power 80 %), not one of 2 points."
    )
    assert find_traps(claim_of(SCORE, quality__claimed_margin_points=2.2)) == []


def test_the_documents_that_were_scored_decide_not_those_that_there_are():
    findings = {
        f.id: f.sentence
        for f in find_traps(claim_of(SCORE, quality__documents_scored=200, quality__claimed_margin_points=4))
    }
    assert findings["undecidable_margin"].startswith(
        "GSM8K was scored on 200 documents, which decide a loss of 5.6 points"
    )


def test_a_graded_score_has_no_margin_in_documents():
    assert find_traps(claim_of(SCORE, quality__metric="perplexity", quality__at_speed=72.9)) == []


def test_without_a_stated_margin_the_difference_shown_is_what_must_be_believed():
    assert sentence(claim_of(SCORE, quality__at_speed=72.2), "undecidable_margin").endswith("not one of 0.8 points.")


def test_an_unreadable_source_walks_into_no_trap_of_silence():
    claim = claim_of(
        REPLICATED,
        concurrency="unreadable",
        quality="unreadable",
        time_includes="unreadable",
        counts="unreadable",
    )
    assert find_traps(claim) == []


def test_a_trap_of_ones_own_is_a_rule_with_a_title():
    def long_prompt(claim):
        return "Long." if claim.prompt_tokens > 500 else None

    (finding,) = find_traps(claim_of(SWEEP), [Trap("Long prompt", "our own notes", long_prompt)])
    assert finding == TrapFinding("long_prompt", "Long prompt", "Long.", "our own notes")


def test_best_task_quoted_as_the_whole():
    parts = [
        {"what": name, "value": value, "unit": "x", "relation": "part", "where": "Table 2"}
        for name, value in (("MATH", 1.8), ("chat", 1.1))
    ]
    claim = claim_of(SWEEP, aggregate="best", best_of="tasks", figures=parts)
    assert sentence(claim, "best_task_as_the_whole") == (
        "The figure is that of the best task, not of all: they run from 1.1 to 1.8x."
    )


def test_the_best_of_several_settings_is_a_range_not_a_task():
    claim = claim_of(SWEEP, aggregate="best", best_of="settings", figures=[])
    assert sentence(claim, "range_quoted_by_its_end") == "The figure is the best of several."


def test_shorter_answers():
    length = {"compared": "shorter", "ours": 120, "baseline": 160, "unit": "tokens", "where": "Table 2"}
    assert sentence(claim_of(SWEEP, answer_length=length), "shorter_answers") == (
        "The answers are 25 % shorter than the baseline's (120 against 160 tokens): less work, not only faster work."
    )


def test_shorter_answers_when_only_words_say_so():
    length = {"compared": "shorter", "where": "a footnote"}
    assert sentence(claim_of(SWEEP, answer_length=length), "shorter_answers") == (
        "The answers are shorter than the baseline's."
    )


def test_answers_a_tenth_shorter_or_longer_are_alike():
    for ours in (90, 100, 170):
        length = {"compared": "shorter", "ours": ours, "baseline": 100, "where": "Table 2"}
        assert find_traps(claim_of(SWEEP, answer_length=length)) == []


def test_distilled_or_other_checkpoint():
    other = {"relation": "distilled", "what": "one distilled from its own decoding paths", "where": "section 4"}
    assert sentence(claim_of(SWEEP, checkpoint=other), "other_checkpoint") == (
        "The figure belongs to a distilled checkpoint: one distilled from its own decoding paths."
    )


def test_benchmark_subset():
    claim = claim_of(SWEEP, quality__documents_scored=4000)
    assert sentence(claim, "benchmark_subset") == "The quality is over 4,000 of the 5,000 documents of MATH."


def test_a_whole_benchmark_is_no_subset():
    assert find_traps(claim_of(SWEEP, quality__documents_scored=5000)) == []


def test_few_shot_prefix_shared_on_one_side_only():
    claim = claim_of(SWEEP, prefix_sharing={"ours": "yes", "baseline": "no"})
    assert sentence(claim, "prefix_shared_on_one_side") == (
        "Only the model's requests share the work on the common beginning of their prompts."
    )


@pytest.mark.parametrize("baseline", ["yes", "not stated", "unreadable"])
def test_a_prefix_shared_on_both_sides_or_nobody_knows_is_no_trap(baseline):
    assert find_traps(claim_of(SWEEP, prefix_sharing={"ours": "yes", "baseline": baseline})) == []


def test_expert_reads_counted_for_one_token():
    experts = {"total": 64, "per_token": 8, "reads_counted": "experts of one token"}
    assert sentence(claim_of(SWEEP, experts=experts), "experts_of_one_token") == (
        "Weight reads are counted as if one token chose the experts (12 %): "
        "32 positions touch 99 % of the 64 if they choose independently."
    )


def test_experts_counted_as_they_are_touched_are_no_trap():
    experts = {"total": 64, "per_token": 8, "reads_counted": "distinct experts"}
    assert find_traps(claim_of(SWEEP, experts=experts)) == []


def _install(monkeypatch, *traps):
    """Pretend that a package is installed which adds `traps`."""
    module = ModuleType("somebodys_plugin")
    module.dllm_audit_claim_traps = pluggy.HookimplMarker("dllm_audit")(lambda: list(traps))
    entry = SimpleNamespace(name="somebody", value="somebodys_plugin", load=lambda: module)
    monkeypatch.setattr("dllm_audit.plugins.metadata.entry_points", lambda group: [entry])


def round_number(claim):
    return "It is suspiciously round." if claim.value == 4000 else None


def test_a_plugin_adds_a_trap(monkeypatch):
    _install(monkeypatch, Trap("Round number", "experience", round_number))
    traps, problems = load_traps()
    assert problems == ()
    assert [trap.id for trap in traps] == [*(trap.id for trap in TRAPS), "round_number"]
    (finding,) = find_traps(claim_of(REPLICATED), traps)
    assert finding == TrapFinding("round_number", "Round number", "It is suspiciously round.", "experience")


def test_a_plugin_cannot_replace_a_trap_or_add_something_else(monkeypatch):
    def other_gpu(claim):
        return None

    _install(monkeypatch, Trap("Mine", "me", other_gpu), "no trap")
    traps, problems = load_traps()
    assert traps == TRAPS
    assert problems == (
        "Trap 'other_gpu' of plugin 'somebody' is left out: there is one of that name.",
        "Plugin 'somebody': dllm_audit_claim_traps gave a str, not a Trap.",
    )
