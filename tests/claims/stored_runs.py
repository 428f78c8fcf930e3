"""Runs with hand-made requests in a results file, as verdicts read them."""

from dllm_audit.records import TIME_ITEMS, EngineLog, Generation
from dllm_audit.store.database import Store

MODELS = {"tiny-ar": "autoregressive"}


def generation(number, ids, seconds, forwards):
    """One answer: `ids` are its tokens, all of them committed in `forwards` forwards that took `seconds`."""
    items = dict.fromkeys(TIME_ITEMS, 0.0) | {"denoise": seconds, "total": seconds}
    return Generation(
        id=str(number),
        prompt_tokens=10,
        output_ids=tuple(ids),
        answer_ids=tuple(ids),
        text="x" * len(ids),
        answered_tokens=len(ids),
        committed_tokens=len(ids),
        residual_masks=0,
        forwards={"denoise": forwards},
        query_positions=forwards * len(ids),
        committing_forwards=forwards,
        guaranteed_commits=0,
        seconds=items,
        ttft_seconds=seconds / 2,
        elapsed_seconds=seconds * (number + 1),
        stop="length",
    )


def store_run(
    path,
    run_id,
    backend,
    *,
    settings,
    given=(),
    model="tiny-mdm",
    task="gsm_mini",
    right=(),
    tokens=None,
    seconds=1.0,
    forwards=10,
    documents=40,
    role="candidate",
    num_fewshot=0,
    status="complete",
    environment=None,
    books=None,
    concurrency=1,
    repeat=0,
    prompts=None,
    dtype=None,
    command="",
    load="closed",
    sequential=None,
    invocation="one",
):
    """Store one run. `right`: documents that it answers correctly. `tokens(doc)`: its answer; ten tokens by default.

    books: how far the parts are from the wall time, as a share of it; None where that was not checked.
    """
    tokens = tokens or (lambda doc: [doc] * 10)
    kind = MODELS.get(model, "diffusion")
    manifest = {
        "command": command,
        "environment": {"cpu": "A processor"} | (environment or {}),
        "model": {"ref": model, "provenance": "embedded" if model.startswith("tiny") else "hub"},
        "prompts": {"num_fewshot": num_fewshot, "limit": documents} | (prompts or {}),
        "books": {"discrepancy": books},
    }
    manifest |= {"sequential": sequential} if sequential else {}
    manifest["model"] |= {"dtype": dtype} if dtype else {}
    with Store.open(path, write=True) as store:
        store.begin_run(
            {
                "run_id": run_id,
                "invocation": invocation,
                "content_key": run_id,
                "backend": backend,
                "provenance": "reference",
                "kind": kind,
                "fidelity": "paper",
                "model": model,
                "task": task,
                "role": role,
                "concurrency": concurrency,
                "load": load,
                "repeat": repeat,
                "settings": settings,
                "setting_sources": {name: "option" if name in given else "default" for name in settings},
                "manifest": manifest,
                "planned_requests": documents,
            }
        )
        for doc in range(documents):
            # Documents differ a little, so that intervals have a width.
            answer = generation(doc, tokens(doc), seconds * (1 + 0.01 * (doc % 5)), forwards)
            store.add_result(run_id, doc, 1, f"key {doc}", doc, "prompt", "sha", answer)
        store.add_log(run_id, 1, EngineLog((), seconds * documents, 0.0, {}))
        rows = [
            {
                "task": task,
                "doc_id": doc,
                "filter": "none",
                "metric": "acc",
                "value": float(doc in right),
                "response": "",
                "target": "",
            }
            for doc in range(documents)
        ]
        value = len(set(right) & set(range(documents))) / documents
        metric = {
            "task": task,
            "metric": "acc",
            "filter": "none",
            "value": value,
            "stderr": None,
            "documents": documents,
        }
        store.add_scores(run_id, rows, [metric])
        store.end_run(run_id, status)
    return run_id
