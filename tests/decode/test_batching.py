"""Riding along costs forwards, never tokens: a row alone equals the row in a batch, for every built-in backend."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import CELLS, backend, generate, model_of

from dllm_audit import Request
from dllm_audit.decode.cache import Window
from dllm_audit.decode.runner import ForwardRunner
from dllm_audit.decode.state import Canvas, RowInput

BACKENDS = tuple(CELLS)
BIDIRECTIONAL = tuple(name for name in BACKENDS if name not in ("block", "ar"))
TOKENS = st.integers(3, 90)


@st.composite
def request_lists(draw, with_suffix: bool):
    """Two to six requests of unequal length with windows of unequal length, some with a suffix to lead to."""
    requests = []
    for number in range(draw(st.integers(2, 6))):
        prompt = tuple(draw(st.lists(TOKENS, min_size=1, max_size=65)))
        suffix = tuple(draw(st.lists(TOKENS, max_size=9))) if with_suffix else ()
        own = {"gen_length": draw(st.integers(1, 20))}
        requests.append(Request(str(number), prompt_ids=prompt, suffix_ids=suffix, settings=own))
    return requests


def facts(result):
    return (result.output_ids, result.forwards, result.query_positions, result.stop, result.guaranteed_commits)


def check_alone_equals_batched(name, requests, given, concurrency):
    alone = {}
    for request in requests:
        alone |= generate(name, [request], given)[0]
    together, log = generate(name, requests, given, concurrency)
    assert {id: facts(r) for id, r in together.items()} == {id: facts(r) for id, r in alone.items()}
    assert log.row_forwards == sum(r.nfe for r in together.values())


@pytest.mark.parametrize("name", BACKENDS)
def test_a_row_alone_equals_the_row_in_a_batch(name):
    choices = [{}, {"threshold": 0.4}, {"tokens_per_step": 3}] if name != "ar" else [{}]
    end = {"stop_at_eos": True, "eos_token_id": 48 if CELLS[name] == "llada" else 59}

    @settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        requests=request_lists(name in BIDIRECTIONAL),
        concurrency=st.integers(2, 4),
        choice=st.sampled_from(choices),
        stops=st.booleans(),
        block_length=st.sampled_from([4, 7, 64]),
    )
    def check(requests, concurrency, choice, stops, block_length):
        blocks = {"block_length": block_length} if "block_length" in backend(name).settings and name != "block" else {}
        check_alone_equals_batched(name, requests, {**choice, **blocks, **(end if stops else {})}, concurrency)

    check()


@pytest.mark.parametrize("name", BACKENDS)
def test_more_requests_than_slots_refill_slots_that_shorter_and_longer_rows_left(name):
    lengths = [(40, 3), (2, 12), (9, 1), (65, 7), (1, 5), (30, 9), (17, 2), (64, 11)]
    requests = [
        Request(str(n), prompt_ids=tuple((7 * i + n) % 80 + 3 for i in range(p)), settings={"gen_length": g})
        for n, (p, g) in enumerate(lengths)
    ]
    check_alone_equals_batched(name, requests, {}, 3)


@pytest.mark.parametrize("name", BACKENDS)
def test_sampling_of_a_row_does_not_depend_on_its_neighbours_or_its_place(name):
    requests = [Request(str(n), prompt_ids=(3 + n, 9), key=f"key {n}") for n in range(5)]
    given = {"gen_length": 10, "temperature": 0.8}
    alone, _ = generate(name, requests, given, seed=7)
    for order in (requests, requests[::-1], requests[2:4]):
        together, _ = generate(name, order, given, 3, seed=7)
        assert {r.id: together[r.id].output_ids for r in order} == {r.id: alone[r.id].output_ids for r in order}
    other, _ = generate(name, requests, given, seed=8)
    assert {id: r.output_ids for id, r in other.items()} != {id: r.output_ids for id, r in alone.items()}


def test_random_order_of_a_row_does_not_depend_on_its_neighbours():
    requests = [Request(str(n), prompt_ids=(3 + n, 9), key=str(n)) for n in range(4)]
    given = {"gen_length": 10, "block_length": 10, "confidence": "random"}
    alone, together = (generate("uncached", requests, given, n, traced=True)[0] for n in (1, 3))
    order = {id: [c.position for c in r.trace.commits] for id, r in alone.items()}
    assert {id: [c.position for c in r.trace.commits] for id, r in together.items()} == order
    assert len({tuple(positions) for positions in order.values()}) > 1


def test_requests_with_different_settings_share_batches_with_their_like_and_all_are_answered():
    requests = [
        Request(str(n), prompt_ids=(5 + n,), settings={"tokens_per_step": 1 + n % 2, "gen_length": 8}) for n in range(6)
    ]
    results, log = generate("uncached", requests, {}, 3)
    assert {id: r.nfe for id, r in results.items()} == {"0": 8, "1": 4, "2": 8, "3": 4, "4": 8, "5": 4}
    assert log.batch_forwards == 8 + 4


@pytest.mark.parametrize("name", BACKENDS)
def test_what_stands_in_other_slots_and_in_padding_never_changes_logits(name):
    """Everything that is not the row's own is overwritten with other tokens and huge keys between its forwards."""
    requests = [Request("a", prompt_ids=(5, 6, 7, 8, 9, 10, 11, 12, 13)), Request("b", prompt_ids=(3,))]
    given = {"gen_length": 12}
    clean, _ = generate(name, requests, given, 2)

    inner = ForwardRunner.run

    def soiled(self, slots, windows, mask_given=None):
        for slot in range(self.canvas.tokens.shape[0]):
            used = max((w.visible for s, w in zip(slots, windows, strict=True) if s == slot), default=None)
            if used is not None:
                self.canvas.tokens[slot, max(used, longest[slot]) :] = 77
                if self.key_values is not None:
                    self.key_values.buffer[:, :, slot, :, max(used, longest[slot]) :] = 1e6
        return inner(self, slots, windows, mask_given)

    longest = {0: 9 + 12, 1: 1 + 12}
    ForwardRunner.run = soiled
    try:
        dirty, _ = generate(name, requests, given, 2)
    finally:
        ForwardRunner.run = inner
    assert {id: r.output_ids for id, r in dirty.items()} == {id: r.output_ids for id, r in clean.items()}


def test_hidden_states_of_a_row_are_bit_for_bit_blind_to_its_padding():
    model = model_of("llada")
    windows = [Window("denoise", 0, 20, 20, cached=False), Window("denoise", 0, 6, 6, cached=False)]

    def states(padding: int) -> torch.Tensor:
        canvas = Canvas.empty(2, 20, model.device)
        canvas.tokens[:] = padding
        canvas.fill(0, RowInput(tuple(range(3, 13)), 10), 126, False)
        canvas.fill(1, RowInput((5, 6), 4), 126, False)
        with torch.inference_mode():
            return ForwardRunner(model, canvas, False).run([0, 1], windows).states[1, :6]

    assert torch.equal(states(0), states(99))


def test_the_tax_of_riding_along_can_be_read_from_the_log():
    """Two rows, 4 and 12 tokens at one per forward: 12 batch forwards, of which the short row uses 4."""
    requests = [Request(str(n), prompt_ids=(5,), settings={"gen_length": g}) for n, g in enumerate((4, 12))]
    results, log = generate("uncached", requests, {"block_length": 64}, 2)
    assert [results[id].nfe for id in "01"] == [4, 12]
    assert (log.batch_forwards, log.row_forwards) == (12, 16)
    assert {(s.kind, s.width, s.rows): s.count for s in log.shapes} == {("denoise", 13, 2): 4, ("denoise", 13, 1): 8}
    tax = 1 - sum(r.nfe for r in results.values()) / (log.batch_forwards * 2)
    assert tax == pytest.approx(1 / 3)


def test_a_backend_can_be_opened_twice_and_its_sessions_do_not_share_anything():
    first = backend("dualcache").open(model_of("llada"), {"gen_length": 6})
    second = backend("dualcache").open(model_of("llada"), {"gen_length": 6})
    seen = {}

    def keep_first(result):
        seen["first"] = result.output_ids
        second.generate([Request("other", prompt_ids=(50, 51))], lambda r: seen.__setitem__("inner", r.output_ids))

    first.generate([Request("a", prompt_ids=(5, 6)), Request("b", prompt_ids=(7, 8))], keep_first, 2)
    alone, _ = generate(
        "dualcache", [Request("b", prompt_ids=(7, 8)), Request("o", prompt_ids=(50, 51))], {"gen_length": 6}
    )
    assert seen["first"] == alone["b"].output_ids
    assert seen["inner"] == alone["o"].output_ids


@pytest.mark.parametrize("name", ["dream", "uncached on dream", "prefixcache on dream", "dualcache on dream"])
def test_a_bidirectional_model_with_a_shifted_head_can_begin_without_a_prompt_beside_rows_that_have_one(name):
    """Nothing stands before column 0, so it is predicted from itself, as in Dream's program."""
    requests = [
        Request("none", prompt_ids=(), suffix_ids=(20, 33, 41, 50)),
        Request("one", prompt_ids=(7,), suffix_ids=(20, 33)),
        Request("some", prompt_ids=tuple(range(3, 30))),
    ]
    together, _ = generate(name, requests, {"gen_length": 9, "threshold": 0.5}, 3)
    assert [together[id].committed_tokens for id in ("none", "one", "some")] == [9, 9, 9]
    for id in ("one", "some"):
        alone, _ = generate(name, [r for r in requests if r.id == id], {"gen_length": 9, "threshold": 0.5})
        assert together[id].output_ids == alone[id].output_ids


@pytest.mark.parametrize("name", ["dualcache", "ar"])
def test_rows_move_up_when_one_before_them_has_ended(name, monkeypatch):
    """So that the keys of those still there are read in place: copying them would be paid for at every step."""
    requests = [
        Request(str(n), prompt_ids=(5, 6 + n), settings={"gen_length": g}) for n, g in enumerate((4, 20, 8, 24))
    ]
    alone = {}
    for request in requests:
        alone |= generate(name, [request], {})[0]
    slots_of = []
    inner = ForwardRunner.run
    monkeypatch.setattr(
        ForwardRunner, "run", lambda self, slots, *rest: slots_of.append(list(slots)) or inner(self, slots, *rest)
    )
    together, _ = generate(name, requests, {}, 4)
    assert {id: facts(r) for id, r in together.items()} == {id: facts(r) for id, r in alone.items()}
    assert all(slots == list(range(len(slots))) for slots in slots_of)
    assert {len(slots) for slots in slots_of} == {1, 2, 3, 4}
