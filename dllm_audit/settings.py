"""Decode settings: one spelling on the command line, in YAML, JSON and the database.

`SETTINGS` declares the settings of the core. A backend says which of them it understands, with its defaults, and may
declare settings of its own. Whatever a backend does not declare is an error, never silently ignored.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dllm_audit.errors import SettingError, UsageError, did_you_mean


@dataclass(frozen=True)
class Setting:
    """One decode setting. `minimum` and `maximum` are inclusive; `open_minimum` excludes the bound itself."""

    name: str
    type: type
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    open_minimum: bool = False

    def parse(self, value: Any) -> Any:
        """Turn `value` (a string from the command line, or a JSON value) into this setting's type, or raise."""
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        parsed = self._convert(value)
        if self.choices and parsed not in self.choices:
            raise SettingError(
                f"Setting {self.name}={value!r} is not one of {', '.join(self.choices)}. "
                + did_you_mean(str(value), self.choices)
            )
        if self.minimum is not None and (parsed < self.minimum or (self.open_minimum and parsed == self.minimum)):
            raise SettingError(
                f"Setting {self.name}={value} is too small: it must be "
                f"{'above' if self.open_minimum else 'at least'} {self.minimum:g}."
            )
        if self.maximum is not None and parsed > self.maximum:
            raise SettingError(f"Setting {self.name}={value} is too large: it must be at most {self.maximum:,.12g}.")
        return parsed

    def _convert(self, value: Any) -> Any:
        wrong = SettingError(f"Setting {self.name}={value!r} is not {_TYPE_NAMES[self.type]}. {self.help}")
        if self.type is bool:
            if isinstance(value, bool):
                return value
            if str(value).lower() in ("true", "yes", "on", "1"):
                return True
            if str(value).lower() in ("false", "no", "off", "0"):
                return False
            raise wrong
        if isinstance(value, bool):
            raise wrong
        if self.type is str:
            return str(value)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise wrong from None
        if not math.isfinite(number):
            raise wrong
        if self.type is int:
            if number != int(number):
                raise wrong
            # Through a float only where it was written as one: 2**53 + 1 is a whole number too.
            return int(value) if isinstance(value, int) or str(value).lstrip("+-").isdigit() else int(number)
        return number


_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}

#: Hours of one answer on any device; a number above it is a slip of the keyboard.
MOST_STEPS = 1_000_000
MOST_SAMPLES = 1_000_000
MOST_BATCH = 65_536

SETTINGS: tuple[Setting, ...] = (
    Setting("gen_length", int, "Positions to generate.", minimum=1),
    Setting("block_length", int, "Positions per block; blocks are decoded left to right.", minimum=1),
    Setting(
        "steps",
        int,
        "Denoising steps over all blocks; divides by the number of blocks.",
        minimum=1,
        maximum=MOST_STEPS,
    ),
    Setting("steps_per_block", int, "Denoising steps of each block.", minimum=1, maximum=MOST_STEPS),
    Setting("tokens_per_step", int, "Tokens committed per step (fixed-k).", minimum=1),
    Setting(
        "threshold",
        float,
        "Commit every token whose confidence reaches this; outranks the steps.",
        minimum=0,
        maximum=1,
    ),
    Setting(
        "factor",
        float,
        "Commit the n most confident while (n+1)(1-c) < factor; outranks the threshold.",
        minimum=0,
        open_minimum=True,
    ),
    Setting(
        "entropy_bound",
        float,
        "Commit the surest while their entropies (nats), all but the highest, add up to at most this.",
        minimum=0,
    ),
    Setting("temperature", float, "0 is greedy; above 0 adds Gumbel noise per request.", minimum=0, maximum=1e6),
    Setting("cfg_scale", float, "Strength of classifier-free guidance; doubles the forwards.", minimum=0),
    Setting(
        "confidence",
        str,
        "How sure a proposal is.",
        choices=("probability", "margin", "entropy", "random"),
    ),
    Setting(
        "confidence_dtype",
        str,
        "Number format of the softmax behind the confidence.",
        choices=("float32", "float64", "model"),
    ),
    Setting(
        "eos",
        str,
        "Whether end-of-text is held back: its logits, or only its confidence.",
        choices=("keep", "suppress_logits", "suppress_confidence"),
    ),
    Setting("stop_at_eos", bool, "End a row when a closed block holds end-of-text."),
    Setting("eos_token_id", int, "End-of-text id; default the model's.", minimum=0),
    Setting("eot_token_id", int, "End-of-turn id; default the model's.", minimum=0),
    Setting("mask_token_id", int, "Mask id; default the model's.", minimum=0),
    Setting(
        "compat",
        str,
        "Reproduce a published program with its quirks instead of its paper.",
        choices=("llada", "fast-dllm"),
    ),
)

#: Settings of log-likelihoods that decoding does not have. compat, cfg_scale and mask_token_id are those above.
LIKELIHOOD_SETTINGS: tuple[Setting, ...] = (
    Setting("samples", int, "Masked copies per answer whose log-likelihood is estimated.", minimum=2),
    Setting("exact", bool, "Try every masked copy (up to 16 tokens) instead of sampling."),
    Setting("batch_size", int, "Masked copies of one answer per forward.", minimum=1),
)

CORE_SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}

#: How the work of a block may be bounded; at most one may be given.
STEP_SETTINGS = ("steps", "steps_per_block", "tokens_per_step")


@dataclass(frozen=True)
class DecodeSettings:
    """The settings of one request, resolved. `None` means: not set. `own` holds what the backend itself declares."""

    gen_length: int = 128
    block_length: int | None = None
    steps: int | None = None
    steps_per_block: int | None = None
    tokens_per_step: int | None = None
    threshold: float | None = None
    factor: float | None = None
    entropy_bound: float | None = None
    temperature: float = 0.0
    cfg_scale: float = 0.0
    confidence: str = "probability"
    confidence_dtype: str = "float32"
    eos: str = "keep"
    stop_at_eos: bool = False
    eos_token_id: int | None = None
    eot_token_id: int | None = None
    mask_token_id: int | None = None
    compat: str | None = None
    own: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Resolution:
    """Resolved settings, with where each value came from and which given ones were outranked.

    sources: name -> "option", "task" or "default". overridden: names that were given but outranked.
    """

    settings: DecodeSettings
    sources: Mapping[str, str]
    overridden: tuple[str, ...]
    declared: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The declared settings as plain JSON values, ready to be stored."""
        values = {**dataclasses.asdict(self.settings), **self.settings.own}
        out = {name: values[name] for name in self.declared}
        if self.overridden:
            out["overridden"] = list(self.overridden)
        return out


def parse_settings(
    given: Mapping[str, Any], declared: Mapping[str, Any], own: tuple[Setting, ...], backend: str
) -> dict[str, Any]:
    """Check names and values of `given` against what `backend` declares; return parsed values."""
    known = {name: CORE_SETTINGS[name] for name in declared if name in CORE_SETTINGS}
    known.update({setting.name: setting for setting in own})
    parsed = {}
    for name, value in given.items():
        if name not in known:
            why = (
                f"Backend {backend!r} has no setting {name!r}"
                if name in CORE_SETTINGS
                else f"There is no setting {name!r} (backend {backend!r})"
            )
            raise SettingError(f"{why}. {did_you_mean(name, known)}")
        parsed[name] = known[name].parse(value)
    return parsed


def resolve_settings(
    given: Mapping[str, Any],
    *,
    declared: Mapping[str, Any],
    own: tuple[Setting, ...] = (),
    backend: str,
    task_gen_length: int | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Resolution:
    """Combine options, the task's answer length and the backend's defaults; explicit beats task beats default.

    defaults: what the command changes in the backend's defaults (`run` stops at end-of-text, `generate` does not).
    Raises SettingError for an unknown name, a bad value, or settings that exclude each other.
    """
    parsed = {k: v for k, v in parse_settings(given, declared, own, backend).items() if v is not None}
    counts = [name for name in STEP_SETTINGS if name in parsed]
    if len(counts) > 1:
        raise SettingError(f"Settings {' and '.join(counts)} say the same thing in two ways: give only one of them.")
    bars = [name for name in ("factor", "threshold") if name in parsed]
    if "entropy_bound" in parsed and bars:
        raise SettingError(f"Settings entropy_bound and {bars[0]} are two rules for one choice: give only one of them.")
    values: dict[str, Any] = dict(declared)
    values.update({setting.name: declared.get(setting.name) for setting in own})
    values.update({name: value for name, value in (defaults or {}).items() if name in values})
    sources = dict.fromkeys(values, "default")
    if task_gen_length is not None and "gen_length" in declared:
        values["gen_length"], sources["gen_length"] = task_gen_length, "task"
    for name, value in parsed.items():
        values[name], sources[name] = value, "option"
    if counts:
        for name in STEP_SETTINGS:
            if name in values and name not in counts:
                values[name] = None
    if values.get("entropy_bound") is not None and sources.get("confidence") == "default":
        values["confidence"] = "entropy"
    overridden = []
    if values.get("factor") is not None:
        overridden = [n for n in ("threshold", *STEP_SETTINGS) if values.get(n) is not None and sources[n] != "default"]
    elif values.get("threshold") is not None or values.get("entropy_bound") is not None:
        overridden = [n for n in STEP_SETTINGS if values.get(n) is not None and sources[n] != "default"]
    own_names = {setting.name for setting in own}
    core = {name: value for name, value in values.items() if name not in own_names}
    settings = DecodeSettings(**core, own={name: values[name] for name in own_names})
    return Resolution(settings, sources, tuple(overridden), tuple(values))


@dataclass(frozen=True)
class LikelihoodSettings:
    """How a log-likelihood is estimated.

    samples: masked copies per answer (and block). exact: try every masked copy instead of sampling; without it that is
    done wherever it costs no more than the samples.
    compat "llada": the mask counts of ML-GSAI/LLaDA b7e6c35, get_log_likelihood.py, which are not uniform for most
    lengths: its expectation is another one, so its estimate is biased. Its samples are not independent within a batch.
    cfg_scale: classifier-free guidance with the prompt hidden. batch_size: masked copies of one answer per forward.
    mask_token_id: default the model's.
    """

    samples: int = 128
    exact: bool = False
    compat: str | None = None
    cfg_scale: float = 0.0
    batch_size: int = 16
    mask_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise UsageError(f"samples={self.samples}: a standard error needs two or more.")
        if self.batch_size < 1:
            raise UsageError(f"batch_size={self.batch_size}: at least one sequence must be in a forward.")
        for name, most in (("samples", MOST_SAMPLES), ("batch_size", MOST_BATCH)):
            if getattr(self, name) > most:
                raise UsageError(f"{name}={getattr(self, name)} is too large: it must be at most {most:,}.")
        if not (math.isfinite(self.cfg_scale) and self.cfg_scale >= 0):
            raise UsageError(f"cfg_scale={self.cfg_scale:g} is no strength of guidance: give a number from 0.")
        if self.compat not in (None, "llada"):
            raise UsageError(
                f"compat={self.compat} reproduces a way of decoding text. For log-likelihoods there is compat=llada."
            )
        if self.exact:
            return
        if self.compat == "llada" and self.samples % self.batch_size:
            raise UsageError(
                f"compat=llada draws whole batches, and {self.samples} samples are no multiple of batch_size="
                f"{self.batch_size}. Change one of them."
            )
        if self.compat == "llada" and self.samples < 2 * self.batch_size:
            raise UsageError(
                f"compat=llada needs two batches or more for a standard error: say samples={2 * self.batch_size} or more."
            )
