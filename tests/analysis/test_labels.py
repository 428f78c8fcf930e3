from dllm_audit.analysis.labels import set_by_hand


def test_what_was_set_by_hand_is_said_in_words_and_one_of_a_thing_has_no_plural():
    assert set_by_hand({"threshold": 0.9, "block_length": 16, "gen_length": 64, "factor": None}) == [
        "threshold 0.9",
        "block 16",
    ]
    assert [set_by_hand({name: n})[0] for name in ("tokens_per_step", "steps", "steps_per_block") for n in (1, 2)] == [
        "1 token/step", "2 tokens/step", "1 step", "2 steps", "1 step/block", "2 steps/block",
    ]  # fmt: skip
