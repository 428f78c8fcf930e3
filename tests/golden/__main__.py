"""`python -m tests.golden`: how many recorded cases of each family come out token for token and commit for commit.

A case counts when every one of its rows gives the recorded window and the recorded sets of commits in their order; a
log-likelihood when it is the recorded expectation within 1e-4, a greedy check when it is the recorded answer.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from golden_cases import DREAM, FAMILIES, FOLDER, Row, cases, rows

from dllm_audit.backend import Backend
from dllm_audit.decode.likelihood import LikelihoodSettings, score_answer, suffix_greedy
from dllm_audit.models.loading import LoadedModel, find_model, load_model
from dllm_audit.plugins import load_plugins
from dllm_audit.records import Failure, Generation, Request

MODELS = {
    **dict.fromkeys((*FAMILIES, "dinfer_decoders"), "tiny-llada"),
    "llada_moe": "tiny-llada-moe",
    **dict.fromkeys(DREAM, "tiny-dream"),
}


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


def main() -> int:
    backends = load_plugins().backends
    models = {
        name: load_model(find_model(str(FOLDER / name)), "cpu", "float32") for name in sorted(set(MODELS.values()))
    }
    failed = 0

    def say(family: str, right: int, total: int, note: str = "") -> None:
        nonlocal failed
        failed += total - right
        print(f"{family:<26} {right:>4} of {total}{note}")

    for family, model in MODELS.items():
        by_case: dict[str, bool] = {}
        apart = set()
        for row in rows(family):
            case = row.id.partition("#")[0]
            if row.seed is not None or row.tag.endswith("block_align"):
                apart.add(case)
                continue
            by_case[case] = by_case.get(case, True) and exact(row, backends[row.backend], models[model])
        note = f"   ({len(apart)} more by the tests alone: a seed of torch's, or blocks counted from column 0)"
        say(family, sum(by_case.values()), len(by_case), note if apart else "")
    likelihoods = cases("llada_loglikelihood")
    for law, compat in (("exact_expectation_uniform_l", None), ("exact_expectation_reference_law", "llada")):
        right = 0
        for case in likelihoods:
            recorded = case["settings"]
            settings = LikelihoodSettings(
                cfg_scale=recorded["cfg_scale"], batch_size=recorded["batch_size"], exact=True, compat=compat
            )
            found = score_answer(models["tiny-llada"], case["prompt_ids"], case["answer_ids"], settings, 0)
            right += abs(found.loglikelihood - case[law]) < 1e-4
        say("llada_loglikelihood", right, len(likelihoods), "   (the program's law)" if compat else "   (unbiased)")
    greedy = cases("llada_suffix_greedy")
    right = 0
    for case in greedy:
        fill = suffix_greedy(models["tiny-llada"], case["prompt_ids"], case["target_ids"])
        order = [(at + len(case["prompt_ids"]), token) for at, token, _ in fill.order]
        recorded = [(at, token) for at, token, _ in case["fill_order"][: len(order)]]
        right += fill.matches == case["is_greedy"] and order == recorded
    say("llada_suffix_greedy", right, len(greedy))
    print(f"{failed} cases differ." if failed else "Every case is exact.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
