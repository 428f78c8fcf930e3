"""`dllm-audit front`: which configurations are worth having, and what each decoder takes at equal accuracy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.cli.options import database_option, json_option
from dllm_audit.cli.terminal import say, say_json
from dllm_audit.errors import UsageError

if TYPE_CHECKING:
    from dllm_audit.analysis.front import Configuration, Front, Method
    from dllm_audit.statistics.pareto import FrontPlace
    from dllm_audit.statistics.proportions import RateInterval
    from dllm_audit.statistics.throughput import RatioInterval


@click.command(epilog="Example: dllm-audit front --task gsm_mini --within 0.2")
@click.option("--task", help="Of this task [default: that of the newest run].")
@click.option(
    "--accuracy",
    type=float,
    metavar="A",
    help="Compare latencies at this accuracy, in points (80) or as a share (0.8) [default: that of the autoregressive run].",
)
@click.option("--within", type=float, metavar="SECONDS", help="Also goodput: requests answered within so many seconds.")
@database_option
@json_option
def command(task: str | None, accuracy: float | None, within: float | None, database: Path, as_json: bool) -> None:
    """Speed and quality of every configuration of a task together, from runs with one request at a time.

    Which configurations another one beats in both (Pareto), what each decoder takes per request at equal accuracy, on the
    line between its measured settings, and its accuracy under parallelism (AUP). All on the documents that every
    configuration answered; the newest run of each counts.
    """
    from dllm_audit.analysis.front import front_of
    from dllm_audit.store.database import Store

    if within is not None and not 0 < within < float("inf"):
        raise UsageError(f"--within {within:g}: a latency bound lies above 0 seconds.")
    if accuracy is not None and not 0 <= accuracy <= 100:
        raise UsageError(f"--accuracy {accuracy:g}: an accuracy lies between 0 and 100 points.")
    share = None if accuracy is None else accuracy if accuracy <= 1 else accuracy / 100
    with Store.open(database) as store:
        found = front_of(store, task, share)
    if as_json:
        say_json(_facts(found, within), indent=2)
    else:
        say(_text(found, within))


def _text(front: Front, within: float | None) -> str:
    from dllm_audit.analysis.pairing import SINGLE_RUN_NOISE
    from dllm_audit.analysis.tables import aligned

    head = ["configuration", "accuracy", "tokens/s", "s/request", "tokens/forward"]
    head += [] if within is None else [f"within {within:g} s", "of them/s"]
    rows = [[*head, "place"]]
    rows += [[*_figures(p, within), _place(place)] for p, place in zip(front.points, front.places, strict=True)]
    lines = [
        f"{front.task}: {len(front.points)} configurations on the {front.documents} documents that all of them answered"
        + (f" (of {front.asked})" if front.asked > front.documents else "")
        + f", {front.metric}",
        "",
        aligned(rows, right=set(range(1, len(head)))),
        "Intervals are 95 %, over documents of one run each; a place counts speeds within "
        f"{SINGLE_RUN_NOISE:.2f}x of each other as equal.",
        "",
        f"Seconds per request at {front.target:.1%} accuracy ({front.target_of})",
        aligned([_latency(method) for method in front.methods], right={1}, indent="  "),
        "",
        f"Accuracy under parallelism (AUP; best accuracy {front.best_accuracy:.1%}; it counts forwards, not seconds)",
        aligned([_parallelism(method) for method in front.methods], right={1}, indent="  "),
    ]
    if front.left_out:
        lines += ["", "Left out"]
        for reason, count in Counter(reason for _, reason in front.left_out).items():
            lines.append(f"  {count} run{'s' if count > 1 else ''}: {reason}")
    return "\n".join(lines)


def _figures(point: Configuration, within: float | None) -> list[str]:
    accuracy, speed = point.accuracy, point.tokens_per_second
    found = [
        point.name,
        _ranged(accuracy.rate, accuracy.low, accuracy.high, "{:.3f}"),
        _ranged(speed.ratio, speed.low, speed.high, "{:.0f}"),
        f"{point.mean_seconds:.3f}",
        f"{point.tokens_per_forward:.2f}",
    ]
    if within is not None:
        served = point.goodput(within)
        found.append(_ranged(served.share.ratio, served.share.low, served.share.high, "{:.0%}"))
        found.append(_ranged(served.per_second.ratio, served.per_second.low, served.per_second.high, "{:.2f}"))
    return found


def _place(place: FrontPlace) -> str:
    if place.verdict != "open":
        return place.verdict
    return "open: beaten by value alone" if place.dominated_by else "open: on the front by value"


def _ranged(value: float, low: float | None, high: float | None, form: str) -> str:
    if low is None or high is None:
        return form.format(value)
    return f"{form.format(value)} ({form.format(low)} to {form.format(high)})"


def _latency(method: Method) -> tuple[str, str, str]:
    found = method.latency
    if found.seconds is None or found.between is None:
        return method.name, "none", found.reason
    words = found.reason
    if found.low is not None and found.high is not None:
        words = f"{found.low:.3f} to {found.high:.3f} (95 %, over documents)"
    first, second = found.between
    line = f"as {second}" if first == second else f"between {first} and {second}"
    return method.name, f"{found.seconds:.3f}", f"{words}; {line}"


def _parallelism(method: Method) -> tuple[str, str, str]:
    if method.aup.value is None:
        return method.name, "none", method.aup.reason
    return method.name, f"{method.aup.value:.1f}", f"from {method.settings} setting" + "s" * (method.settings > 1)


def _facts(front: Front, within: float | None) -> dict[str, Any]:
    return {
        "task": front.task,
        "metric": front.metric,
        "documents": front.documents,
        "asked": front.asked,
        "accuracy": front.target,
        "accuracy_of": front.target_of,
        "configurations": [_point_facts(p, place, within) for p, place in zip(front.points, front.places, strict=True)],
        "methods": [
            {
                "name": method.name,
                "settings": method.settings,
                "seconds_at_accuracy": vars(method.latency),
                "aup": {"value": method.aup.value, "reason": method.aup.reason, "points": len(method.aup.used)},
            }
            for method in front.methods
        ],
        "left_out": [{"run": name, "reason": reason} for name, reason in front.left_out],
    }


def _point_facts(point: Configuration, place: FrontPlace, within: float | None) -> dict[str, Any]:
    served = None if within is None else point.goodput(within)
    return {
        "name": point.name,
        "run_id": point.summary.run_id,
        "accuracy": _interval(point.accuracy, point.accuracy.rate),
        "tokens_per_second": _interval(point.tokens_per_second, point.tokens_per_second.ratio),
        "seconds_per_request": point.mean_seconds,
        "tokens_per_forward": point.tokens_per_forward,
        "place": place.verdict,
        "dominated_by": list(place.dominated_by),
        "goodput": None
        if served is None
        else {
            "bound_seconds": within,
            "share": _interval(served.share, served.share.ratio),
            "per_second": _interval(served.per_second, served.per_second.ratio),
        },
    }


def _interval(found: RateInterval | RatioInterval, value: float) -> dict[str, float | None]:
    return {"value": value, "low": found.low, "high": found.high}
