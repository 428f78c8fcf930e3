"""The one interface of a decoder backend, and the ready-made one for decoders that are recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dllm_audit.errors import ModelError, UsageError, did_you_mean
from dllm_audit.settings import (
    LIKELIHOOD_SETTINGS,
    STEP_SETTINGS,
    DecodeSettings,
    LikelihoodSettings,
    Resolution,
    Setting,
    resolve_settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dllm_audit.decode.recipe import Recipe
    from dllm_audit.decode.tally import OnShapes
    from dllm_audit.models.loading import LoadedModel, ModelSource
    from dllm_audit.models.traits import ModelTraits
    from dllm_audit.records import EngineLog, Failure, ForwardShape, Generation, Question, Request, ScoredAnswer

#: Where numbers come from. Numbers of different provenance are never averaged.
PROVENANCES = ("reference", "library", "upstream", "served")


#: Settings, with defaults, that every decoder of its kind understands.
AUTOREGRESSIVE_SETTINGS: Mapping[str, Any] = {
    "gen_length": 128,
    "temperature": 0.0,
    "stop_at_eos": False,
    "eos_token_id": None,
    "eot_token_id": None,
}
BLOCK_DIFFUSION_SETTINGS: Mapping[str, Any] = {
    **AUTOREGRESSIVE_SETTINGS,
    "block_length": None,
    "steps": None,
    "steps_per_block": None,
    "tokens_per_step": None,
    "threshold": None,
    "factor": None,
    "entropy_bound": None,
    "confidence": "probability",
    "confidence_dtype": "float32",
    "eos": "keep",
    "mask_token_id": None,
}
MASKED_DIFFUSION_SETTINGS: dict[str, Any] = {**BLOCK_DIFFUSION_SETTINGS, "block_length": 32, "compat": None}

#: Settings, with defaults, of the log-likelihoods of each kind of model. Those of an autoregressive one are exact.
_ESTIMATED = {setting.name: setting.default for setting in fields(LikelihoodSettings)}
_LIKELIHOOD_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "bidirectional": _ESTIMATED,
    "block": {name: value for name, value in _ESTIMATED.items() if name not in ("compat", "cfg_scale")},
    "causal": {},
}

#: Families that the built-in decoders of a kind can decode.
MASKED_DIFFUSION_FAMILIES = ("llada", "llada-moe", "dream")
AUTOREGRESSIVE_FAMILIES = ("llama", "qwen2", "qwen3")


class Session(Protocol):
    """A backend at work on one loaded model."""

    def generate(
        self,
        requests: Iterable[Request],
        on_result: Callable[[Generation | Failure], None],
        concurrency: int = 1,
        traced: bool = False,
        on_shapes: OnShapes | None = None,
        arrivals: Sequence[float] | None = None,
    ) -> EngineLog:
        """Decode `requests`; each result goes to `on_result` as it ends, before it what ran so far to `on_shapes`.

        arrivals: seconds after the start at which each request is there, and from which its clock runs; None: each is
        handed over when there is room for it.
        """

    def warm_up(self, requests: Sequence[Request], concurrency: int) -> None: ...

    def forward_costs(self, shapes: Sequence[ForwardShape], seconds: float) -> list[float] | None:
        """Seconds of one bare forward of each shape, measured apart from any request for about `seconds`.

        None where that cannot be done.
        """


class Backend(Protocol):
    """A decoder that can be audited. Attributes describe it without loading anything.

    settings: what it understands, with defaults. own_settings: declarations of settings that the core does not have.
    waivers: what it cannot prove (see "check-backend"), each a sentence that the report shows.
    """

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str: ...

    @property
    def provenance(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def families(self) -> tuple[str, ...]: ...

    @property
    def default_model(self) -> str | None: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...

    @property
    def own_settings(self) -> tuple[Setting, ...]: ...

    @property
    def waivers(self) -> tuple[str, ...]: ...

    def check_model(self, source: ModelSource) -> None:
        """Raise ModelError when this backend cannot decode `source`."""

    def resolve(
        self,
        given: Mapping[str, Any],
        traits: ModelTraits | None = None,
        task_gen_length: int | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> Resolution:
        """Settings of a run (or of one request), checked. See settings.resolve_settings."""

    def open(self, model: LoadedModel, settings: Mapping[str, Any], seed: int = 0) -> Session:
        """A session that decodes with `settings`; each request's own settings override them."""


class LikelihoodSession(Protocol):
    """A backend at work on one loaded model, finding out how likely given answers are."""

    def score(
        self,
        questions: Iterable[Question],
        on_result: Callable[[ScoredAnswer | Failure], None],
        concurrency: int = 1,
        on_shapes: OnShapes | None = None,
    ) -> EngineLog:
        """Score `questions`; each result goes to `on_result` as it ends, before it what ran so far to `on_shapes`."""

    def warm_up(self, questions: Sequence[Question], concurrency: int) -> None: ...

    def forward_costs(self, shapes: Sequence[ForwardShape], seconds: float) -> list[float] | None:
        """As in `Session`."""


@runtime_checkable
class LikelihoodBackend(Protocol):
    """What a backend has beside `Backend` that also states log-likelihoods, for tasks that ask for them.

    likelihood_settings: what can be set about them, with defaults.
    """

    @property
    def likelihood_settings(self) -> Mapping[str, Any]: ...

    def resolve_likelihoods(self, given: Mapping[str, Any]) -> Resolution:
        """Settings of a run that asks for log-likelihoods, checked."""

    def open_likelihoods(self, model: LoadedModel, settings: Mapping[str, Any], seed: int = 0) -> LikelihoodSession:
        """A session that scores with `settings`."""


@runtime_checkable
class ForesightedBackend(Protocol):
    """What a backend may have beside `Backend` to find out, before anything is loaded, what would fail every request."""

    def check_settings(
        self,
        given: Mapping[str, Any],
        traits: ModelTraits,
        task_gen_length: int | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Raise SettingError where a model with `traits` decodes no request with these settings. See `Backend.resolve`."""

    def check_likelihoods(self, given: Mapping[str, Any], traits: ModelTraits) -> None:
        """The same for log-likelihoods."""


def likelihoods_of(backend: Backend) -> LikelihoodBackend:
    """The side of `backend` that states log-likelihoods, or a UsageError where it has none."""
    if isinstance(backend, LikelihoodBackend):
        return backend
    raise UsageError(
        f"Backend {backend.name!r} states no log-likelihoods, which this task asks for. "
        "Use a built-in backend that decodes the model, or a task that generates."
    )


_ADVICE = {
    "bidirectional": "Use uncached, prefixcache or dualcache.",
    "block": "Use the backend 'block'.",
    "causal": "Use the backend 'ar'.",
}
_WORDS = {
    "bidirectional": "a masked-diffusion model with bidirectional attention",
    "block": "a block-diffusion model with block-causal attention",
    "causal": "an autoregressive model",
}


@dataclass(frozen=True)
class RecipeBackend:
    """A backend made of the one decode loop and a recipe.

    attention: what its models must have been trained with. make_recipe(settings, traits) -> Recipe.
    families: names of the model families it decodes.
    """

    name: str
    summary: str
    attention: str
    families: tuple[str, ...]
    settings: Mapping[str, Any]
    make_recipe: Callable[[DecodeSettings, ModelTraits], Recipe]
    default_model: str | None = None
    own_settings: tuple[Setting, ...] = ()
    waivers: tuple[str, ...] = ()
    provenance: str = field(default="reference")

    @property
    def kind(self) -> str:
        return "autoregressive" if self.attention == "causal" else "diffusion"

    def check_model(self, source: ModelSource) -> None:
        traits = source.traits
        if traits.family in self.families:
            return
        message = f"Backend {self.name!r} cannot decode {source.ref}: it needs {_WORDS[self.attention]}, "
        if traits.attention == self.attention:
            message += f"and knows the families {', '.join(self.families)}, not {traits.family!r}."
        else:
            message += f"and this is {_WORDS[traits.attention]}. {_ADVICE[traits.attention]}"
        raise ModelError(message)

    def resolve(
        self,
        given: Mapping[str, Any],
        traits: ModelTraits | None = None,
        task_gen_length: int | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> Resolution:
        declared = dict(self.settings)
        if traits is not None and traits.block_length is not None and declared.get("block_length", 0) is None:
            declared["block_length"] = traits.block_length
        return resolve_settings(
            given,
            declared=declared,
            own=self.own_settings,
            backend=self.name,
            task_gen_length=task_gen_length,
            defaults=defaults,
        )

    def check_settings(
        self,
        given: Mapping[str, Any],
        traits: ModelTraits,
        task_gen_length: int | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        from dllm_audit.decode.recipe import check_window

        settings = self.resolve(given, traits, task_gen_length, defaults).settings
        check_window(self.make_recipe(settings, traits), settings.gen_length, traits)

    def open(self, model: LoadedModel, settings: Mapping[str, Any], seed: int = 0) -> Session:
        from dllm_audit.decode.session import RecipeSession

        def recipe_for(request: Request) -> tuple[Recipe, int]:
            counts = set(STEP_SETTINGS) & request.settings.keys()
            # A request that counts its steps in one way overrides a run that counts them in another.
            given = {n: v for n, v in settings.items() if not (counts and n in STEP_SETTINGS)} | dict(request.settings)
            resolved = self.resolve(given, traits=model.traits).settings
            return self.make_recipe(resolved, model.traits), resolved.gen_length

        return RecipeSession(model, recipe_for, seed)

    @property
    def likelihood_settings(self) -> Mapping[str, Any]:
        return _LIKELIHOOD_SETTINGS[self.attention]

    def resolve_likelihoods(self, given: Mapping[str, Any]) -> Resolution:
        declared = self.likelihood_settings
        own = tuple(setting for setting in LIKELIHOOD_SETTINGS if setting.name in declared)
        resolution = resolve_settings(given, declared=declared, own=own, backend=self.name)
        # What does not fit together is refused here, before anything is loaded.
        LikelihoodSettings(**resolution.as_dict())
        return resolution

    def check_likelihoods(self, given: Mapping[str, Any], traits: ModelTraits) -> None:
        from dllm_audit.decode.likelihood import check_model

        check_model(traits, LikelihoodSettings(**self.resolve_likelihoods(given).as_dict()))

    def open_likelihoods(self, model: LoadedModel, settings: Mapping[str, Any], seed: int = 0) -> LikelihoodSession:
        from dllm_audit.decode.questions import QuestionSession

        resolved = self.resolve_likelihoods(settings).as_dict()
        return QuestionSession(model, LikelihoodSettings(**resolved), seed)


def find_backend(name: str, backends: Mapping[str, Backend]) -> Backend:
    """The backend called `name`, or a ModelError-like sentence with the nearest names."""
    if name not in backends:
        raise ModelError(f"There is no backend {name!r}. {did_you_mean(name, backends)} See: dllm-audit backends")
    return backends[name]
