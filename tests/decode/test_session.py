"""From requests to generations: what is refused, what is counted, where an answer ends."""

from __future__ import annotations

import json

import pytest
from small_models import FAMILY_OF, TINY_LLADA, backend, generate, model_of

from dllm_audit import Failure, Request
from dllm_audit.errors import Interrupted, UsageError
from dllm_audit.models.loading import LoadedModel, find_model, load_model, load_tokenizer
from dllm_audit.models.tiny.tokenizer import save_tokenizer

BACKENDS = tuple(FAMILY_OF)
BIDIRECTIONAL = ("uncached", "prefixcache", "dualcache")


def ask(id: str = "a", prompt_ids=(3, 4, 5), **fields) -> Request:
    return Request(id, prompt_ids=prompt_ids, **fields)


def only(name: str, settings=None, **fields):
    results, _ = generate(name, [ask(**fields)], {"gen_length": 8, **(settings or {})})
    return results["a"]


# -- what is refused, with the others going on --


def test_a_request_that_cannot_be_decoded_fails_alone():
    requests = [
        ask("good"),
        ask("unknown setting", settings={"treshold": 0.9}),
        ask("outside", prompt_ids=(3, 128)),
        ask("negative", prompt_ids=(-1,)),
        ask("huge", prompt_ids=(2**70,)),
        ask("long", prompt_ids=(3,) * 4090),
        ask("suffix", prompt_ids=(3,) * 4080, suffix_ids=(5,) * 10),
        ask("steps", settings={"steps": 3, "block_length": 4}),
        Request("text", prompt="hello"),
        ask("also good"),
    ]
    results, _ = generate("uncached", requests, {"gen_length": 8}, concurrency=2)
    too_long = (
        "The prompt of {} tokens{} plus gen_length=8 is 4098 positions, but the model was made for 4096. "
        "Shorten the prompt (fewer few-shot examples) or lower gen_length."
    )
    assert {id: (r.type, r.message) for id, r in results.items() if isinstance(r, Failure)} == {
        "unknown setting": (
            "SettingError",
            "There is no setting 'treshold' (backend 'uncached'). Did you mean 'threshold'?",
        ),
        "outside": ("RequestError", "Token id 128 is outside this model's vocabulary of 128."),
        "negative": ("RequestError", "Token id -1 is outside this model's vocabulary of 128."),
        "huge": ("RequestError", f"Token id {2**70} is outside this model's vocabulary of 128."),
        "long": ("RequestError", too_long.format(4090, "")),
        "suffix": ("RequestError", too_long.format(4080, " and suffix of 10")),
        "steps": (
            "SettingError",
            "steps=3 does not divide by the 2 blocks of this window. "
            "Use a multiple of 2, or say steps_per_block or tokens_per_step.",
        ),
        "text": (
            "RequestError",
            f"The model folder {TINY_LLADA} has no tokenizer, so it takes token ids only: "
            'give {"prompt_ids": [...]} with --requests instead of text.',
        ),
    }
    assert results["good"].output_ids == results["also good"].output_ids


def test_a_stop_string_that_nothing_could_find_is_refused_and_not_left_out_silently():
    result = only("uncached", until=("stop",))
    assert isinstance(result, Failure)
    assert result.message.endswith("has no tokenizer, so nobody can tell where a stop string comes. Leave until out.")
    assert only("uncached", until=("",)).stop == "length"


@pytest.mark.parametrize("name", ["dualcache", "ar"])
def test_padding_is_no_answer_whatever_id_is_said_to_end_a_text(name):
    """With another end of text the padding after an answer once counted, and the same text came two and a half times as fast."""
    model = load_model(find_model({"dualcache": "tiny-mdm", "ar": "tiny-ar"}[name]), "cpu", "float32")
    (end,) = model.traits.end_token_ids
    prompt = "Question: Eva has 26 coins. She finds 31 more. How many coins does Eva have in the end?\nAnswer:"
    settings = {"gen_length": 64, "eos_token_id": model.traits.vocab_size - 1}
    results, _ = generate(name, [Request("a", prompt=prompt)], settings, model=model)
    result = results["a"]
    assert end in result.output_ids
    assert end not in result.answer_ids
    assert result.answered_tokens == len(result.answer_ids) == 64 - result.output_ids.count(end)


def test_a_request_that_just_fits_is_decoded():
    result = only("dualcache", prompt_ids=(3,) * 4088)
    assert (result.prompt_tokens, result.committed_tokens) == (4088, 8)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("gen_length", [10**9, 10**30])
def test_an_absurd_length_is_refused_at_once_and_costs_no_memory(name, gen_length):
    """The blocks of a window of a billion positions were once listed before the length was checked."""
    message = only(name, {"gen_length": gen_length}).message
    assert f"gen_length={gen_length} is {gen_length + 3} positions, but the model was made for" in message


@pytest.mark.parametrize("name", ["block", "ar"])
def test_a_decoder_from_left_to_right_says_that_it_cannot_infill(name):
    assert only(name, suffix_ids=(5,)) == Failure(
        "a",
        "RequestError",
        "This backend decodes left to right and cannot see a suffix, so it cannot infill. "
        "Use uncached, prefixcache or dualcache.",
    )


def test_an_autoregressive_model_needs_a_prompt():
    assert only("ar", prompt_ids=()).message == (
        "The prompt is empty, and this model predicts a token from the one before it. Give at least one."
    )


@pytest.mark.parametrize("name", [*BIDIRECTIONAL, "block"])
def test_a_diffusion_model_may_begin_with_nothing(name):
    result = only(name, prompt_ids=())
    assert (result.prompt_tokens, result.committed_tokens, result.residual_masks) == (0, 8, 0)


def test_steps_are_counted_over_the_blocks_that_a_row_really_has():
    """A prompt that ends inside a block of the grid makes one block more; that once ended the whole run."""
    whole, ragged = ask("whole", prompt_ids=(3,) * 8), ask("ragged", prompt_ids=(3,) * 3)
    results, _ = generate("block", [ragged, whole], {"gen_length": 16, "steps": 8})
    assert results["ragged"].message.startswith("steps=8 does not divide by the 3 blocks of this window.")
    assert results["whole"].forwards == {"prefill": 1, "denoise": 8, "commit": 1}


def test_two_requests_with_one_id_are_refused_before_anything_runs():
    with pytest.raises(UsageError) as error:
        generate("ar", [ask("twin"), ask("twin")])
    assert str(error.value) == "Two requests have the id 'twin'. Results are told apart by it: give each its own."


def test_no_request_in_flight_is_refused_instead_of_answering_nothing():
    with pytest.raises(UsageError) as error:
        generate("ar", [ask()], concurrency=0)
    assert str(error.value) == "concurrency=0: at least one request must be in flight."


def test_no_request_gives_an_empty_log():
    results, log = generate("ar", [])
    assert (results, log.shapes, log.makespan_seconds) == ({}, (), 0)


# -- settings of a request --


def test_a_requests_settings_override_those_of_the_run_for_it_alone():
    requests = [ask("run"), ask("own", settings={"gen_length": 3}), ask("again")]
    results, _ = generate("uncached", requests, {"gen_length": 8, "tokens_per_step": 4})
    assert {id: (len(r.output_ids), r.nfe) for id, r in results.items()} == {
        "run": (8, 2),
        "own": (3, 1),
        "again": (8, 2),
    }


def test_a_request_may_count_its_steps_in_another_way_than_the_run():
    results, _ = generate("uncached", [ask(settings={"steps": 4})], {"gen_length": 8, "tokens_per_step": 4})
    assert results["a"].nfe == 4


# -- odd windows --


@pytest.mark.parametrize("name", BACKENDS)
def test_a_window_of_one_position(name):
    result = only(name, {"gen_length": 1})
    assert (len(result.output_ids), result.committed_tokens, result.forwards.get("commit", 0)) == (1, 1, 0)


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_a_block_longer_than_the_window_is_the_window(name):
    assert only(name, {"block_length": 99}).output_ids == only(name, {"block_length": 8}).output_ids


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_a_mask_that_the_caller_gave_stays_what_the_caller_gave(name):
    result = only(name, prompt_ids=(3, 126, 5), suffix_ids=(126,))
    assert (result.committed_tokens, result.residual_masks) == (8, 0)


# -- where an answer ends --


def test_without_stop_at_eos_every_position_is_decoded_and_the_answer_is_cut_at_end_of_text():
    free = only("ar")
    end = free.output_ids[3]
    result = only("ar", {"eos_token_id": end})
    cut = free.output_ids.index(end)
    assert result.output_ids == free.output_ids
    assert result.answer_ids == free.output_ids[:cut]
    assert (result.answered_tokens, result.committed_tokens, result.stop) == (cut, 8, "eos")


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_stop_at_eos_looks_when_a_block_closes_and_counts_nothing_beyond_it(name):
    settings = {"gen_length": 24, "block_length": 8}
    free = only(name, settings)
    end = next(token for token in free.output_ids[8:16] if token not in free.output_ids[:8])
    result = only(name, {**settings, "eos_token_id": end, "stop_at_eos": True})
    assert result.output_ids == free.output_ids[:16]
    assert (result.committed_tokens, result.nfe, result.stop) == (16, 16, "eos")
    assert result.answer_ids == free.output_ids[: free.output_ids.index(end)]


def test_end_of_turn_ends_an_answer_like_end_of_text():
    free = only("uncached", {"block_length": 8})
    first, second = free.output_ids[2], free.output_ids[5]
    result = only("uncached", {"block_length": 8, "eos_token_id": second, "eot_token_id": first})
    assert result.answer_ids == free.output_ids[: min(free.output_ids.index(first), free.output_ids.index(second))]


@pytest.fixture(scope="module")
def speaking(tmp_path_factory) -> LoadedModel:
    """The recorded LLaDA with a tokenizer that knows 128 one-byte tokens: id 65 says "A"."""
    import shutil

    from tokenizers import Tokenizer, decoders, models

    folder = tmp_path_factory.mktemp("speaking")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(TINY_LLADA / name, folder)
    vocabulary = {f"<0x{i:02X}>": i for i in range(128)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token=None))
    tokenizer.decoder = decoders.ByteFallback()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return load_model(find_model(str(folder)), "cpu", "float32")


def say(model, until=(), settings=None, name="uncached", **fields):
    request = Request("a", prompt="How?", until=until, **fields)
    results, _ = generate(name, [request], {"gen_length": 24, "block_length": 8, **(settings or {})}, model=model)
    return results["a"]


def test_text_goes_in_and_comes_out(speaking):
    by_text = say(speaking)
    by_ids = generate("uncached", [ask(prompt_ids=tuple(b"How?"))], {"gen_length": 24, "block_length": 8})[0]["a"]
    assert by_text.output_ids == by_ids.output_ids
    assert by_text.text == bytes(by_text.answer_ids).decode()
    assert (by_ids.text, by_text.prompt_tokens) == (None, 4)


@pytest.mark.parametrize(("lo", "hi"), [(2, 3), (3, 6), (7, 10), (12, 14)])
def test_until_cuts_the_text_before_the_first_stop_string_and_ends_the_row_at_a_block_boundary(speaking, lo, hi):
    free = say(speaking)
    stop = free.text[lo:hi]
    at = free.text.index(stop)
    result = say(speaking, until=(stop, "never said"))
    assert result.text == free.text[:at]
    assert result.answer_ids == free.answer_ids[:at]
    closed = -(-(at + len(stop)) // 8) * 8
    assert (result.output_ids, result.committed_tokens, result.stop) == (free.output_ids[:closed], closed, "until")


def test_of_two_stop_strings_the_one_that_comes_first_in_the_text_counts(speaking):
    free = say(speaking)
    early, late = free.text[4:6], free.text[9:12]
    assert say(speaking, until=(late, early)).text == free.text[: min(free.text.index(early), free.text.index(late))]


def test_half_a_surrogate_pair_fails_its_request_with_a_sentence(speaking):
    """It once ended the whole command with a TypeError of the tokenizer."""
    requests = [Request("bad", prompt="ab\ud800"), Request("good", prompt="ab")]
    results, _ = generate("uncached", requests, {"gen_length": 4}, model=speaking)
    assert results["bad"].message == (
        "Character 3 of the text is half of a surrogate pair and no character of its own, "
        "so it has no tokens. Take it out, or write the whole character."
    )
    assert results["good"].committed_tokens == 4


def test_a_suffix_is_seen_but_never_returned(speaking):
    plain, infilled = say(speaking), say(speaking, suffix=" 42.")
    assert len(infilled.output_ids) == len(plain.output_ids) == 24
    assert infilled.output_ids != plain.output_ids


# -- counts --


def test_theorem_1_counts_the_tokens_of_every_commit_that_it_covers():
    result = generate(
        "uncached",
        [ask(prompt_ids=(76, 64, 99, 1))],
        {"gen_length": 16, "block_length": 16, "tokens_per_step": 3},
        traced=True,
    )[0]["a"]
    by_step: dict[int, list[float]] = {}
    for commit in result.trace.commits:
        by_step.setdefault(commit.step, []).append(commit.confidence)
    covered = [c for c in by_step.values() if (len(c) + 1) * (1 - min(c)) <= 1]
    assert result.guaranteed_commits == sum(len(c) for c in covered)
    assert 0 < result.guaranteed_commits < 16


def test_theorem_1_says_nothing_about_another_confidence_than_the_probability():
    assert only("uncached", {"confidence": "margin"}).guaranteed_commits == 0


@pytest.mark.parametrize(
    ("name", "committing"), [("uncached", 8), ("prefixcache", 8), ("dualcache", 8), ("block", 8), ("ar", 8)]
)
def test_tau_divides_by_the_forwards_that_may_commit(name, committing):
    result = only(name, {"gen_length": 8}, prompt_ids=(3,) * 8)
    assert result.committing_forwards == committing
    assert result.nfe - committing == result.forwards.get("commit", 0) + (
        result.forwards["prefill"] if name == "block" else 0
    )


# -- an interruption --


def test_ctrl_c_ends_the_work_with_the_log_of_what_was_done():
    kept = []

    def press(result):
        kept.append(result)
        if len(kept) == 2:
            raise KeyboardInterrupt

    session = backend("ar").open(model_of("llama"), {"gen_length": 5})
    with pytest.raises(Interrupted) as stop:
        session.generate([ask(str(n)) for n in range(4)], press)
    assert [result.id for result in kept] == ["0", "1"]
    assert stop.value.log.batch_forwards == 10


def test_before_each_result_the_forwards_up_to_it_are_told_those_of_earlier_groups_too():
    told = []
    session = backend("ar").open(model_of("llama"), {"gen_length": 5, "stop_at_eos": False})
    requests = [ask("a"), ask("b"), ask("c", settings={"temperature": 0.5})]
    results = []
    log = session.generate(
        requests, results.append, on_shapes=lambda shapes: told.append((len(results), sum(s.count for s in shapes)))
    )
    # One prefill and four steps for each request; the third one has a recipe of its own.
    assert told == [(0, 5), (1, 10), (2, 15)]
    assert log.batch_forwards == 15


@pytest.mark.parametrize("text", ["", "Ünï😀 \x00 \u2028", "<|mask|><|endoftext|>", "a" * 200])
def test_special_words_typed_by_a_person_are_only_text(text, tmp_path):
    save_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode(text)
    assert all(1 < id < len(tokenizer) for id in ids)
    assert tokenizer.decode(ids) == text
