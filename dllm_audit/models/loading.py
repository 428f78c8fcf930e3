"""Find, check and load a model: an embedded one, a folder with safetensors, or a hub id.

Only safetensors are read, remote code is never run, and weights go straight to the device in the target dtype.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllm_audit.errors import ModelError, did_you_mean
from dllm_audit.files import refuse_special
from dllm_audit.models.dimensions import Dimensions
from dllm_audit.models.families import FAMILIES, ModelFamily, Place, family_of
from dllm_audit.models.tiny import EMBEDDED_MODELS
from dllm_audit.models.traits import ModelTraits

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class ModelSource:
    """A model that was found, not yet loaded. `ref` is what the person typed; `folder` is where its files are."""

    ref: str
    folder: Path
    provenance: str
    revision: str | None
    fields: dict[str, Any]
    family: ModelFamily
    traits: ModelTraits


@dataclass
class LoadedModel:
    """A model ready to run. `tokenizer` is None where the folder has none; then it takes ids only.

    engine: how its forwards are executed, see decode.fixed.ENGINES.
    """

    source: ModelSource
    module: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    device: torch.device
    dtype: torch.dtype
    engine: str = "eager"

    @property
    def traits(self) -> ModelTraits:
        return self.source.traits

    @property
    def parameters(self) -> int:
        """Number of distinct parameters."""
        return sum(p.numel() for p in self.module.parameters())

    @property
    def expert_kernel(self) -> str | None:
        """transformers' name of the kernel that runs the experts, or None where the network has none."""
        config = self.module.config
        return str(config._experts_implementation) if getattr(config, "num_experts", None) else None

    @property
    def dimensions(self) -> Dimensions | None:
        """What a forward reads and multiplies of it; None for a network that they do not describe."""
        return Dimensions.of_module(self.module)

    @property
    def weight_bytes(self) -> int:
        """Bytes that the parameters occupy as loaded."""
        return sum(p.numel() * p.element_size() for p in self.module.parameters())


#: Files of a model folder that are read, here or by transformers.
_READ_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")


def find_model(ref: str, families: tuple[ModelFamily, ...] = FAMILIES, weights: bool = True) -> ModelSource:
    """Resolve `ref` to a folder and read its config. Raises ModelError with a sentence for whatever is wrong.

    weights: whether those of a hub id are fetched too; without them the model can be described, not loaded.
    """
    provenance, revision = "folder", None
    if ref in EMBEDDED_MODELS:
        folder, provenance = EMBEDDED_MODELS[ref], "embedded"
    elif ref and Path(ref).is_dir():
        folder = Path(ref)
    elif ref and Path(ref).exists():
        raise ModelError(f"{ref} is a file; a model is a folder with config.json and *.safetensors.")
    elif _looks_like_hub_id(ref):
        folder, revision = _from_hub(ref, weights)
        provenance = "hub"
    else:
        raise ModelError(
            f"There is no model {ref!r}: it is no folder and no embedded model. "
            + did_you_mean(ref, EMBEDDED_MODELS)
            + " A hub id looks like 'owner/name'."
        )
    for pattern in _READ_FILES:
        for path in sorted(folder.glob(pattern)):
            refuse_special(path, ModelError)
    fields = _read_config(folder, ref)
    family = family_of(fields, ref, families)
    also_end = _ends_of_generation(folder)
    try:
        _check_sizes(family.translate(fields), ref)
        traits = family.traits(fields, also_end)
    except KeyError as error:
        raise ModelError(f"{ref}: its config.json lacks the field {error} that family {family.name!r} needs.") from None
    except TypeError as error:
        raise ModelError(f"{ref}: its config.json does not describe a {family.name} model: {error}.") from None
    for id in (traits.mask_token_id, traits.bos_token_id, *traits.end_token_ids):
        if id is not None and not _is_whole(id):
            raise ModelError(f"{ref}: token id {id!r} in its config.json or generation_config.json is no whole number.")
    block_length = traits.block_length
    if traits.attention == "block" and not (
        _is_whole(block_length) and 1 <= (block_length or 0) <= traits.max_positions
    ):
        raise ModelError(
            f"{ref}: a block-diffusion model must state block_length in its config.json, from 1 to its context of "
            f"{traits.max_positions}."
        )
    return ModelSource(ref, folder, provenance, revision, fields, family, traits)


#: Sizes of a network that must be whole numbers above zero, as transformers calls them.
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "moe_intermediate_size",
    "num_experts",
    "num_experts_per_tok",
)


#: Far beyond any network; building one of a billion layers would not end.
_MOST_LAYERS = 10_000


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_sizes(network: dict[str, Any], ref: str) -> None:
    """Raise ModelError for a size that is none; transformers would build a network without layers from -1."""
    for name in _SIZES:
        if name in network and not (_is_whole(network[name]) and network[name] > 0):
            raise ModelError(f"{ref}: its config.json means {name}={network[name]!r}, which is no size of a network.")
    layers = network.get("num_hidden_layers", 1)
    if layers > _MOST_LAYERS:
        raise ModelError(f"{ref}: its config.json means {layers:,} layers, and at most {_MOST_LAYERS:,} are built.")


def _looks_like_hub_id(ref: str) -> bool:
    owner, slash, name = ref.partition("/")
    return bool(owner and slash and name) and "/" not in name and not ref.startswith((".", "~"))


def _from_hub(ref: str, weights: bool) -> tuple[Path, str]:
    from huggingface_hub import snapshot_download

    patterns = list(_READ_FILES) if weights else ["config.json"]
    try:
        folder = Path(snapshot_download(ref, allow_patterns=patterns, etag_timeout=5))
    except Exception as error:
        raise ModelError(
            f"Model {ref!r} is no folder here and could not be fetched from the hub ({type(error).__name__}). "
            "Check the name and the network, or give a folder that holds the model."
        ) from error
    return folder, folder.name


def _read_config(folder: Path, ref: str) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.exists():
        raise ModelError(f"{ref} has no config.json, so it is not a model folder.")
    return _read_object(path)


def _ends_of_generation(folder: Path) -> Any:
    """What generation_config.json says of the ids that end an answer; chat models often end a turn with one that config.json
    leaves out."""
    path = folder / "generation_config.json"
    return _read_object(path).get("eos_token_id") if path.exists() else None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise ModelError(f"{path} does not hold a JSON object.")
    return fields


#: Of a name of a file that is not there, so many characters are shown.
_LONGEST_NAME = 200


def _is_file(path: Path) -> bool:
    """Whether there is a regular file of that name, which an index may have made up: a pipe would never be read to its end."""
    try:
        return path.is_file()
    except OSError:  # no name of a file
        return False


def weight_files(folder: Path, ref: str) -> list[Path]:
    """The safetensors files of a model folder, in name order. Raises ModelError when there are none."""
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            names = {str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(f"{index} cannot be read: {error}.") from error
        missing = sorted(name for name in names if os.sep in name or not _is_file(folder / name))
        if missing:
            raise ModelError(
                f"{ref} lacks {len(missing)} of its weight files, the first is {missing[0][:_LONGEST_NAME]}. Copy them again."
            )
        return [folder / name for name in sorted(names)]
    model_file = folder / "model.safetensors"
    if model_file.exists():
        return [model_file]
    if files:
        return files
    pickled = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in folder.glob(pattern))
    if pickled:
        raise ModelError(
            f"{ref} holds pickled weights only ({pickled[0]}), which can run code when opened and are never read. "
            "Convert them to safetensors with the program that wrote them."
        )
    raise ModelError(f"{ref} has a config.json but no *.safetensors file, so there are no weights to load.")


def load_model(
    source: ModelSource, device: str = "cpu", dtype: str = "auto", tokenizer: bool = True, engine: str = "eager"
) -> LoadedModel:
    """Load weights and tokenizer of `source`. dtype "auto": float32 on a CPU, bfloat16 elsewhere.

    engine: how forwards of a fixed shape are executed, see decode.fixed; the others run eager.
    """
    chosen_device = pick_device(device)
    if engine == "cudagraph" and chosen_device.type != "cuda":
        raise ModelError(f"--engine cudagraph needs a CUDA device, and this is {chosen_device}. Use eager or compile.")
    chosen_dtype = pick_dtype(dtype, chosen_device)
    module = _build_module(source, chosen_device, chosen_dtype)
    _load_weights(module, source, chosen_device, chosen_dtype)
    module.eval().requires_grad_(False)
    loaded_tokenizer = load_tokenizer(source.folder) if tokenizer else None
    return LoadedModel(source, module, loaded_tokenizer, chosen_device, chosen_dtype, engine)


def dimensions_of(source: ModelSource) -> Dimensions:
    """Sizes of a model from its config alone. Raises ModelError where the config describes none."""
    import torch

    found = Dimensions.of_module(_build_module(source, torch.device("meta"), torch.float32))
    if found is None:
        raise ModelError(
            f"{source.ref}: what a forward of a {source.family.name} model reads cannot be told from its sizes."
        )
    return found


def pick_device(name: str) -> torch.device:
    """auto: the first CUDA device, else Apple's, else the CPU. Raises ModelError when the asked-for one is not there."""
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"There is no device {name!r}. Use auto, cpu, cuda, cuda:N or mps.") from None
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise ModelError(
            f"Device {name!r} is not here: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices. "
            "Use --device cpu, or install a CUDA build of torch."
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ModelError("Device 'mps' is not here: it needs macOS on Apple silicon. Use --device cpu.")
    if device.type not in ("cpu", "cuda", "mps"):
        raise ModelError(f"Device {name!r} is not supported. Use auto, cpu, cuda, cuda:N or mps.")
    # One name for one device, or runs on it would differ in it.
    return torch.device("cuda", 0) if name == "cuda" else device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """auto: float32 on a CPU, bfloat16 elsewhere."""
    import torch

    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise ModelError(f"There is no dtype {name!r}. {did_you_mean(name, [*known, 'auto'])}")
    return known[name]


def _build_module(source: ModelSource, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """The family's module with empty parameters on the meta device and real buffers on `device`."""
    import torch
    import transformers

    from dllm_audit.models.attention import register_attention

    fields = source.family.translate(source.fields)
    try:
        config = getattr(transformers, source.family.config_class)(**fields)
        # The attention kernel is ours to choose: a checkpoint's config may name one that does not fit this machine.
        config._attn_implementation = register_attention()
        if "num_experts" in fields:
            # Of transformers' expert kernels the fastest on a CPU, and one that reads nothing back from a GPU.
            config._experts_implementation = "grouped_mm"
        config.is_causal = False
        with torch.device("meta"):
            module = getattr(transformers, source.family.module)(config)
        if source.family.adapt is not None:
            source.family.adapt(module, source.fields)
    except ModelError:
        raise
    except Exception as error:  # a config is foreign data, and transformers has exceptions of its own for a bad one
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip().removesuffix(".")
        raise ModelError(
            f"{source.ref}: its config.json does not describe a {source.family.name} model: {reason}."
        ) from error
    # Its frequencies are a buffer that no checkpoint holds, so it cannot stay on the meta device.
    module.model.rotary_emb = type(module.model.rotary_emb)(config).to(device)
    return module


#: Ends of the names of buffers that some checkpoints hold and that follow from the config.
_DERIVED = ("rotary_emb.inv_freq",)


def _load_weights(module: PreTrainedModel, source: ModelSource, device: torch.device, dtype: torch.dtype) -> None:
    import torch
    from safetensors import SafetensorError, safe_open

    expected = {name: tuple(p.shape) for name, p in module.state_dict().items()}
    state: dict[str, torch.Tensor] = {}
    unknown: list[str] = []
    parts: dict[str, set[Place]] = {}
    for path in weight_files(source.folder, source.ref):
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                for key in file.keys():  # noqa: SIM118 - a safetensors file is no mapping
                    place = source.family.place(key)
                    name = place.name
                    if name not in expected or (place.expert is not None and place.expert >= expected[name][0]):
                        unknown += [] if name.endswith(_DERIVED) else [key]
                        continue
                    tensor = file.get_tensor(key)
                    if not tensor.is_floating_point():
                        raise ModelError(
                            f"{path.name}: {key} holds {str(tensor.dtype).removeprefix('torch.')} numbers, which are no weights "
                            "without what unpacks them. Use a checkpoint that is not quantised."
                        )
                    wanted = _shape_of_part(place, expected[name])
                    if tuple(tensor.shape) != wanted:
                        raise ModelError(
                            f"{path.name}: {key} has shape {tuple(tensor.shape)}, but config.json means "
                            f"{wanted}. The config and the weights do not belong together."
                        )
                    if place.expert is None:
                        state[name] = tensor.to(dtype)
                        continue
                    if name not in state:
                        state[name] = torch.empty(expected[name], dtype=dtype, device=device)
                    _part_of(place, state[name]).copy_(tensor)
                    parts.setdefault(name, set()).add(place)
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{path} cannot be read as safetensors ({error}). It may be cut off: copy it again."
            ) from error
    tied = bool(source.family.translate(source.fields).get("tie_word_embeddings", False))
    if "lm_head.weight" not in state and "model.embed_tokens.weight" in state and tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    incomplete = {name for name, places in parts.items() if len(places) < _number_of_parts(places, expected[name])}
    missing = sorted((set(expected) - set(state)) | incomplete)
    if missing:
        raise ModelError(
            f"{source.ref} lacks {len(missing)} of {len(expected)} weights that a {source.family.name} model has, "
            f"the first is {missing[0]}. It may be another kind of model, or a file may be missing."
        )
    if unknown:
        # Leaving them out would run another network than the one that was trained, and nobody would see it.
        raise ModelError(
            f"{source.ref} holds {len(unknown)} weights that a {source.family.name} model with this config.json does not "
            f"have, the first is {min(unknown)}. It may be another kind of model, or the config may be that of another."
        )
    module.load_state_dict(state, assign=True)
    if tied:
        module.lm_head.weight = module.model.embed_tokens.weight


def _shape_of_part(place: Place, whole: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that a checkpoint's weight must have to go to `place` in a weight of shape `whole`."""
    if place.expert is None:
        return whole
    return (whole[1] if place.half is None else whole[1] // 2, *whole[2:])


def _part_of(place: Place, whole: torch.Tensor) -> torch.Tensor:
    """The view of `whole`, a weight of all experts, that `place` means."""
    expert = whole[place.expert]
    return expert if place.half is None else expert.chunk(2)[place.half]


def _number_of_parts(places: set[Place], whole: tuple[int, ...]) -> int:
    """How many parts a weight of all experts of shape `whole` has when it is complete."""
    return whole[0] * (1 if any(place.half is None for place in places) else 2)


def has_tokenizer(folder: Path) -> bool:
    """Whether a model folder has tokenizer files that can be read without remote code."""
    return (folder / "tokenizer.json").exists() or (
        (folder / "vocab.json").exists() and (folder / "merges.txt").exists()
    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a model folder, or None where it has none. Never runs remote code."""
    if not has_tokenizer(folder):
        return None
    import transformers

    # Dream and DiffuCoder ship Qwen2's files under a tokenizer class of their own.
    fast = (folder / "tokenizer.json").exists()
    cls: Any = transformers.PreTrainedTokenizerFast if fast else transformers.Qwen2Tokenizer
    try:
        return cls.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise ModelError(f"The tokenizer in {folder} cannot be read: {error}.") from error
