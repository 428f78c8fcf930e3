"""What a claim file may say: version 1.

A claim is one published figure with everything a reader needs to judge it. A field that cannot be filled
holds one of four different non-answers (`Gap`), never an empty place: a source that is silent is not the
same as a source that nobody could open. Figures that would otherwise hide in prose (a second pair of
numbers, a stronger rival, the parts of an estimate) have fields: the questions and the traps read fields,
never the notes.
"""

from __future__ import annotations

import re
from datetime import date as calendar_date
from enum import StrEnum
from math import isfinite
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    field_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError


class Gap(StrEnum):
    """Why a field has no answer. The four are never exchanged for one another."""

    NOT_STATED = "not stated"
    """The part of the source named in the locator was read and does not say."""
    UNREADABLE = "unreadable"
    """The primary source could not be opened, so its silence proves nothing."""
    NOT_RECORDED = "not recorded"
    """The source says it, but it was not noted when read."""
    NOT_APPLICABLE = "not applicable"
    """The question does not arise for this kind of claim."""


_LOOKALIKES = {
    "": Gap.NOT_STATED,
    "-": Gap.NOT_STATED,
    "?": Gap.NOT_STATED,
    "unknown": Gap.NOT_STATED,
    "unspecified": Gap.NOT_STATED,
    "not given": Gap.NOT_STATED,
    "not read": Gap.UNREADABLE,
    "not readable": Gap.UNREADABLE,
    "primary not read": Gap.UNREADABLE,
    "not noted": Gap.NOT_RECORDED,
    "tbd": Gap.NOT_RECORDED,
    "todo": Gap.NOT_RECORDED,
    "n/a": Gap.NOT_APPLICABLE,
    "na": Gap.NOT_APPLICABLE,
}


def _told(text: str) -> str:
    """A text, or the Gap that it spells. What only resembles a Gap is refused: it would pass as an answer."""
    if text in list(Gap):
        return Gap(text)
    plain = " ".join(text.replace("_", " ").casefold().split())
    meant = _LOOKALIKES.get(plain) or next((gap for gap in Gap if plain.startswith(gap)), None)
    if meant:
        raise ValueError(f"is {text!r}, which resembles a non-answer; write '{meant}' alone, and the rest in notes")
    return text


def _one_of(*words: str) -> AfterValidator:
    def check(text: str) -> str:
        if text in list(Gap):
            return Gap(text)
        if text not in words:
            allowed = ", ".join(repr(word) for word in (*words, *map(str, Gap)))
            raise ValueError(f"is {text!r}; it must be one of {allowed}")
        return text

    return AfterValidator(check)


def _year(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _date(text: str) -> str:
    if text in list(Gap):
        return Gap(text)
    if not re.fullmatch(r"[0-9]{4}(-[0-9]{2}){0,2}", text):
        raise ValueError(f"is {text!r}; write a date as 2025, 2025-05 or 2025-05-28")
    year, month, day = (*map(int, text.split("-")), 1, 1)[:3]
    try:
        calendar_date(year, month, day)
    except ValueError:
        raise ValueError(f"is {text!r}, which is not in the calendar") from None
    return text


def _finite(number: float) -> float:
    if not isfinite(number):
        raise ValueError("is not a finite number")
    return number


def _none(value: Any) -> Any:
    if value is None:
        raise ValueError("is empty; write 'none' when the source makes none")
    return None if value == "none" else value


def _on_one_line(text: str) -> str:
    if "\n" in text or "\t" in text:
        raise ValueError("has a line end or a tab in it; write it as one line")
    return text


def _one_name(text: str) -> str:
    if "," in text:
        raise ValueError("has a comma in it; a recipe names one of each, and another claim or mechanism the next")
    if text.startswith("-"):
        raise ValueError(f"is {text!r}, which a command would take for an option")
    return text


Prose = Annotated[str, Field(min_length=1)]
Text = Annotated[Prose, AfterValidator(_on_one_line)]
Name = Annotated[Text, AfterValidator(_one_name)]
Told = Annotated[Text, AfterValidator(_told)]
Date = Annotated[str, BeforeValidator(_year), AfterValidator(_date)]
YesNo = Annotated[str, _one_of("yes", "no")]
Included = Annotated[str, _one_of("yes", "no", "partly")]
Identifier = Annotated[str, Field(pattern=r"^[a-z0-9]+(?:[.-][a-z0-9]+)*$")]
Number = Annotated[float, Field(strict=True), AfterValidator(_finite)]
Count = Annotated[int, Field(strict=True, ge=1)]


class Strict(BaseModel):
    """Unknown fields are errors, and a claim that was read does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Section(Strict):
    """A group of fields. A non-answer in place of the group stands for each of its required fields."""

    @model_validator(mode="before")
    @classmethod
    def _one_gap_for_all(cls, data: Any) -> Any:
        if not isinstance(data, str):
            return data
        if data not in list(Gap):
            allowed = ", ".join(repr(str(gap)) for gap in Gap)
            raise ValueError(f"is {data!r}; write a group of fields, or one of {allowed} for all of them")
        return {name: data for name, field in cls.model_fields.items() if field.is_required()}


class Stated(Strict):
    """A value that the source does not give as one plain number.

    `qualifier` says which figures go with it: `about` has `number`; `range` has `low` and `high`; `at
    least` and `above` have `low`; `up to` and `below` have `high`; `several` has `parts`, named numbers;
    `words` has none. `wording` is how the source puts it.
    """

    qualifier: Literal["about", "range", "at least", "above", "up to", "below", "several", "words"]
    number: Number | None = None
    low: Number | None = None
    high: Number | None = None
    parts: dict[str, Number] | None = None
    wording: Text

    @model_validator(mode="after")
    def _figures_fit_the_qualifier(self) -> Self:
        wanted = {
            "about": {"number"},
            "range": {"low", "high"},
            "at least": {"low"},
            "above": {"low"},
            "up to": {"high"},
            "below": {"high"},
            "several": {"parts"},
            "words": set(),
        }[self.qualifier]
        given = {name for name in ("number", "low", "high", "parts") if getattr(self, name) is not None}
        if given != wanted:
            need, got = " and ".join(sorted(wanted)) or "no figure", " and ".join(sorted(given)) or "none"
            raise ValueError(f"with the qualifier {self.qualifier!r} takes {need}, but has {got}")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"is a range from {self.low:g} to {self.high:g}, which has no width")
        return self


def _form(value: Any) -> str:
    if isinstance(value, (dict, Stated)):
        return "stated"
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else "gap"


Quantity = Annotated[
    Annotated[Number, Tag("number")]
    | Annotated[Stated, Tag("stated")]
    | Annotated[Gap, Field(strict=False), Tag("gap")],
    Discriminator(_form),
]
"""A plain number, a `Stated` value, or a `Gap`."""


class Source(Strict):
    """Where the claim stands, and how much of that could be read."""

    title: Text
    identifier: Text
    locator: Text
    version: Text | None = None
    primary_read: Literal["yes", "partly", "abstract only", "no"]
    value_from: Literal["primary", "secondary", "source note"]


class Rival(Strict):
    """A figure of a stronger baseline than the one that the claim was measured against."""

    model: Text
    value: Quantity
    unit: Text
    where: Text


class Baseline(Strict):
    """What the claim is measured against. `unit` is the unit of `value` where it differs from the claim's."""

    model: Told
    value: Quantity
    unit: Text | None = None
    same_gpu: YesNo
    same_engine: YesNo
    engine: Told
    devices: Quantity
    kv_cache: YesNo
    synthetic: YesNo
    share_of_bound: Number | None = None
    """Its speed as a share, 0 to 1, of what the hardware allows it, where somebody worked that out."""
    stronger: Rival | None = None


class Hardware(Section):
    device: Told
    count: Quantity


class Decode(Section):
    """The settings of the decoder, in the words that the papers share."""

    method: Told
    cache: Told
    block_length: Quantity
    steps: Quantity
    schedule: Annotated[str, _one_of("fixed", "threshold", "adaptive", "autoregressive")]
    """What ends a step: a number set beforehand, a confidence threshold, or another rule."""
    threshold: Quantity
    tokens_per_step: Quantity


class Quality(Section):
    """The quality that goes with the speed; accuracies in percent, other scores as `metric` names them."""

    benchmark: Told
    documents: Count | None = None
    """How many documents the benchmark has, where that is known."""
    documents_scored: Count | None = None
    """How many of them the score is over, where that is known."""
    shots: Quantity
    metric: Told
    at_speed: Quantity
    reference: Quantity
    reference_is: Told
    same_runs: YesNo
    """Do the quality and the speed come from the same settings and tasks?"""
    claimed_margin_points: Quantity | None = None
    """The loss, in points, that the source says it stays within."""


class Counts(Section):
    """Which tokens enter a rate beside those of the answer."""

    prompt: Annotated[str, _one_of("yes", "no", "suspected")]
    padding: Annotated[str, _one_of("yes", "no", "suspected")]


class TimeIncludes(Section):
    prefill: Included
    commit_pass: Included
    """The forward per block that writes the cache, or the refresh of an approximate cache."""
    fixed_overhead: Included
    overhead_seconds: Annotated[Number, Field(ge=0)] | None = None
    """Seconds a request that the source lists apart from its figure."""


class Assembly(Strict):
    """A figure that was put together from separately measured parts, not measured as a whole."""

    parts: Annotated[list[Text], Field(min_length=1)]
    left_out: list[Text] = []


class Figure(Strict):
    """Another figure that bears on the claim.

    `relation`: `same` gives the very thing claimed once more, directly or as a pair with a baseline, so it
    must agree; `part` is one task or setting of what the claim sums up or picks from, in the claim's unit;
    `context` is neither.
    """

    what: Text
    value: Number
    unit: Text
    baseline_value: Number | None = None
    relation: Literal["same", "part", "context"]
    where: Text


class AnswerLength(Strict):
    """How long the answers are beside those of the baseline. A rate is easily had from answers that stop early."""

    compared: Literal["shorter", "equal", "longer"]
    ours: Number | None = None
    baseline: Number | None = None
    unit: Literal["tokens", "characters"] = "tokens"
    where: Text


class Checkpoint(Strict):
    """Whose weights the figure belongs to, where they are not those of the model that it is quoted for."""

    relation: Literal["distilled", "fine-tuned", "quantised", "other"]
    what: Text
    where: Text


class PrefixSharing(Strict):
    """Whether requests shared the work on a common beginning of their prompts, such as few-shot examples."""

    ours: YesNo
    baseline: YesNo


class Experts(Strict):
    """The routed experts of a mixture, and how a figure counts the reading of their weights."""

    total: Count
    per_token: Count
    reads_counted: Annotated[str, _one_of("experts of one token", "distinct experts", "all experts")]

    @model_validator(mode="after")
    def _a_token_chooses_among_them(self) -> Self:
        if self.per_token > self.total:
            raise ValueError(f"has {self.per_token} experts per token of only {self.total}")
        return self


class Contradiction(Strict):
    """Another claim of the registry that this one cannot be true beside. Written on one of the two only."""

    claim: Identifier
    finding: Prose


class Replication(Strict):
    """Somebody else's measurement of the same thing."""

    who: Text
    value: Quantity
    unit: Text
    where: Text


Settings = dict[str, Text | int | float | bool]


class Expectation(Strict):
    """Where the quantity of a recipe must lie for the claim to hold: from `low` to `high`, either end open.

    Ratios are plain numbers (2 is twice), differences of quality are percentage points, shares lie in 0..1.
    `wording` is the rule as a reader shall see it.
    """

    low: Number | None = None
    high: Number | None = None
    wording: Text

    @model_validator(mode="after")
    def _it_can_be_met_and_missed(self) -> Self:
        if self.low is None and self.high is None:
            raise ValueError("needs low, high or both: every result would meet it")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"goes from {self.low:g} down to {self.high:g}, which nothing can meet")
        return self


RATIOS = ("speed ratio", "time ratio", "tokens per forward ratio")
"""Quantities that are 1 where both sides are alike."""
DIFFERENCES = ("quality difference",)
"""Quantities that are 0 where both sides are alike."""
ABSOLUTES = ("throughput", "tokens per forward", "quality")
"""Quantities of the candidate alone."""


class Recipe(Strict):
    """What to run to replicate a claim, and how to judge it, in the words of `dllm-audit run`.

    The candidate is `backend`, `model`, `settings`. The reference, where there is one, is `baseline`, by default
    with the candidate's model and those of its settings that the baseline has; `baseline_settings` replace them.
    `quantity` is what is judged: `speed ratio` (answered tokens per second, candidate over reference), `time ratio`
    (seconds per document, reference over candidate), `tokens per forward ratio` (committed tokens per forward that
    may commit), `quality difference` (candidate minus reference, in points), `agreement` (share of the reference's
    answer tokens that the candidate has in the same place), or of the candidate alone `throughput` (tokens/s),
    `tokens per forward`, `quality` (percent). Without `expect` the claim's own value is the measure.
    """

    backend: Name
    model: Name
    task: Name
    baseline: Name | None = None
    baseline_model: Name | None = None
    baseline_settings: Settings | None = None
    num_fewshot: Annotated[int, Field(ge=0)] | None = None
    limit: Count | None = None
    """Documents to decode; all of the task without it."""
    concurrency: Count = 1
    settings: Settings = {}
    quantity: (
        Literal[
            "speed ratio",
            "time ratio",
            "tokens per forward ratio",
            "quality difference",
            "agreement",
            "throughput",
            "tokens per forward",
            "quality",
        ]
        | None
    ) = None
    expect: Expectation | None = None
    margin_points: Annotated[Number, Field(gt=0)] | None = None
    """The loss of quality, in points, that the claim allows itself; decides whether faster is also not worse."""
    at_least_tokens_per_forward: Annotated[Number, Field(gt=0)] | None = None
    """The candidate must commit at least this share of the reference's tokens per forward, or nothing is judged."""

    @property
    def is_embedded(self) -> bool:
        """Whether every model of it ships with the package."""
        from dllm_audit.models.tiny import EMBEDDED_MODELS

        return {self.model, self.baseline_model or self.model} <= EMBEDDED_MODELS.keys()

    @model_validator(mode="after")
    def _a_comparison_has_two_sides(self) -> Self:
        if self.baseline is None and (self.baseline_model or self.baseline_settings is not None):
            raise ValueError("has a model or settings of a baseline, but no baseline; name its backend")
        if self.baseline is None and self.quantity and self.quantity not in ABSOLUTES:
            raise ValueError(f"judges the {self.quantity}, which needs a baseline to compare with")
        same_model = (self.baseline_model or self.model) == self.model
        same_settings = self.baseline_settings is None or self.baseline_settings == self.settings
        if self.baseline == self.backend and same_model and same_settings and self.quantity not in ABSOLUTES:
            raise ValueError("compares a decoder with itself; give the baseline settings of its own")
        return self


class Mechanism(Recipe):
    """A recipe with other models than the claim's that shows the cause behind it, never its speed.

    With the embedded models it runs anywhere in minutes. `shows` is what it shows, as one sentence; `quantity` and
    `expect` are required.
    """

    shows: Prose

    @model_validator(mode="after")
    def _says_what_is_expected(self) -> Self:
        if self.quantity is None or self.expect is None:
            raise ValueError("needs both quantity and expect: a mechanism has no published value to go by")
        return self


class Claim(Strict):
    """One published figure. What has no default is required; a `Gap` says why there is no answer."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    id: Identifier
    statement: Prose
    """What is claimed, in one sentence."""
    system: Text
    model: Told
    vendor: Text
    reported_by: Literal["vendor", "authors", "third-party"]
    date: Date
    source: Source
    kind: Literal["throughput", "speedup", "latency", "quality", "perplexity", "acceptance", "artifact"]
    metric: Text
    value: Quantity
    unit: Told
    aggregate: Annotated[str, _one_of("single setting", "mean", "median", "best")]
    """What the value is of: one setting, a mean or median over tasks, or the best of several settings."""
    best_of: Literal["tasks", "settings"] | None = None
    """What the best was taken from, where `aggregate` is `best` and that is known."""
    rate_of: Annotated[str, _one_of("one request", "all requests", "one device")]
    """What a rate is counted over: one request, everything in flight, or divided by the devices."""
    status: Literal["measured", "derived", "estimated", "modelled"]
    assembly: Assembly | None = None
    baseline: Annotated[Baseline | None, BeforeValidator(_none)]
    hardware: Hardware
    precision: Told
    concurrency: Quantity
    prompt_tokens: Quantity
    output_tokens: Quantity
    decode: Decode
    quality: Annotated[Quality | None, BeforeValidator(_none)]
    """None when the source says that no quality was measured at this speed."""
    counts: Counts
    time_includes: TimeIncludes
    answer_length: AnswerLength | None = None
    checkpoint: Checkpoint | None = None
    prefix_sharing: PrefixSharing | None = None
    experts: Experts | None = None
    figures: list[Figure] = []
    contradicts: list[Contradiction] = []
    replications: list[Replication] = []
    recipe: Recipe | None = None
    """Replicates the claim itself, with the checkpoints that it is about."""
    mechanisms: list[Mechanism] = []
    """Show its causes with other models, above all the embedded ones."""
    notes: Prose | None = None

    @field_serializer("baseline", "quality", mode="wrap")
    def _none_is_a_word(self, section: Strict | None, serialize: SerializerFunctionWrapHandler) -> Any:
        return "none" if section is None else serialize(section)

    @property
    def about_speed(self) -> bool:
        """Whether the four questions about timing arise at all."""
        return self.kind in ("throughput", "speedup", "latency")

    @model_validator(mode="after")
    def _speedup_has_a_baseline(self) -> Self:
        if self.kind == "speedup" and self.baseline is None:
            raise PydanticCustomError("claim", "is 'none', but a speed-up is over something", {"field": "baseline"})
        return self

    @model_validator(mode="after")
    def _an_unread_source_is_not_silent(self) -> Self:
        if self.source.primary_read == "no":
            silent = next(_paths_of(self, Gap.NOT_STATED), None)
            if silent:
                raise PydanticCustomError(
                    "claim",
                    "is 'not stated', but the primary source was not read; write 'unreadable'",
                    {"field": silent},
                )
        return self


def _paths_of(model: BaseModel, gap: Gap, prefix: str = "") -> Any:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _paths_of(value, gap, f"{prefix}{name}.")
        elif value is gap:
            yield prefix + name


def bounds_of(quantity: Quantity) -> tuple[float | None, float | None]:
    """What a quantity allows, from and to; None where it is open or says nothing."""
    if isinstance(quantity, Gap):
        return None, None
    if isinstance(quantity, Stated):
        return (quantity.number, quantity.number) if quantity.number is not None else (quantity.low, quantity.high)
    return quantity, quantity


def number_of(quantity: Quantity | None) -> float | None:
    """The one number that a quantity comes to: plain, about, or the end of an open range; else None."""
    if isinstance(quantity, Stated):
        ends = [end for end in (quantity.number, quantity.low, quantity.high) if end is not None]
        return ends[0] if len(ends) == 1 else None
    return None if quantity is None or isinstance(quantity, Gap) else quantity
