"""`dllm-audit roofline` as a person and a script meet it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dllm_audit.cli.main import main
from dllm_audit.measure import roofline_device
from dllm_audit.measure.roofline import DeviceSpeed

TEACHING = (
    "--params", "7e9", "--dtype", "bfloat16", "--device-spec", "h100-sxm", "--prompt", "512", "--gen-length", "256",
    "--block-length", "32", "--tokens-per-step", "4",
)  # fmt: skip


@pytest.fixture
def roofline(capsys):
    """roofline(arguments) -> (exit status, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["roofline", *arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


@pytest.fixture
def measured(monkeypatch):
    """A machine of 10 GB/s and 100 GFLOP/s that need not be measured; returns what was asked of it."""
    asked = []

    def measure(device, dtype, name):
        asked.append((str(device), str(dtype)))
        return DeviceSpeed(name, 1e10, 1e11, "measured", "reading 256 MiB", 2**25, 9e9, 8e10)

    monkeypatch.setattr(roofline_device, "measure_device", measure)
    return asked


def facts(result) -> dict:
    assert result[0] == 0, result[2]
    return json.loads(result[1])


def test_the_teaching_tables_to_the_digit(roofline):
    found = facts(roofline(*TEACHING, "--no-attention", "--json"))
    assert {row["decoder"]: row["milliseconds"] for row in found["latency"]} == {
        "ar": 1076, "uncached-1": 2782, "uncached": 696, "prefixcache": 321, "dualcache": 321, "block": 275,
        "block+commit": 308,
    }  # fmt: skip
    rates = {row["concurrency"]: row["tokens_per_second"] for row in found["throughput"]}
    assert [(n, rates[n]["ar"], rates[n]["block"]) for n in (1, 8, 64, 295)] == [
        (1, 239, 958),
        (8, 1915, 7662),
        (64, 15323, 8834),
        (295, 70631, 8834),
    ]
    assert round(found["knee"]) == 295
    assert found["crossover"] == 37
    assert found["status"] == "modelled"
    assert found["device"]["status"] == "datasheet"
    assert found["model"]["attention"] == "left out"


def test_with_keys_and_values_there_is_no_crossover(roofline):
    sizes = ("--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--context", "4096")
    found = facts(roofline(*TEACHING, *sizes, "--concurrency", "64", "--json"))
    assert found["throughput"][0]["tokens_per_second"]["ar"] == 4436
    assert found["crossover"] is None
    assert found["crossover_words"] == "none up to 4,096 requests in flight; block is faster than ar from 1 on"
    assert found["model"]["attention"] == "counted"
    # 512 + 256 columns of 131,072 bytes.
    assert found["memory"][0]["kv_bytes"] == 768 * 131072
    both = facts(roofline(*TEACHING, *sizes, "--no-attention", "--concurrency", "64", "--json"))
    said = "--no-attention is overridden: --layers, --kv-heads, --head-dim, --context say how much attention reads, so it is counted."
    assert both.pop("notes") == [*found.pop("notes"), said]
    assert both == found


def test_the_tables_say_that_every_figure_is_modelled(roofline):
    status, out, err = roofline(*TEACHING, "--no-attention", "--concurrency", "1,295")
    assert (status, err) == (0, "")
    titles = [
        line for line in out.splitlines() if line and not line.startswith((" ", "Model", "Device", "Request", "Note"))
    ]
    assert len(titles) == 5
    assert all("modelled" in title for title in titles)
    assert "  block                   4    275 ms      x 3.92  1 prefill + 64 denoise\n" in out
    assert "Crossover (modelled): 37 requests in flight; block is faster than ar from 1 to 36." in out
    assert "Device (datasheet): H100 SXM, reads 3.352 TB/s, multiplies 989.4 TFLOP/s" in out


def test_without_arguments_it_measures_this_machine_and_takes_the_embedded_model(roofline, measured):
    status, out, err = roofline()
    assert status == 0
    assert measured == [("cpu", "torch.float32")]
    assert err == "Measuring what this machine reads and multiplies ...\n"
    assert out.startswith(
        "Model: tiny-mdm, 1.06M parameters, 4.222 MB in float32; attention counted\nDevice (measured): "
    )
    assert "the fastest pass counts; three in four reached 9 GB/s and 80 GFLOP/s" in out
    assert "Neither --model nor --params is given: the embedded tiny-mdm is taken." in out
    assert "The weights fit into the last-level cache" in out


def test_a_models_config_is_enough(roofline, tmp_path):
    # Llama 3 8B's sizes: 32 layers of 4,096 with 32 query heads and 8 of keys and values.
    config = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = facts(roofline("--model", str(tmp_path), "--device-spec", "h100-sxm", "--json"))
    assert found["model"]["parameters"] == 8030261248
    assert found["model"]["dimensions"]["embedding"] == 128256 * 4096
    # Every token reads all weights but the embedding, of which it looks up one row.
    step = next(row for row in found["forwards"] if (row["decoder"], row["kind"]) == ("ar", "denoise"))
    columns = 512 + 257 / 2
    assert step["bytes"] == 2 * (8030261248 - 128256 * 4096 + 4096 + columns * 2 * 32 * 8 * 128)


def test_a_mixture_by_its_sizes(roofline):
    sizes = ("--params", "7e9", "--active-params", "1.4e9", "--experts", "64", "--experts-per-token", "8")
    found = facts(roofline(*sizes, "--device-spec", "h100-sxm", "--concurrency", "1", "--json"))
    reads = {(row["decoder"], row["kind"]): row["bytes"] for row in found["forwards"]}
    assert reads["ar", "denoise"] == pytest.approx(2 * 1.4e9)
    # 32 positions touch 98.6 % of 6.4e9 routed parameters, beside 0.6e9 others.
    assert reads["block", "denoise"] == pytest.approx(2 * (0.6e9 + 6.4e9 * (1 - 0.875**32)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--params", "0"], "0 is no size of a model: give a number from 1 to 1e+16."),
        (["--params", "-7e9"], "-7e9 is no size of a model"),
        (["--params", "nan"], "nan is no size of a model"),
        (["--params", "inf"], "inf is no size of a model"),
        (["--params", "7B"], "'7B' is no number of parameters, such as 7e9."),
        (["--params", "7e9", "--model", "tiny-ar"], "--model and --params both say how large the model is. Give one of them."),
        (["--layers", "3"], "--layers belongs to --params; a --model says it in its config. Leave it out."),
        (["--params", "7e9", "--layers", "3"], "--layers describes attention, which also needs --kv-heads and --head-dim."),
        (["--params", "7e9", "--experts", "8"], "--experts describes a mixture, which also needs --active-params and --experts-per-token."),
        (["--params", "7e9", "--experts", "8", "--experts-per-token", "8", "--active-params", "7e9"], "chooses all of them"),
        (["--params", "8e9", "--experts", "8", "--experts-per-token", "2", "--active-params", "1e9"], "it lies between 2e+09"),
        (["--params", "7e9", "--layers", "1", "--kv-heads", "3", "--head-dim", "4", "--heads", "4"], "--heads 4 is no multiple of --kv-heads 3"),
        (["--params", "7e9", "--context", "512"], "so it needs --layers, --kv-heads and --head-dim."),
        (["--context", "10"], "--context 10 cannot hold --gen-length 256"),
        (["--params", "7e9", "--device-spec", "h100-sxm5"], "There is no datasheet of 'h100-sxm5' here. Did you mean 'h100-sxm'"),
        (["--params", "7e9", "--device-spec", "h100-sxm", "--device", "cpu"], "--device measures this machine and --device-spec takes a datasheet."),
        (["--params", "7e9", "--device-spec", "h100-sxm", "--dtype", "float32"], "Use --dtype bfloat16 or float8."),
        (["--params", "7e9", "--device-spec", "a100-40gb", "--dtype", "float8"], "A100 40GB has no 8-bit units. Use --dtype bfloat16."),
        (["--params", "7e9", "--dtype", "float8"], "float8 can only be modelled from a datasheet."),
        (["--tokens-per-step", "33"], "--tokens-per-step 33 is more than a block of 32 holds."),
        (["--concurrency", "0"], "--concurrency 0: from 1 to 65536 requests can be in flight."),
        (["--concurrency", "many"], "--concurrency 'many' is no list of whole numbers, such as 1,8,64."),
        (["--prompt", "0"], "0 is not in the range"),
        (["--model", "tiny"], "There is no model 'tiny'"),
        (["--params", "7e9", "--device", "tpu"], "There is no device 'tpu'."),
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence(roofline, arguments, message):
    status, out, err = roofline(*arguments)
    assert (status, out) == (2, "")
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_a_measured_device_of_another_format(roofline, measured):
    found = facts(roofline("--params", "1e9", "--dtype", "bfloat16", "--device", "cpu", "--json"))
    assert measured == [("cpu", "torch.bfloat16")]
    assert found["device"]["status"] == "measured"
    # 2e9 bytes at 10 GB/s.
    assert next(row for row in found["forwards"] if row["kind"] == "denoise")["milliseconds"] == 200
    assert replace(DeviceSpeed("", 1, 1, ""), **found["device"]).cache_bytes == 2**25
