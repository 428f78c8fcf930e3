"""What devices and models are made of, from datasheets and model cards: the data of the physics check.

Every figure is nominal, from the source beside it, never measured. A device that serves cannot be faster than its
datasheet, so a bound from it errs in favour of the claim.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dllm_audit.measure.roofline import DeviceSpeed
from dllm_audit.models.dimensions import Dimensions


@dataclass(frozen=True)
class Device:
    """`bandwidth` in bytes/s; peaks of dense matrix multiplication in FLOP/s. `fp8` None: no such unit."""

    name: str
    pattern: str
    bandwidth: float
    bf16: float
    fp8: float | None
    source: str

    def peak(self, weight_bytes: float) -> float:
        """The fastest peak that weights of so many bytes can use; 8-bit weights may run on 8-bit units."""
        return self.fp8 if self.fp8 and weight_bytes <= 1 else self.bf16

    def speed(self, weight_bytes: float) -> DeviceSpeed:
        """Its roofs for weights of so many bytes."""
        return DeviceSpeed(self.name, self.bandwidth, self.peak(weight_bytes), "datasheet", self.source)


#: The first whose pattern is found in the name that a source gives wins, so variants stand before the plain name.
DEVICES: tuple[Device, ...] = (
    Device("H100 PCIe", r"h100.*pcie", 2.0e12, 756e12, 1513e12, "NVIDIA H100 datasheet, 2022, dense"),
    Device("H100 NVL", r"h100.*nvl\b", 3.9e12, 835.5e12, 1671e12, "NVIDIA H100 NVL datasheet, dense"),
    Device("H100 SXM", r"h100", 3.352e12, 989.4e12, 1978.9e12, "NVIDIA H100 whitepaper, SXM5, dense"),
    Device("H800 SXM", r"h800", 3.35e12, 989.4e12, 1978.9e12, "as H100 SXM; H800 differs in its links"),
    Device("H200", r"h200", 4.8e12, 989.4e12, 1978.9e12, "NVIDIA H200 datasheet, SXM, dense"),
    Device("H20", r"\bh20\b", 4.0e12, 148e12, 296e12, "NVIDIA H20 datasheet, 96 GB, dense"),
    Device("GB200", r"\bgb200\b", 8.0e12, 2.5e15, 5.0e15, "NVIDIA GB200 datasheet, one GPU, dense"),
    Device("B200", r"\bb200\b", 8.0e12, 2.25e15, 4.5e15, "NVIDIA HGX B200 datasheet, dense"),
    Device("A100 40GB", r"a100.*40\s*gb", 1.555e12, 312e12, None, "NVIDIA A100 datasheet, 40 GB, dense"),
    Device("A100 80GB", r"a[18]00", 2.039e12, 312e12, None, "NVIDIA A100 datasheet, SXM 80 GB, dense"),
    Device(
        "RTX PRO 6000 Blackwell",
        r"rtx pro 6000",
        1.792e12,
        503.8e12,
        1007.6e12,
        "NVIDIA RTX Blackwell PRO whitepaper, dense",
    ),
    Device(
        "GB10 of DGX Spark", r"dgx spark|gb10", 0.273e12, 125e12, 250e12, "NVIDIA DGX Spark datasheet, from FP4 sparse"
    ),
    Device("RTX 5090", r"5090", 1.792e12, 209.5e12, 419e12, "NVIDIA Blackwell whitepaper, FP32 accumulation, dense"),
    Device("Blackwell, taken as B200", r"blackwell", 8.0e12, 2.25e15, 4.5e15, "NVIDIA HGX B200 datasheet, dense"),
    Device("RTX 4090", r"4090", 1.008e12, 165.2e12, 330.3e12, "NVIDIA Ada whitepaper, FP32 accumulation, dense"),
)


@dataclass(frozen=True)
class ModelSize:
    """`parameters` in all, `active` per token; `experts` and `per_token` are None for a dense model."""

    name: str
    pattern: str
    parameters: float
    active: float
    source: str
    experts: int | None = None
    per_token: int | None = None

    @property
    def dimensions(self) -> Dimensions:
        """What a forward reads and multiplies of it, as far as the sizes tell."""
        return Dimensions.of_size(self.parameters, self.active, self.experts or 0, self.per_token or 0)


def _dense(name: str, pattern: str, parameters: float, source: str) -> ModelSize:
    return ModelSize(name, pattern, parameters, parameters, source)


#: As above: the first pattern that is found wins.
MODELS: tuple[ModelSize, ...] = (
    ModelSize("LLaDA-MoE-7B-A1B", r"llada-?moe", 7e9, 1.4e9, "LLaDA-MoE model card: 64 experts, 8 per token", 64, 8),
    ModelSize("LLaDA2-mini", r"llada2(\.\d)?-mini", 16e9, 1.4e9, "model card; Ling-mini-2.0: 256 experts, 8", 256, 8),
    ModelSize(
        "LLaDA2-flash", r"llada2(\.\d)?-flash", 100e9, 6.1e9, "model card; Ling-flash-2.0: 256 experts, 8", 256, 8
    ),
    ModelSize(
        "DiffusionGemma 26B-A4B", r"diffusiongemma", 25.2e9, 3.8e9, "model card: 128 experts, 8 per token", 128, 8
    ),
    ModelSize("Qwen3-30B-A3B", r"qwen3-(coder-)?30b", 30.5e9, 3.3e9, "model card: 128 experts, 8 per token", 128, 8),
    _dense("LLaDA-8B", r"llada(-1\.5|-8b|\b)", 8.0e9, "LLaDA, arXiv:2502.09992, Table 5"),
    _dense("Dream-7B", r"dream", 7.6e9, "model card, from Qwen2.5-7B"),
    _dense("DiffuCoder-7B", r"diffucoder", 7.6e9, "model card, from Qwen2.5-Coder-7B"),
    _dense("Fast-dLLM v2 1.5B", r"fast-?dllm[ -]?v2.*1\.5b", 1.54e9, "model card, from Qwen2.5-1.5B"),
    _dense("Fast-dLLM v2 7B", r"fast-?dllm[ -]?v2", 7.6e9, "model card, from Qwen2.5-7B"),
    _dense("Qwen2.5-7B", r"qwen2\.5(-coder)?-7b", 7.6e9, "Qwen2.5 technical report, Table 1"),
    _dense("Qwen3-8B", r"qwen3-8b", 8.2e9, "Qwen3 technical report, Table 1"),
    _dense("Qwen3-4B", r"qwen3-4b", 4.0e9, "Qwen3 technical report, Table 1"),
    _dense("Qwen3-0.6B", r"qwen3-0\.6b", 0.6e9, "Qwen3 technical report, Table 1"),
    _dense("LLaMA-3-8B", r"llama-?3(\.1)?-?8b", 8.03e9, "Llama 3 model card"),
    _dense("7B of the teaching model", r"\b7b, 1\.4e10 bytes", 7e9, "1.4e10 bytes of bf16 weights"),
)


def find_device(name: str) -> Device | None:
    """The device that a source's wording names, or None."""
    return next((device for device in DEVICES if re.search(device.pattern, name, re.IGNORECASE)), None)


def find_model_size(*names: str) -> ModelSize | None:
    """The model that the first telling one of `names` is, or None."""
    for name in names:
        for model in MODELS:
            if re.search(model.pattern, name, re.IGNORECASE):
                return model
    return None


_WEIGHT_BYTES = (
    (r"fp4|int4|4-?bit|w4", 0.5),
    (r"fp8|int8|8-?bit|w8", 1.0),
    (r"bf16|fp16|float16|half|16-?bit", 2.0),
    (r"fp32|float32", 4.0),
)


def bytes_per_weight(precision: str) -> float | None:
    """Bytes that one weight takes in the precision that a source names, or None when it names none."""
    return next((size for pattern, size in _WEIGHT_BYTES if re.search(pattern, precision, re.IGNORECASE)), None)
