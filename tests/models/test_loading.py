"""A model folder is read as data: what is wrong with it is said in a sentence, and nothing in it runs or chooses code."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from dllm_audit import Failure, Request
from dllm_audit.errors import ModelError
from dllm_audit.models.attention import PACKED
from dllm_audit.models.families import FAMILIES, family_of
from dllm_audit.models.loading import (
    find_model,
    load_model,
    load_tokenizer,
    pick_device,
    pick_dtype,
    weight_files,
)
from dllm_audit.models.tiny import EMBEDDED_MODELS
from dllm_audit.plugins import load_plugins

TINY_LLADA = Path(__file__).parents[1] / "golden" / "tiny-llada"

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
}


def write_config(folder: Path, **changes) -> None:
    fields = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(fields))


@pytest.fixture
def folder(tmp_path) -> Path:
    """A copy of the recorded LLaDA, to be spoilt."""
    target = tmp_path / "model"
    target.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(TINY_LLADA / name, target / name)
    return target


@pytest.fixture
def llama(tmp_path) -> Path:
    """A random Llama, as transformers would save it."""
    target = tmp_path / "llama"
    target.mkdir()
    torch.manual_seed(0)
    fields = {k: v for k, v in LLAMA.items() if k != "architectures"}
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields, tie_word_embeddings=False))
    save_file({k: v.clone() for k, v in module.state_dict().items()}, target / "model.safetensors")
    (target / "config.json").write_text(json.dumps(LLAMA | {"tie_word_embeddings": False}))
    return target


def refused(ref) -> str:
    with pytest.raises(ModelError) as error:
        load_model(find_model(str(ref)), "cpu", "float32")
    return str(error.value)


# -- what is wrong is said --


def test_a_name_that_is_nothing_gets_the_nearest_embedded_model():
    assert refused("tiny-mmd") == (
        "There is no model 'tiny-mmd': it is no folder and no embedded model. "
        "Did you mean 'tiny-mdm' or 'tiny-ar' or 'tiny-block'? A hub id looks like 'owner/name'."
    )


def test_an_empty_name_is_no_model():
    """It once meant the current folder."""
    assert refused("").startswith("There is no model '': it is no folder and no embedded model.")


def test_a_file_is_no_model(folder):
    path = folder / "model.safetensors"
    assert refused(path) == f"{path} is a file; a model is a folder with config.json and *.safetensors."


def test_a_hub_id_without_network_says_what_to_do(monkeypatch):
    import huggingface_hub

    def unreachable(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    assert refused("GSAI-ML/LLaDA-8B-Base") == (
        "Model 'GSAI-ML/LLaDA-8B-Base' is no folder here and could not be fetched from the hub (ConnectionError). "
        "Check the name and the network, or give a folder that holds the model."
    )


def test_only_safe_files_are_asked_of_the_hub(monkeypatch, folder):
    import huggingface_hub

    asked = {}

    def download(ref, **options):
        asked.update(options)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert find_model("owner/name").provenance == "hub"
    assert asked["allow_patterns"] == ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]


def test_a_folder_without_config(folder):
    (folder / "config.json").unlink()
    assert refused(folder) == f"{folder} has no config.json, so it is not a model folder."


def test_a_config_that_is_no_json(folder):
    (folder / "config.json").write_text("{'architectures': ")
    assert refused(folder) == (
        f"{folder / 'config.json'} cannot be read as JSON: "
        "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)."
    )


@pytest.mark.parametrize("text", ["[]", "3", "null", '"LLaDAModelLM"'])
def test_a_config_that_is_no_object(folder, text):
    (folder / "config.json").write_text(text)
    assert refused(folder) == f"{folder / 'config.json'} does not hold a JSON object."


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[" * 100_000], ids=["not utf-8", "too deep"])
def test_a_config_that_cannot_be_read_at_all(folder, content):
    (folder / "config.json").write_bytes(content)
    assert refused(folder).startswith(f"{folder / 'config.json'} cannot be read as JSON: ")


@pytest.mark.parametrize("architectures", [None, []])
def test_a_config_without_architectures(folder, architectures):
    write_config(folder, architectures=architectures)
    assert refused(folder) == f"{folder}: its config.json names no architectures, so the model family is unknown."


def test_an_unknown_architecture_gets_the_nearest_known_one(folder):
    write_config(folder, architectures=["LLaDAModelForLM"])
    assert refused(folder) == (
        f"{folder}: its architecture 'LLaDAModelForLM' belongs to no model family that is installed. "
        "Did you mean 'LLaDAModelLM' or 'LLaDAMoEModelLM'?"
    )


@pytest.mark.parametrize("architectures", [5, {"a": 1}, [7], [["LLaDAModelLM"]], "LLaDAModelLM"])
def test_architectures_of_the_wrong_form_are_refused_with_a_sentence(folder, architectures):
    write_config(folder, architectures=architectures)
    assert refused(folder) == f"{folder}: architectures in its config.json is no list of names."


def test_a_config_that_lacks_a_field(folder):
    write_config(folder)
    fields = json.loads((folder / "config.json").read_text())
    del fields["n_heads"]
    (folder / "config.json").write_text(json.dumps(fields))
    assert refused(folder) == f"{folder}: its config.json lacks the field 'n_heads' that family 'llada' needs."


@pytest.mark.parametrize(
    "change",
    [
        {"d_model": "wide"},
        {"n_heads": 0},
        {"n_heads": 3},
        {"n_layers": -1},
        {"n_layers": 10**9},
        {"n_layers": None},
        {"max_sequence_length": "long"},
        {"embedding_size": "many"},
        {"rope_theta": "hot"},
        {"mask_token_id": "mask"},
        {"eos_token_id": "end"},
    ],
    ids=str,
)
def test_a_field_of_the_wrong_kind_is_refused_with_a_sentence(folder, change):
    write_config(folder, **change)
    assert refused(folder).startswith(f"{folder}: ")


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("block_type", "sequential", "'llama'"),
        ("activation_type", "gelu", "'silu'"),
        ("layer_norm_type", "default", "'rms'"),
        ("rope", False, "True"),
        ("alibi", True, "False"),
        ("scale_logits", True, "False"),
        ("input_emb_norm", True, "False"),
    ],
)
def test_a_llada_of_another_construction_is_refused(folder, field, value, wanted):
    write_config(folder, **{field: value})
    assert refused(folder) == (
        f"This LLaDA config has {field}={value!r}; only {wanted} is supported. Use a LLaDA-8B style checkpoint."
    )


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    assert refused(folder) == (
        f"{folder} has a config.json but no *.safetensors file, so there are no weights to load."
    )


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickled_weights_are_never_opened(folder, name):
    """Opening this one would run a program."""
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    assert refused(folder) == (
        f"{folder} holds pickled weights only ({name}), which can run code when opened and are never read. "
        "Convert them to safetensors with the program that wrote them."
    )


@pytest.mark.parametrize("kept", [0, 5, 1000, 400_000])
def test_a_truncated_file_is_said_to_be_cut_off(folder, kept):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    message = refused(folder)
    assert message.startswith(f"{path} cannot be read as safetensors (")
    assert message.endswith("It may be cut off: copy it again.")


def test_weights_of_another_shape_than_the_config_means(folder):
    write_config(folder, mlp_hidden_size=161)
    assert refused(folder) == (
        "model.safetensors: model.transformer.blocks.0.ff_out.weight has shape (64, 160), but config.json means "
        "(64, 161). The config and the weights do not belong together."
    )


def test_missing_weights(folder):
    path = folder / "model.safetensors"
    state = load_file(path)
    del state["model.transformer.ln_f.weight"]
    save_file(state, path)
    assert refused(folder) == (
        f"{folder} lacks 1 of 30 weights that a llada model has, the first is model.norm.weight. "
        "It may be another kind of model, or a file may be missing."
    )


def test_an_index_that_names_a_file_that_is_not_there(folder):
    shards(folder)
    (folder / "part-2.safetensors").unlink()
    assert refused(folder) == (
        f"{folder} lacks 1 of its weight files, the first is part-2.safetensors. Copy them again."
    )


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": 3}', "[]"])
def test_a_broken_index(folder, text):
    (folder / "model.safetensors.index.json").write_text(text)
    message = refused(folder)
    assert message.startswith(f"{folder / 'model.safetensors.index.json'} cannot be read: ")


def test_an_index_cannot_lead_out_of_the_folder(folder):
    shutil.copyfile(folder / "model.safetensors", folder.parent / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../other.safetensors"}}')
    assert refused(folder).startswith(f"{folder} lacks 1 of its weight files, the first is ../other.safetensors.")


def test_a_block_diffusion_model_must_state_its_block_length(llama):
    write_config(llama, architectures=["LlamaForBlockDiffusion"])
    said = f"{llama}: a block-diffusion model must state block_length in its config.json, from 1 to its context of "
    assert refused(llama).startswith(said)
    for wrong in (0, -4, 10**30, 2.0, "a"):
        write_config(llama, architectures=["LlamaForBlockDiffusion"], mask_token_id=5, block_length=wrong)
        assert refused(llama).startswith(said)


@pytest.mark.parametrize("name", ["pipe", ".", "x" * 5000, "a\0b"], ids=["pipe", "folder", "long", "no name"])
def test_an_index_that_names_no_file_is_refused_and_never_waited_for(folder, name):
    os.mkfifo(folder / "pipe")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert refused(folder) == f"{folder} lacks 1 of its weight files, the first is {name[:200]}. Copy them again."


def test_packed_integers_are_no_weights(folder):
    state = load_file(folder / "model.safetensors")
    save_file({key: weight.to(torch.int8) for key, weight in state.items()}, folder / "model.safetensors")
    assert "holds int8 numbers, which are no weights without what unpacks them" in refused(folder)


# -- what can be loaded --


def shards(folder: Path) -> None:
    """Cut the folder's one file in two, with an index."""
    state = load_file(folder / "model.safetensors")
    names = sorted(state)
    parts = {"part-1.safetensors": names[::2], "part-2.safetensors": names[1::2]}
    for file, keys in parts.items():
        save_file({key: state[key] for key in keys}, folder / file)
    index = {"weight_map": {key: file for file, keys in parts.items() for key in keys}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()


def logits(model) -> torch.Tensor:
    ids = torch.tensor([[1, 2, 3, 40, 5]])
    with torch.inference_mode():
        return model.module(ids, is_causal=False, use_cache=False).logits


def test_a_sharded_model_is_the_model(folder):
    whole = logits(load_model(find_model(str(folder)), "cpu", "float32"))
    shards(folder)
    source = find_model(str(folder))
    assert [path.name for path in weight_files(folder, "x")] == ["part-1.safetensors", "part-2.safetensors"]
    assert torch.equal(logits(load_model(source, "cpu", "float32")), whole)


def test_a_tied_head_needs_no_weights_of_its_own_and_is_counted_once(llama):
    state = load_file(llama / "model.safetensors")
    separate = load_model(find_model(str(llama)), "cpu", "float32").parameters
    del state["lm_head.weight"]
    save_file(state, llama / "model.safetensors")
    assert "lacks 1 of" in refused(llama)
    write_config(llama, tie_word_embeddings=True)
    model = load_model(find_model(str(llama)), "cpu", "float32")
    assert model.module.lm_head.weight is model.module.model.embed_tokens.weight
    assert model.parameters == separate - 50 * 16
    assert model.weight_bytes == 4 * model.parameters


def test_buffers_that_follow_from_the_config_are_left_alone(folder):
    state = load_file(folder / "model.safetensors")
    state["model.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(state, folder / "model.safetensors")
    assert load_model(find_model(str(folder)), "cpu", "float32").parameters == 158_144


@pytest.mark.parametrize("extra", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"])
def test_weights_beyond_the_config_are_refused_because_without_them_it_is_another_network(llama, extra):
    """A config with fewer layers than the file once loaded without a word."""
    state = load_file(llama / "model.safetensors")
    state[extra] = torch.zeros(24, 16)
    save_file(state, llama / "model.safetensors")
    assert refused(llama) == (
        f"{llama} holds 1 weights that a llama model with this config.json does not have, the first is {extra}. "
        "It may be another kind of model, or the config may be that of another."
    )


def test_weights_are_loaded_in_the_asked_for_number_format(folder):
    model = load_model(find_model(str(folder)), "cpu", "bfloat16")
    assert {parameter.dtype for parameter in model.module.parameters()} == {torch.bfloat16}
    assert model.weight_bytes == 2 * model.parameters
    # rotary frequencies stay exact
    assert model.module.model.rotary_emb.inv_freq.dtype == torch.float32


def test_a_folder_without_tokenizer_takes_ids_only(folder):
    assert load_tokenizer(folder) is None


def test_a_broken_tokenizer_is_said(folder):
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"^The tokenizer in .*model cannot be read: "):
        load_model(find_model(str(folder)), "cpu", "float32")


def test_the_tokenizer_files_of_dream_are_read_with_the_class_of_qwen2_and_its_code_is_never_run(tmp_path):
    vocabulary = {piece: number for number, piece in enumerate([*"abcde", "\u0120", "ab", "\u0120c"])}
    special = {"special": True, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    names = ["<|endoftext|>", "<|mask|>", "<|im_start|>", "<|im_end|>"]
    config = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "added_tokens_decoder": {str(8 + n): {"content": name, **special} for n, name in enumerate(names)},
        "eos_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "chat_template": "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}",
    }
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n\u0120 c\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tokenization_dream.py").write_text("raise SystemExit('remote code ran')")
    tokenizer = load_tokenizer(tmp_path)
    assert type(tokenizer).__name__ == "Qwen2Tokenizer"
    assert tokenizer.encode("abc c<|mask|>") == [6, 2, 7, 9]
    assert (tokenizer.mask_token_id, tokenizer.eos_token_id) == (9, 8)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert chat == "<|im_start|>user ab<|im_end|>"


def test_traits_say_what_a_decoder_must_know():
    traits = find_model(str(TINY_LLADA)).traits
    assert (traits.family, traits.kind, traits.attention, traits.shift) == ("llada", "diffusion", "bidirectional", 0)
    assert (traits.vocab_size, traits.max_positions, traits.mask_token_id, traits.end_token_ids) == (
        128,
        4096,
        126,
        (121,),
    )


def test_several_ends_of_text_are_all_known(llama):
    write_config(llama, eos_token_id=[2, 7])
    assert find_model(str(llama)).traits.end_token_ids == (2, 7)
    write_config(llama, eos_token_id=None)
    assert find_model(str(llama)).traits.end_token_ids == ()


# -- a checkpoint is data --


def test_no_code_in_a_checkpoint_is_run(folder):
    trap = folder / "modeling_llada.py"
    trap.write_text("raise SystemExit('this code was run')")
    (folder / "configuration_llada.py").write_text(trap.read_text())
    write_config(
        folder,
        auto_map={"AutoConfig": "configuration_llada.LLaDAConfig", "AutoModel": "modeling_llada.LLaDAModelLM"},
        trust_remote_code=True,
    )
    model = load_model(find_model(str(folder)), "cpu", "float32")
    assert type(model.module).__module__ == "transformers.models.llama.modeling_llama"


@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"])
@pytest.mark.parametrize("name", ["flex_attention", "flash_attention_2", "someone/kernel"])
def test_a_config_does_not_choose_the_attention_kernel(llama, field, name):
    """One published config asks for flex attention, which corrupts memory on a CPU with a dense mask."""
    write_config(llama, **{field: name}, use_cache=True, torch_dtype="float16", is_causal=True)
    model = load_model(find_model(str(llama)), "cpu", "float32")
    assert model.module.config._attn_implementation == PACKED
    assert model.dtype == torch.float32


def test_the_words_trust_remote_code_occur_only_to_say_no():
    package = Path(load_model.__code__.co_filename).parents[1]
    found = [
        line.strip()
        for file in package.rglob("*.py")
        for line in file.read_text().splitlines()
        if "trust_remote_code" in line
    ]
    assert found
    assert all("trust_remote_code=False" in line for line in found)


# -- families --


def test_a_family_is_chosen_by_architectures_and_never_by_model_type():
    fields = {"architectures": ["LLaDAModelLM"], "model_type": "qwen2"}
    assert family_of(fields, "x").name == "llada"


def test_of_several_architectures_the_first_known_one_counts():
    assert family_of({"architectures": ["Other", "Qwen3ForCausalLM"]}, "x").name == "qwen3"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_names_classes_that_transformers_has(family):
    assert hasattr(transformers, family.module)
    assert hasattr(transformers, family.config_class)
    assert family.attention in ("bidirectional", "block", "causal")
    # An autoregressive head is shifted by one, and of the others Dream's alone, which began as one.
    assert (family.shift == 1) == (family.attention == "causal" or family.name == "dream")


def test_every_weight_of_a_llada_checkpoint_has_a_place():
    family = next(f for f in FAMILIES if f.name == "llada")
    module = load_model(find_model(str(TINY_LLADA)), "cpu", "float32").module
    names = {family.module_key(key) for key in load_file(TINY_LLADA / "model.safetensors")}
    assert names == set(module.state_dict())


# -- mixtures of experts --


@pytest.fixture
def moe(tmp_path) -> Path:
    """A copy of the recorded LLaDA-MoE, to be spoilt."""
    return Path(shutil.copytree(TINY_LLADA.parent / "tiny-llada-moe", tmp_path / "moe"))


def change_weights(folder: Path, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def test_every_expert_of_a_checkpoint_has_its_place_in_the_weights_of_all(moe):
    weights = load_file(moe / "model.safetensors")
    experts = load_model(find_model(str(moe)), "cpu", "float32").module.model.layers[1].mlp.experts
    for number in range(8):
        gate, up, down = (
            weights[f"model.layers.1.mlp.experts.{number}.{n}_proj.weight"] for n in ("gate", "up", "down")
        )
        assert torch.equal(experts.gate_up_proj[number], torch.cat([gate, up]))
        assert torch.equal(experts.down_proj[number], down)


@pytest.mark.parametrize("part", ["gate_proj", "up_proj", "down_proj"])
def test_a_missing_expert_is_said(moe, part):
    change_weights(moe, lambda weights: weights.pop(f"model.layers.2.mlp.experts.7.{part}.weight"))
    packed = "down_proj" if part == "down_proj" else "gate_up_proj"
    assert refused(moe) == (
        f"{moe} lacks 1 of 36 weights that a llada-moe model has, the first is model.layers.2.mlp.experts.{packed}. "
        "It may be another kind of model, or a file may be missing."
    )


def test_an_expert_beyond_the_config_is_refused(moe):
    def add(weights):
        weights["model.layers.0.mlp.experts.8.down_proj.weight"] = torch.zeros(64, 48)

    change_weights(moe, add)
    assert refused(moe).startswith(f"{moe} holds 1 weights that a llada-moe model with this config.json does not have")


def test_an_answer_of_llada_ends_with_its_turn_too_though_its_config_names_end_of_text_alone():
    llada = next(known for known in FAMILIES if known.name == "llada")
    sizes = {"n_heads": 32, "d_model": 4096, "n_layers": 32, "max_sequence_length": 4096, "mlp_hidden_size": 12288}
    published = {**sizes, "vocab_size": 126464, "eos_token_id": 126081}
    assert llada.traits(published).end_token_ids == (126081, 126348)
    assert llada.traits({**published, "eos_token_id": [126081, 126348]}).end_token_ids == (126081, 126348)
    assert llada.traits({**published, "vocab_size": 128, "eos_token_id": 121}).end_token_ids == (121,)


def test_ids_that_end_an_answer_are_those_of_both_configs(llama):
    """Chat models of Qwen2.5 and Llama 3 end a turn with an id that stands in generation_config.json alone."""
    write_config(llama, eos_token_id=7)
    (llama / "generation_config.json").write_text('{"eos_token_id": [9, 7, 11]}')
    assert find_model(str(llama)).traits.end_token_ids == (7, 9, 11)
    (llama / "generation_config.json").write_text('{"eos_token_id": "nine"}')
    assert "'nine' in its config.json or generation_config.json is no whole number" in refused(llama)
    (llama / "generation_config.json").write_text("[")
    assert "generation_config.json cannot be read as JSON" in refused(llama)


@pytest.mark.parametrize("family", ["dream", "qwen2", "qwen3"])
def test_a_window_over_the_attention_is_refused_and_not_left_out(family):
    translate = next(known.translate for known in FAMILIES if known.name == family)
    assert "use_sliding_window" not in translate({"use_sliding_window": False})
    with pytest.raises(ModelError) as error:
        translate({"use_sliding_window": True})
    assert str(error.value) == (
        "This config has use_sliding_window=True; only full attention is supported. Use a checkpoint without it."
    )


def test_an_expert_of_another_shape_is_refused(moe):
    def shrink(weights):
        weights["model.layers.0.mlp.experts.3.up_proj.weight"] = torch.zeros(40, 64)

    change_weights(moe, shrink)
    assert "experts.3.up_proj.weight has shape (40, 64), but config.json means (48, 64)." in refused(moe)


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("clip_qkv", 8.0, "None"),
        ("qk_layernorm", False, "True"),
        ("shared_expert_intermediate_size", 64, "None"),
        ("partial_rotary_factor", 0.5, "1"),
    ],
)
def test_a_llada_moe_of_another_construction_is_refused(moe, field, value, wanted):
    write_config(moe, **{field: value})
    assert refused(moe).startswith(f"This LLaDA-MoE config has {field}={value!r}; only {wanted} is supported.")


def test_layers_that_do_not_match_their_kinds_are_refused(moe):
    write_config(moe, moe_layer_freq=[0, 1])
    assert "moe_layer_freq for 2 layers and num_hidden_layers=3" in refused(moe)


def test_a_config_names_no_expert_kernel_and_the_one_that_ran_is_known(moe):
    write_config(moe, _experts_implementation="eager", experts_implementation="eager")
    assert load_model(find_model(str(moe)), "cpu", "float32").expert_kernel == "grouped_mm"
    assert load_model(find_model(str(TINY_LLADA)), "cpu", "float32").expert_kernel is None


def test_a_bias_of_the_router_chooses_experts_and_stays_in_their_weights(moe):
    """Three experts with equal logits: shares 1/3 each, plus (0, 0.5, 0.25): experts 1 and 2 with 5/6 and 7/12."""
    from dllm_audit.models.experts import BiasedRouter

    config = transformers.Qwen3MoeConfig(hidden_size=4, num_experts=3, num_experts_per_tok=2)
    router = BiasedRouter(config)
    router.expert_bias.copy_(torch.tensor([0.0, 0.5, 0.25]))
    _, weights, experts = router(torch.ones(1, 4))
    assert experts.tolist() == [[1, 2]]
    assert weights[0].tolist() == pytest.approx([5 / 6, 7 / 12])
    write_config(moe, moe_router_enable_expert_bias=True)

    def add(weights):
        for layer in range(3):
            weights[f"model.layers.{layer}.mlp.expert_bias"] = torch.arange(8.0)

    change_weights(moe, add)
    module = load_model(find_model(str(moe)), "cpu", "float32").module
    assert module.model.layers[2].mlp.gate.expert_bias.tolist() == list(range(8))


# -- a model of the wrong kind --

NEEDS = {
    "uncached": "a masked-diffusion model with bidirectional attention",
    "prefixcache": "a masked-diffusion model with bidirectional attention",
    "dualcache": "a masked-diffusion model with bidirectional attention",
    "block": "a block-diffusion model with block-causal attention",
    "ar": "an autoregressive model",
}
IS = {
    "bidirectional": (
        "a masked-diffusion model with bidirectional attention",
        "Use uncached, prefixcache or dualcache.",
    ),
    "block": ("a block-diffusion model with block-causal attention", "Use the backend 'block'."),
    "causal": ("an autoregressive model", "Use the backend 'ar'."),
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_model_of_another_kind_is_refused_with_the_backend_that_fits(name, llama, tmp_path):
    block = tmp_path / "block"
    shutil.copytree(llama, block)
    write_config(block, architectures=["LlamaForBlockDiffusion"], block_length=8)
    backend = load_plugins().backends[name]
    fits = 0
    for folder in (TINY_LLADA, llama, block):
        source = find_model(str(folder))
        if source.traits.attention == backend.attention:
            backend.check_model(source)
            fits += 1
            continue
        with pytest.raises(ModelError) as error:
            backend.check_model(source)
        what, advice = IS[source.traits.attention]
        assert str(error.value) == (
            f"Backend {name!r} cannot decode {folder}: it needs {NEEDS[name]}, and this is {what}. {advice}"
        )
    assert fits == 1


# -- device and number format --


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "", "cuda:-2"])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(ModelError) as error:
        pick_device(name)
    assert str(error.value) == f"There is no device {name!r}. Use auto, cpu, cuda, cuda:N or mps."


def test_a_device_that_is_not_here_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ModelError) as error:
        pick_device("cuda:3")
    assert str(error.value) == (
        f"Device 'cuda:3' is not here: torch {torch.__version__} sees 0 CUDA devices. "
        "Use --device cpu, or install a CUDA build of torch."
    )


def test_a_gpu_has_one_name_however_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert {str(pick_device(name)) for name in ("auto", "cuda", "cuda:0")} == {"cuda:0"}
    assert str(pick_device("cuda:1")) == "cuda:1"


def test_a_device_that_nothing_here_runs_on_is_refused():
    with pytest.raises(ModelError, match=r"^Device 'xpu' is not supported\. Use auto, cpu, cuda, cuda:N or mps\.$"):
        pick_device("xpu")


def test_an_unknown_number_format_gets_the_nearest():
    with pytest.raises(ModelError, match=r"^There is no dtype 'bf16'\. Did you mean 'bfloat16' or 'float16'\?$"):
        pick_dtype("bf16", torch.device("cpu"))
    assert pick_dtype("auto", torch.device("cpu")) == torch.float32
    assert pick_dtype("auto", torch.device("cuda")) == torch.bfloat16


@pytest.mark.parametrize("name", EMBEDDED_MODELS)
def test_an_embedded_model_is_small_has_a_card_and_fits_its_backend(name):
    source = find_model(name)
    assert source.provenance == "embedded"
    assert sum(file.stat().st_size for file in source.folder.iterdir()) < 6 * 2**20
    assert (source.folder / "README.md").read_text().strip()
    model = load_model(source, "cpu", "float32")
    assert 500_000 < model.parameters < 3_000_000
    assert model.traits.max_positions >= 4096
    fitting = [b.name for b in load_plugins().backends.values() if b.default_model == name]
    assert fitting
    for backend in fitting:
        results = []
        session = load_plugins().backends[backend].open(model, {"gen_length": 16})
        session.generate([Request("a", prompt="Question: Sam has 3 pens.\nAnswer:")], results.append)
        assert not isinstance(results[0], Failure)
        assert isinstance(results[0].text, str)
