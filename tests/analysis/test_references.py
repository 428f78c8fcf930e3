import pytest

from dllm_audit.analysis.labels import label
from dllm_audit.analysis.references import (
    autoregressive_reference,
    control_of,
    is_one_token_per_step,
    one_token_reference,
    uncached_reference,
)


def test_both_references_of_a_diffusion_run_are_found(stored):
    run, runs = stored.run("dual-1"), stored.runs()
    assert autoregressive_reference(run, runs)["run_id"] == "ar-1"
    assert one_token_reference(run, runs)["run_id"] == "one-1"


def test_an_autoregressive_run_has_no_reference(stored):
    run, runs = stored.run("ar-1"), stored.runs()
    assert autoregressive_reference(run, runs) is None
    assert one_token_reference(run, runs) is None


def uncached(run, **settings):
    return {**run, "run_id": "un-1", "backend": "uncached", "settings": {**run["settings"], **settings}}


def test_the_same_decoder_without_a_cache_is_found_at_equal_settings(stored):
    run = stored.run("dual-1")
    runs = [*stored.runs(), uncached(run, cfg_scale=0.0)]
    assert uncached_reference(run, runs)["run_id"] == "un-1"
    assert uncached_reference(uncached(run), runs) is None


@pytest.mark.parametrize("other", [{"threshold": 0.8}, {"threshold": None}, {"cfg_scale": 1.5}, {"block_length": 16}])
def test_a_decoder_with_other_settings_says_nothing_about_the_cache(stored, other):
    run = stored.run("dual-1")
    assert uncached_reference(run, [uncached(run, **other)]) is None


def test_another_model_says_nothing_about_the_cache(stored):
    run = stored.run("dual-1")
    assert uncached_reference(run, [{**uncached(run), "model": "another"}]) is None


def test_the_reference_of_equal_concurrency_is_preferred(stored):
    run = {**stored.run("dual-1"), "concurrency": 4}
    other = {**stored.run("ar-1"), "run_id": "ar-4", "concurrency": 4, "invocation": "later"}
    assert autoregressive_reference(run, [*stored.runs(), other])["run_id"] == "ar-4"


def test_one_token_per_step_is_read_from_the_settings(stored):
    run = stored.run("dual-1")

    def with_settings(**settings):
        return {**run, "settings": {"gen_length": 64, "block_length": 32, **settings}}

    assert is_one_token_per_step(with_settings())
    assert is_one_token_per_step(with_settings(tokens_per_step=1))
    assert is_one_token_per_step(with_settings(steps=64))
    assert is_one_token_per_step(with_settings(steps_per_block=32))
    assert not is_one_token_per_step(with_settings(tokens_per_step=2))
    assert not is_one_token_per_step(with_settings(steps=32))
    assert not is_one_token_per_step(with_settings(threshold=0.9))


def test_a_control_is_found_with_its_twin(stored):
    baseline = {**stored.run("ar-1"), "role": "baseline"}
    control = {**baseline, "run_id": "ar-control", "role": "control"}
    found = control_of(stored.run("dual-1"), [stored.run("dual-1"), baseline, control])
    assert (found[0]["run_id"], found[1]["run_id"]) == ("ar-control", "ar-1")


def test_labels_name_what_was_set(stored):
    assert [label(run) for run in stored.runs()] == ["ar", "dualcache, threshold 0.9", "dualcache, 1 token/step"]
    assert label({**stored.run("ar-1"), "concurrency": 4, "repeat": 1, "role": "control"}) == (
        "ar, concurrency 4, repeat 2, control"
    )
