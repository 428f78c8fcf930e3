"""Decode settings: names, values and precedence are checked, and nothing that was typed disappears."""

from __future__ import annotations

import pytest

from dllm_audit import Setting
from dllm_audit.errors import SettingError
from dllm_audit.plugins import load_plugins
from dllm_audit.settings import CORE_SETTINGS, SETTINGS, resolve_settings

DECLARED = {
    "gen_length": 128,
    "block_length": 32,
    "steps": None,
    "steps_per_block": None,
    "tokens_per_step": None,
    "threshold": None,
    "factor": None,
    "temperature": 0.0,
    "stop_at_eos": False,
}


def resolve(given=None, **options):
    return resolve_settings(given or {}, declared=options.pop("declared", DECLARED), backend="some", **options)


def refused(given, **options) -> str:
    with pytest.raises(SettingError) as error:
        resolve(given, **options)
    assert error.value.exit_status == 2
    return str(error.value)


# -- precedence --


def test_an_option_beats_the_task_beats_what_the_command_changes_beats_the_backends_default():
    def length(given=None, task=None, defaults=None):
        found = resolve(given, task_gen_length=task, defaults=defaults)
        return found.settings.gen_length, found.sources["gen_length"]

    assert length() == (128, "default")
    assert length(defaults={"gen_length": 64}) == (64, "default")
    assert length(task=256, defaults={"gen_length": 64}) == (256, "task")
    assert length({"gen_length": 7}, task=256, defaults={"gen_length": 64}) == (7, "option")


def test_what_a_command_changes_reaches_only_backends_that_have_it():
    assert resolve(defaults={"stop_at_eos": True, "cfg_scale": 2.0}).as_dict()["stop_at_eos"] is True
    assert "cfg_scale" not in resolve(defaults={"cfg_scale": 2.0}).as_dict()


def test_none_means_not_given():
    found = resolve({"gen_length": None, "threshold": "none", "steps": "None"})
    assert (found.settings.gen_length, found.settings.threshold, found.overridden) == (128, None, ())
    assert found.sources["gen_length"] == "default"


@pytest.mark.parametrize(
    ("given", "overridden"),
    [
        ({"factor": 1.0, "threshold": 0.9, "steps": 8}, ("threshold", "steps")),
        ({"factor": 1.0, "tokens_per_step": 2}, ("tokens_per_step",)),
        ({"threshold": 0.9, "steps_per_block": 4}, ("steps_per_block",)),
        ({"threshold": 0.0, "steps": 8}, ("steps",)),
        ({"threshold": 0.9}, ()),
        ({"steps": 8}, ()),
    ],
)
def test_what_is_outranked_is_kept_and_named(given, overridden):
    found = resolve(given)
    assert found.overridden == overridden
    stored = found.as_dict()
    assert {name: stored[name] for name in given} == given
    assert stored.get("overridden", []) == list(overridden)


def test_a_default_that_is_outranked_is_not_called_overridden():
    assert resolve({"threshold": 0.9}, declared={**DECLARED, "steps": 128}).overridden == ()


def test_a_given_count_of_steps_replaces_a_default_one_that_counts_otherwise():
    found = resolve({"tokens_per_step": 2}, declared={**DECLARED, "steps": 128})
    assert (found.settings.steps, found.settings.tokens_per_step) == (None, 2)


def test_two_counts_of_steps_are_refused():
    assert refused({"steps": 8, "tokens_per_step": 2}) == (
        "Settings steps and tokens_per_step say the same thing in two ways: give only one of them."
    )


def test_an_entropy_bound_ranks_by_entropy_unless_asked_otherwise():
    declared = {**DECLARED, "entropy_bound": None, "confidence": "probability"}
    assert resolve({"entropy_bound": 0.5}, declared=declared).settings.confidence == "entropy"
    asked = resolve({"entropy_bound": 0.5, "confidence": "margin", "steps": 8}, declared=declared)
    assert (asked.settings.confidence, asked.overridden) == ("margin", ("steps",))
    assert resolve({}, declared=declared).settings.confidence == "probability"
    assert refused({"entropy_bound": 0.5, "threshold": 0.9}, declared=declared) == (
        "Settings entropy_bound and threshold are two rules for one choice: give only one of them."
    )


def test_resolved_settings_are_those_that_the_backend_declares_and_no_others():
    assert resolve().as_dict() == DECLARED


# -- names --


def test_a_misspelt_setting_gets_the_nearest():
    assert refused({"treshold": 0.9}) == "There is no setting 'treshold' (backend 'some'). Did you mean 'threshold'?"


def test_a_setting_of_other_backends_is_refused_with_the_nearest_of_this_one():
    assert refused({"cfg_scale": 1}) == (
        "Backend 'some' has no setting 'cfg_scale'. Known: block_length, factor, gen_length, steps, steps_per_block, "
        "stop_at_eos, temperature, threshold, tokens_per_step."
    )


def test_a_setting_that_a_backend_declares_itself_is_checked_and_kept_apart():
    width = Setting("width", int, "Positions per sub-block.", minimum=1, maximum=64)
    found = resolve({"width": "8"}, own=(width,), declared={**DECLARED, "width": 16})
    assert (found.settings.own, found.as_dict()["width"]) == ({"width": 8}, 8)
    assert resolve(own=(width,), declared={**DECLARED, "width": 16}).settings.own == {"width": 16}
    message = refused({"width": 65}, own=(width,), declared={**DECLARED, "width": 16})
    assert message == "Setting width=65 is too large: it must be at most 64."


# -- values --


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("gen_length", "64", 64),
        ("gen_length", 64.0, 64),
        ("gen_length", "1e2", 100),
        ("gen_length", 2**53 + 1, 2**53 + 1),
        ("gen_length", str(2**53 + 1), 2**53 + 1),
        ("threshold", "0", 0.0),
        ("threshold", 1, 1.0),
        ("factor", "1e-3", 0.001),
        ("temperature", "0", 0.0),
        ("stop_at_eos", "Yes", True),
        ("stop_at_eos", "off", False),
        ("stop_at_eos", 0, False),
        ("confidence", "margin", "margin"),
        ("threshold", None, None),
        ("threshold", "None", None),
    ],
)
def test_a_value_is_read_from_text_or_json(name, value, parsed):
    result = CORE_SETTINGS[name].parse(value)
    assert (result, type(result)) == (parsed, type(parsed))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gen_length", "many", "Setting gen_length='many' is not a whole number. Positions to generate."),
        ("gen_length", 2.5, "Setting gen_length=2.5 is not a whole number. Positions to generate."),
        ("gen_length", True, "Setting gen_length=True is not a whole number. Positions to generate."),
        ("gen_length", [8], "Setting gen_length=[8] is not a whole number. Positions to generate."),
        ("gen_length", float("nan"), "Setting gen_length=nan is not a whole number. Positions to generate."),
        ("gen_length", float("inf"), "Setting gen_length=inf is not a whole number. Positions to generate."),
        ("gen_length", 0, "Setting gen_length=0 is too small: it must be at least 1."),
        ("gen_length", "-5", "Setting gen_length=-5 is too small: it must be at least 1."),
        ("steps", 0, "Setting steps=0 is too small: it must be at least 1."),
        ("steps", 10**9, "Setting steps=1000000000 is too large: it must be at most 1,000,000."),
        ("threshold", 1.01, "Setting threshold=1.01 is too large: it must be at most 1."),
        ("threshold", -0.1, "Setting threshold=-0.1 is too small: it must be at least 0."),
        ("factor", 0, "Setting factor=0 is too small: it must be above 0."),
        ("temperature", -1, "Setting temperature=-1 is too small: it must be at least 0."),
        ("temperature", 1e308, "Setting temperature=1e+308 is too large: it must be at most 1,000,000."),
        ("mask_token_id", -1, "Setting mask_token_id=-1 is too small: it must be at least 0."),
        (
            "threshold",
            "nan",
            "Setting threshold='nan' is not a number. Commit every token whose confidence reaches this; outranks the steps.",
        ),
        ("stop_at_eos", "perhaps", "Setting stop_at_eos='perhaps' is not true or false. End a row when a closed block holds end-of-text."),
        (
            "confidence",
            "probabilty",
            "Setting confidence='probabilty' is not one of probability, margin, entropy, random. Did you mean 'probability'?",
        ),
        ("compat", "fastdllm", "Setting compat='fastdllm' is not one of llada, fast-dllm. Did you mean 'fast-dllm'?"),
        ("eos", {"a": 1}, "Setting eos={'a': 1} is not one of keep, suppress_logits, suppress_confidence. "
         "Known: keep, suppress_confidence, suppress_logits."),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_with_a_sentence(name, value, message):
    with pytest.raises(SettingError) as error:
        CORE_SETTINGS[name].parse(value)
    assert str(error.value) == message


@pytest.mark.parametrize("value", [10**400, "9" * 5000], ids=["number", "text"])
def test_a_number_beyond_every_bound_is_refused_too(value):
    """A JSON number of 400 digits once ended the command with an OverflowError."""
    with pytest.raises(SettingError, match=r"^Setting gen_length=.* is not a whole number\. Positions to generate\.$"):
        CORE_SETTINGS["gen_length"].parse(value)


def test_every_setting_says_what_it_does():
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
    assert all(setting.help.endswith(".") for setting in SETTINGS)


@pytest.mark.parametrize("name", ["uncached", "prefixcache", "dualcache", "block", "ar"])
def test_the_defaults_of_every_built_in_backend_are_valid_values(name):
    backend = load_plugins().backends[name]
    given = {key: value for key, value in backend.settings.items() if value is not None}
    assert backend.resolve(given).as_dict() == dict(backend.settings)
