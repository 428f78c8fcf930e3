"""A small results file with numbers that a person can follow, and the pieces to build others."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dllm_audit.records import (
    TIME_ITEMS,
    Commit,
    EngineLog,
    Failure,
    Forward,
    ForwardShape,
    Generation,
    ScoredAnswer,
    Trace,
)
from dllm_audit.store.database import Store

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Measuring the device takes a second of every command; the tests of it ask for it.
os.environ.setdefault("DLLM_AUDIT_ROOFLINE", "0")
# So does observing transformers beside an autoregressive run.
os.environ.setdefault("DLLM_AUDIT_BESIDE_GENERATE", "0")

ENVIRONMENT = {"device": "cpu", "cpu": "Example CPU", "cores": 2, "threads": 1, "torch": "2.13.0", "platform": "Linux"}


def run_row(run_id: str, **changed: Any) -> dict[str, Any]:
    """A run as it is stored when it begins: autoregressive, tiny-ar on gsm_mini, one request in flight."""
    row: dict[str, Any] = {
        "run_id": run_id,
        "invocation": "invocation-1",
        "content_key": run_id,
        "backend": "ar",
        "provenance": "reference",
        "kind": "autoregressive",
        "fidelity": "paper",
        "model": "tiny-ar",
        "task": "gsm_mini",
        "role": "candidate",
        "concurrency": 1,
        "repeat": 0,
        "settings": {"gen_length": 64, "temperature": 0.0},
        "setting_sources": {"gen_length": "task", "temperature": "default"},
        "manifest": {
            "dllm_audit": "0.1.0",
            "command": "dllm-audit run --backend ar,dualcache --task gsm_mini",
            "environment": ENVIRONMENT,
            "model": {
                "ref": "tiny-ar",
                "provenance": "embedded",
                "family": "llama",
                "parameters": 1_500_000,
                "dtype": "float32",
            },
            "engine": {"mode": "eager", "attention_kernel": "sdpa"},
            "prompts": {
                "num_fewshot": 0,
                "chat_template": False,
                "limit": 6,
                "prompts_sha256": "ab" * 32,
                "documents": 6,
            },
            "warm_up": {"seconds": [0.5, 0.5], "stationary": True, "criterion": "two in a row within 10 %"},
            "notes": [],
        },
        "planned_requests": 6,
    }
    return {**row, **changed}


def diffusion_row(run_id: str, **changed: Any) -> dict[str, Any]:
    """A run of dualcache with a threshold of 0.9 on tiny-mdm."""
    base = run_row(run_id)
    model = {**base["manifest"]["model"], "ref": "tiny-mdm", "family": "llada"}
    return {
        **base,
        "backend": "dualcache",
        "kind": "diffusion",
        "model": "tiny-mdm",
        "settings": {"gen_length": 64, "block_length": 32, "threshold": 0.9, "tokens_per_step": None},
        "setting_sources": {"gen_length": "task", "block_length": "default", "threshold": "option"},
        "manifest": {**base["manifest"], "model": model},
        **changed,
    }


def generation(
    id: str = "0",
    text: str = "#### 5",
    answered: int = 4,
    committed: int = 5,
    forwards: Mapping[str, int] | None = None,
    committing: int = 5,
    positions: int = 14,
    guaranteed: int = 5,
    seconds: Mapping[str, float] | None = None,
    ttft: float | None = 0.1,
    stop: str = "eos",
    prompt_tokens: int = 10,
    trace: Trace | None = None,
) -> Generation:
    """An autoregressive answer of four tokens in half a second, unless something else is said."""
    items = dict.fromkeys(
        ("waiting", "tokenise", "prefill", "denoise", "refresh", "commit", "sampling", "host", "detokenise"), 0.0
    )
    items |= seconds or {
        "tokenise": 0.01,
        "prefill": 0.09,
        "denoise": 0.3,
        "sampling": 0.05,
        "host": 0.04,
        "detokenise": 0.01,
    }
    return Generation(
        id=id,
        prompt_tokens=prompt_tokens,
        output_ids=tuple(range(committed)),
        answer_ids=tuple(range(answered)),
        text=text,
        answered_tokens=answered,
        committed_tokens=committed,
        residual_masks=0,
        forwards=forwards or {"prefill": 1, "denoise": 4},
        query_positions=positions,
        committing_forwards=committing,
        guaranteed_commits=guaranteed,
        seconds={**items, "total": sum(items.values())},
        ttft_seconds=ttft,
        elapsed_seconds=0.0,
        stop=stop,
        trace=trace,
    )


def diffusion_generation(id: str = "0", **changed: Any) -> Generation:
    """A diffusion answer of four tokens, eight committed in four forwards, in a quarter of a second."""
    values: dict[str, Any] = {
        "committed": 8,
        "forwards": {"denoise": 3, "refresh": 1},
        "committing": 4,
        "positions": 42,
        "guaranteed": 6,
        "seconds": {
            "tokenise": 0.01,
            "denoise": 0.12,
            "refresh": 0.06,
            "sampling": 0.03,
            "host": 0.02,
            "detokenise": 0.01,
        },
    }
    return generation(id, **{**values, **changed})


def shape(kind: str, width: int, rows: int, count: int, seconds: float, in_flight: int | None = None) -> ForwardShape:
    """Forwards of one shape; every position is decided and sees twice its width. in_flight: rows at each forward."""
    return ForwardShape(
        kind,
        width,
        rows,
        count,
        seconds,
        decided=count * rows * width,
        keys=2 * count * width,
        in_flight=count * (rows if in_flight is None else in_flight),
    )


def add_run(
    store: Store,
    row: Mapping[str, Any],
    results: Sequence[Generation | Failure],
    correct: Sequence[bool | float] = (),
    *,
    makespan: float | None = None,
    shapes: Sequence[ForwardShape] = (),
    prompts: Sequence[str] = (),
    filters: Sequence[str] = ("strict-match",),
    metric: str = "exact_match",
    responses: Sequence[str] = (),
    status: str = "complete",
) -> str:
    """Store a finished run; `correct` has the score of each document under every filter. Returns its id.

    makespan: the last answer is there after so many seconds. None: no answer knows when it came.
    """
    run_id = str(row["run_id"])
    store.begin_run(row)
    for n, result in enumerate(results):
        if isinstance(result, Generation):
            elapsed = makespan * (n + 1) / len(results) if makespan is not None else None
            result = replace(result, elapsed_seconds=elapsed)  # type: ignore[arg-type]
        prompt = prompts[n] if n < len(prompts) else f"Question {n}\nAnswer:"
        store.add_result(run_id, n, 1, f"key-{n}", n, prompt, f"{n:064x}", result)
        if isinstance(result, Generation) and result.trace is not None:
            store.add_trace(run_id, n, result)
    if makespan is not None:
        log = shapes or (shape("denoise", 1, 1, 30, 1.0),)
        store.add_log(run_id, 1, EngineLog(tuple(log), makespan, 0.01, {}))
    answers = [
        {
            "task": row["task"], "doc_id": n, "filter": filter, "metric": metric, "value": float(value),
            "response": responses[n] if n < len(responses) else "5", "target": "5",
        }
        for filter in filters
        for n, value in enumerate(correct)
    ]  # fmt: skip
    mean = sum(correct) / len(correct) if correct else None
    metrics = [
        {"task": row["task"], "metric": metric, "filter": f, "value": mean, "stderr": 0.1, "documents": len(correct)}
        for f in filters
        if correct
    ]
    store.add_scores(run_id, answers, metrics)
    store.end_run(run_id, status)
    return run_id


def scored_answer(id: str, value: float, error: float = 0.0, seconds: float = 0.25) -> ScoredAnswer:
    """A given answer that was scored: exact from three masked copies, or with an error from 128; and a greedy check."""
    items = dict.fromkeys(TIME_ITEMS, 0.0) | {"score": seconds - 0.05, "host": 0.05, "total": seconds}
    copies = 128 if error else 3
    forwards = {"score": copies + 1}
    return ScoredAnswer(id, 10, 2, value, error, copies, not error, False, forwards, 12 * (copies + 1), items, 0.0)


def add_scored_run(
    store: Store,
    row: Mapping[str, Any],
    documents: Sequence[Sequence[tuple[float, float]]],
    seconds: float = 0.25,
    failed: Sequence[int] = (),
    output_type: str = "multiple_choice",
) -> str:
    """Store a run that scored given answers: (log-likelihood, error) of each answer of each document, the first is right.

    failed: places of the requests that failed. Returns the run's id.
    """
    settings = {} if row["kind"] == "autoregressive" else {"samples": 128, "exact": False}
    planned = sum(map(len, documents))
    sources = dict.fromkeys(settings, "default")
    store.begin_run(
        {
            **row,
            "output_type": output_type,
            "settings": settings,
            "setting_sources": sources,
            "planned_requests": planned,
        }
    )
    ordinal, answers = 0, []
    for doc, values in enumerate(documents):
        places = range(ordinal, ordinal + len(values))
        for choice, (value, error) in enumerate(values):
            result: Any = replace(
                scored_answer(str(ordinal), value, error, seconds), elapsed_seconds=seconds * (ordinal + 1)
            )
            if ordinal in failed:
                result = Failure(str(ordinal), "RequestError", "too long")
            prompt = f"Question {doc}\nAnswer:"
            store.add_result(
                row["run_id"], ordinal, 1, f"key {ordinal}", doc, prompt, f"{doc:064x}", result, " yes", choice
            )
            ordinal += 1
        if not set(places) & set(failed):
            right = float(values[0][0] == max(value for value, _ in values))
            answers.append(
                {
                    "task": row["task"], "doc_id": doc, "filter": "none", "metric": "acc", "value": right,
                    "response": "", "target": "0",
                }
            )  # fmt: skip
    mean = sum(a["value"] for a in answers) / len(answers)
    metric = {"task": row["task"], "metric": "acc", "filter": "none", "value": mean, "stderr": 0.1}
    store.add_scores(row["run_id"], answers, [{**metric, "documents": len(answers)}])
    store.end_run(row["run_id"], "failed" if failed else "complete")
    return str(row["run_id"])


HOSTILE = "<script>alert(1)</script></script><img src=x onerror=alert(2)> \u202ereversed\u202c \x1b[31mred\x07 'quoted' \"twice\""


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard():
    """A shell makes its background jobs deaf to Ctrl-C, and tests that press it must not hang on how they were started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def empty_store(tmp_path: Path) -> Any:
    """A results file without runs, open for writing."""
    with Store.open(tmp_path / "empty.duckdb", write=True) as store:
        yield store


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of six documents: ar (8 tokens/s, 5 right), dualcache at 0.9 (16 tokens/s, 4 right), one token per step.

    The prompt and the answer of document 0 are hostile text; documents 0 and 1 of the diffusion runs are traced.
    """
    path = tmp_path_factory.mktemp("results") / "results.duckdb"
    trace = Trace(
        (Forward("refresh", 18, 0), Forward("denoise", 8, 0), Forward("denoise", 8, 0), Forward("denoise", 8, 0)),
        tuple(Commit(n // 2, 10 + (n * 3) % 8, 300 + n, 1 - n / 20) for n in range(8)),
    )
    prompts = [f"Question: {HOSTILE}\nAnswer:", "Question: 2 + 3?\nAnswer:"]
    with Store.open(path, write=True) as store:
        add_run(
            store, run_row("ar-1"), [generation() for _ in range(6)], [1, 1, 1, 1, 1, 0],
            makespan=3.0, prompts=prompts, filters=("strict-match", "flexible-extract"),
            shapes=(shape("prefill", 10, 1, 6, 0.54), shape("denoise", 1, 1, 24, 1.8)),
        )  # fmt: skip
        add_run(
            store,
            diffusion_row("dual-1"),
            [
                diffusion_generation(text=HOSTILE if n == 0 else "#### 5", stop="length" if n == 5 else "eos", trace=trace if n < 2 else None)
                for n in range(6)
            ],
            [1, 1, 1, 1, 0, 0],
            makespan=1.5, prompts=prompts, filters=("strict-match", "flexible-extract"), responses=["5", "[invalid]"],
            shapes=(shape("refresh", 18, 1, 6, 0.36), shape("denoise", 8, 1, 18, 0.72)),
        )  # fmt: skip
        one = diffusion_row(
            "one-1",
            settings={"gen_length": 64, "block_length": 32, "threshold": None, "tokens_per_step": None},
            setting_sources={"gen_length": "task", "block_length": "default"},
        )
        slow = {"tokenise": 0.01, "denoise": 0.4, "refresh": 0.06, "sampling": 0.05, "host": 0.02, "detokenise": 0.01}
        add_run(
            store, one,
            [
                diffusion_generation(forwards={"denoise": 7, "refresh": 1}, committing=8, positions=74, guaranteed=8, seconds=slow)
                for _ in range(6)
            ],
            [1, 1, 1, 1, 1, 0],
            makespan=3.3, prompts=prompts, filters=("strict-match", "flexible-extract"),
            shapes=(shape("refresh", 18, 1, 6, 0.36), shape("denoise", 8, 1, 42, 2.4)),
        )  # fmt: skip
    return path


@pytest.fixture
def stored(results: Path) -> Any:
    """The three runs of `results`, open for reading."""
    with Store.open(results) as store:
        yield store


@pytest.fixture(scope="session")
def build() -> Callable[..., Any]:
    """The builders of this file, for tests that need a run of their own: build("run_row", ...)."""
    return lambda name, *args, **kwargs: globals()[name](*args, **kwargs)
