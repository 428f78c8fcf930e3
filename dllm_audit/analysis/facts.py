"""Figures as plain JSON values, for `--json`: the same facts as the text, with status and reason."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, Any

from dllm_audit.analysis.baseline import strength_of
from dllm_audit.analysis.labels import label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dllm_audit.analysis.agreement import Agreement
    from dllm_audit.analysis.consumption import Consumption
    from dllm_audit.analysis.figures import Figure
    from dllm_audit.analysis.likelihoods import Likelihoods
    from dllm_audit.analysis.load import LoadFigures, Streaming
    from dllm_audit.analysis.manifests import Difference
    from dllm_audit.analysis.pairing import Comparison
    from dllm_audit.analysis.summary import RunSummary
    from dllm_audit.analysis.text_quality import TextQuality


def figure_facts(figure: Figure) -> dict[str, Any]:
    """One figure with everything that belongs to it; empty words are left out."""
    facts = dataclasses.asdict(figure)
    return {name: value for name, value in facts.items() if value != ""}


def likelihood_facts(found: Likelihoods | None) -> dict[str, Any] | None:
    """How sure the log-likelihoods of a run are; None for a run that decoded text."""
    if found is None:
        return None
    return {
        "exact": found.exact,
        "estimated": found.estimated,
        "samples": found.samples,
        "standard_error": figure_facts(found.standard_error),
        "total": figure_facts(found.total),
        "undecided": {metric: figure_facts(figure) for metric, figure in found.undecided.items()},
    }


def text_facts(found: TextQuality | None) -> dict[str, Any] | None:
    """How the answers of a run read; None for a run that scored given answers."""
    if found is None:
        return None
    code = found.code
    return {
        "adjacent_repeats": figure_facts(found.adjacent_repeats),
        "unique_bigrams": figure_facts(found.unique_bigrams),
        "degenerate": figure_facts(found.degenerate),
        "degenerate_kinds": dict(found.degenerate_kinds),
        "code": None
        if code is None
        else {
            "programs": code.programs,
            "syntax_errors": figure_facts(code.syntax_errors),
            "undefined_names": figure_facts(code.undefined_names),
            "names": list(code.names),
        },
        "perplexity": [
            {
                "reference": each.reference,
                "figure": figure_facts(each.figure),
                "answers": each.answers,
                "left_out": each.left_out,
            }
            for each in found.perplexities
        ],
    }


def consumption_facts(found: Consumption) -> dict[str, Any]:
    """Memory at its peak and energy."""
    names = ("peak_memory", "energy", "idle_power", "per_token", "per_correct")
    return {
        **{name: figure_facts(getattr(found, name)) for name in names},
        "memory_of": found.memory_of,
        "counter": found.counter,
    }


def agreement_facts(found: Agreement) -> dict[str, Any]:
    """How far two runs give the same tokens."""
    return {"tokens": figure_facts(found.tokens), "answers": figure_facts(found.answers)}


def run_facts(summary: RunSummary) -> dict[str, Any]:
    """Everything about one run."""
    run = summary.run
    return {
        "run_id": summary.run_id,
        "label": label(run),
        **{
            name: _plain(run[name])
            for name in (
                "invocation", "backend", "provenance", "kind", "fidelity", "model", "task", "output_type", "role", "concurrency", "repeat",
                "status", "sittings", "planned_requests", "started_at", "ended_at",
            )
        },
        "settings": run["settings"],
        "setting_sources": run["setting_sources"],
        "manifest": run["manifest"],
        "requests": summary.stored,
        "answered": summary.answered,
        "failed": summary.failed,
        "failures": [dataclasses.asdict(kind) for kind in summary.failures],
        "prompt_tokens": summary.prompt_tokens,
        "answered_tokens": summary.answered_tokens,
        "answered_characters": summary.answered_characters,
        "committed_tokens": summary.committed_tokens,
        "residual_masks": summary.residual_masks,
        "forwards": dict(summary.forwards),
        "nfe": summary.nfe,
        "committing_forwards": summary.committing_forwards,
        "query_positions": summary.query_positions,
        "figures": {
            name: figure_facts(getattr(summary, name))
            for name in (
                "makespan_seconds", "throughput", "requests_per_second", "characters_per_second", "correct_per_second", "committed_per_forward",
                "tokens_per_forward", "positions_per_forward", "batch_tax", "guaranteed_share", "spared_forwards", "truncation_rate",
            )
        },
        "latency": {f"p{p:g}": figure_facts(f) for p, f in summary.latency.items()},
        "ttft": {f"p{p:g}": figure_facts(f) for p, f in summary.ttft.items()},
        "load": load_facts(summary.load),
        "streaming": streaming_facts(summary.streaming),
        "seconds": {share.item: share.seconds for share in summary.seconds},
        "outside_seconds": summary.outside_seconds,
        "share_of_bound": summary.bound.as_dict(),
        "strength": None if (strength := strength_of(summary)) is None else strength.as_dict(),
        "metrics": [
            {
                "metric": m.name,
                "filter": m.filter,
                "documents": m.documents,
                "figure": figure_facts(m.figure),
                "extraction_failures": None if m.extraction_failures is None else figure_facts(m.extraction_failures),
            }
            for m in summary.metrics
        ],
        "text_quality": text_facts(summary.text),
        "consumption": consumption_facts(summary.consumption),
        "likelihoods": likelihood_facts(summary.likelihoods),
        "conventions": [
            {"id": c.id, "formula": c.formula, "rate": figure_facts(c.rate), "inflation": c.inflation, "hides": c.hides}
            for c in summary.conventions
        ],
        "notes": list(summary.notes),
    }  # fmt: skip


def load_facts(load: LoadFigures) -> dict[str, Any]:
    """How requests came and what was in flight. Ramp, drain and idle are shares of the makespan."""
    return {
        "kind": load.kind,
        "arrival_rate": load.arrival_rate,
        "rows": load.rows,
        "batches": [dataclasses.asdict(batch) for batch in load.batches],
        **{name: figure_facts(getattr(load, name)) for name in ("mean_rows", "ramp", "drain", "idle")},
        "queue": {f"p{p:g}": figure_facts(f) for p, f in load.queue.items()},
        "compiled_graphs": load.compiled_graphs,
    }


def streaming_facts(streaming: Streaming) -> dict[str, Any]:
    """How answers reached a client."""
    return {
        "delivered": {f"p{p:g}": figure_facts(f) for p, f in streaming.delivered.items()},
        "blocks": streaming.blocks,
        "block_latency": {f"p{p:g}": figure_facts(f) for p, f in streaming.block_latency.items()},
        "mean_block_latency": figure_facts(streaming.mean_block_latency),
        "blocks_per_second": figure_facts(streaming.blocks_per_second),
    }


def comparison_facts(comparison: Comparison) -> dict[str, Any]:
    """Everything about two runs on the same documents."""
    return {
        "candidate": comparison.candidate.run_id,
        "baseline": comparison.baseline.run_id,
        "documents": comparison.documents,
        "unpaired": comparison.unpaired,
        "speed": figure_facts(comparison.speed),
        "speed_of": comparison.candidate.pace.unit,
        "speed_verdict": comparison.speed_verdict,
        "time": figure_facts(comparison.time),
        "characters": figure_facts(comparison.characters),
        "length": figure_facts(comparison.length),
        "length_parity": comparison.length_parity,
        "control": comparison.control,
        "sequential": None if comparison.stopped is None else comparison.stopped.as_dict(),
        "baseline_strength": None if comparison.strength is None else comparison.strength.as_dict(),
        "decomposition": comparison.decomposition.as_dict(),
        "qualities": [
            {
                "metric": q.metric,
                "filter": q.filter,
                "decides": q is comparison.quality,
                "documents": q.documents,
                "candidate": q.candidate,
                "baseline": q.baseline,
                "only_candidate": q.counts.only_candidate if q.counts else None,
                "only_baseline": q.counts.only_baseline if q.counts else None,
                "difference": figure_facts(q.difference),
                "mcnemar_p": q.p_value,
                "margin": q.margin,
                "decidable_margin": q.decidable,
                "needed_documents": q.needed,
                "verdict": q.verdict,
                "sentence": q.sentence,
            }
            for q in comparison.qualities
        ],
        "treatment": [_difference(d) for d in comparison.manifests.treatment],
        "nuisance": [_difference(d) for d in comparison.manifests.nuisance],
        "drift": [_difference(d) for d in comparison.manifests.drift],
        "attributable": comparison.attributable,
        "identical_answers": comparison.identical,
        "agreement": agreement_facts(comparison.agreement),
        "unfinished": comparison.unfinished,
        "caveats": list(comparison.caveats),
        "faster_and_not_worse": comparison.faster_and_not_worse,
        "verdict": comparison.verdict,
    }


def request_facts(row: Mapping[str, Any]) -> dict[str, Any]:
    """One stored request."""
    return {name: _plain(value) for name, value in row.items() if name != "run_id"}


def _difference(difference: Difference) -> dict[str, Any]:
    return dataclasses.asdict(difference)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.date) else value
