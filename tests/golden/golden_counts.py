"""How many recorded cases of each family come out token for token and commit for commit, on any device.

A case counts when every one of its rows gives the recorded window and the recorded sets of commits in their order; a
log-likelihood when it is the recorded expectation within 1e-4, a greedy check when it is the recorded answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from dllm_audit.backend import Backend
from dllm_audit.decode.likelihood import LikelihoodSettings, score_answer, suffix_greedy
from dllm_audit.models.loading import LoadedModel, find_model, load_model
from dllm_audit.plugins import load_plugins
from dllm_audit.records import Failure, Generation, Request
from tests.golden.golden_cases import DREAM, FAMILIES, FOLDER, Row, cases, rows

MODELS = {
    **dict.fromkeys((*FAMILIES, "dinfer_decoders"), "tiny-llada"),
    "llada_moe": "tiny-llada-moe",
    **dict.fromkeys(DREAM, "tiny-dream"),
}


@dataclass(frozen=True)
class FamilyCount:
    """right of total cases are exact. note: what is counted, or why others are not."""

    family: str
    right: int
    total: int
    note: str = ""


def exact(row: Row, backend: Backend, model: LoadedModel) -> bool:
    """Whether our decode of this row is the recorded one."""
    results: list[Generation | Failure] = []
    request = Request(row.id, prompt_ids=row.prompt_ids, settings=row.settings)
    backend.open(model, {}).generate([request], results.append, traced=True)
    (result,) = results
    if isinstance(result, Failure) or result.trace is None or result.output_ids != row.window:
        return False
    ours = defaultdict(list)
    for commit in result.trace.commits:
        ours[commit.step].append((commit.position, commit.token))
    theirs = [[(at, token) for at, token, _ in step] for step in row.commits]
    return [sorted(ours[step]) for step in sorted(ours)] == theirs


def count_families(device: str, most: int | None = None) -> Iterator[FamilyCount]:
    """Every family in float32 on `device`; most: only so many cases of each."""
    names = sorted(set(MODELS.values()))
    models = {name: load_model(find_model(str(FOLDER / name)), device, "float32") for name in names}
    backends = load_plugins().backends
    for family, name in MODELS.items():
        by_case: dict[str, list[Row]] = {}
        for row in rows(family):
            by_case.setdefault(row.id.partition("#")[0], []).append(row)
        apart = {case for case, of in by_case.items() if any(_by_tests_alone(row) for row in of)}
        kept = [of for case, of in by_case.items() if case not in apart][:most]
        right = sum(all(exact(row, backends[row.backend], models[name]) for row in of) for of in kept)
        note = f"{len(apart)} more by the tests alone: a seed of torch's, or blocks counted from column 0"
        yield FamilyCount(family, right, len(kept), note if apart else "")
    yield from _likelihoods(models["tiny-llada"], most)


def _by_tests_alone(row: Row) -> bool:
    return row.seed is not None or row.tag.endswith("block_align")


def _likelihoods(model: LoadedModel, most: int | None) -> Iterator[FamilyCount]:
    likelihoods = cases("llada_loglikelihood")[:most]
    for law, compat in (("exact_expectation_uniform_l", None), ("exact_expectation_reference_law", "llada")):
        right = 0
        for case in likelihoods:
            recorded = case["settings"]
            settings = LikelihoodSettings(
                cfg_scale=recorded["cfg_scale"], batch_size=recorded["batch_size"], exact=True, compat=compat
            )
            found = score_answer(model, case["prompt_ids"], case["answer_ids"], settings, 0)
            right += abs(found.loglikelihood - case[law]) < 1e-4
        yield FamilyCount("llada_loglikelihood", right, len(likelihoods), "the program's law" if compat else "unbiased")
    greedy = cases("llada_suffix_greedy")[:most]
    right = 0
    for case in greedy:
        fill = suffix_greedy(model, case["prompt_ids"], case["target_ids"])
        order = [(at + len(case["prompt_ids"]), token) for at, token, _ in fill.order]
        recorded = [(at, token) for at, token, _ in case["fill_order"][: len(order)]]
        right += fill.matches == case["is_greedy"] and order == recorded
    yield FamilyCount("llada_suffix_greedy", right, len(greedy))
