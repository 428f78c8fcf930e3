"""What devices and models are made of, from datasheets and model cards: the data of the physics check.

Every figure is nominal, from the source beside it, never measured. A device that serves cannot be faster than its
datasheet, so a bound from it errs in favour of the claim. Where no document of the vendor has a figure, its source says
how it came about and `checked` is False: the physics check then says that it rests on unverified figures.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dllm_audit.measure.roofline import DeviceSpeed
from dllm_audit.models.dimensions import Dimensions


@dataclass(frozen=True)
class Device:
    """`bandwidth` in bytes/s; peaks of dense matrix multiplication in FLOP/s, None: no such unit.

    bf16, fp8: with sums in float32. short: the fastest unit for 8-bit numbers of any kind, where that is another one
    (integers, or sums in float16). fp4: for 4-bit numbers. variant: what a name must also have for these figures to be
    those of just that device; without it they are a choice. checked: whether the source, or a table that quotes it word
    for word, was read.
    """

    name: str
    pattern: str
    bandwidth: float
    bf16: float
    fp8: float | None
    source: str
    short: float | None = None
    fp4: float | None = None
    variant: str = ""
    checked: bool = True

    def peak(self, weight_bytes: float) -> float:
        """The peak of floating-point weights of so many bytes; what is narrower than its units runs on the next wider ones."""
        return self.fp8 if self.fp8 and weight_bytes <= 1 else self.bf16

    def fastest(self, weight_bytes: float) -> float:
        """The fastest peak that any weights of so many bytes can use, as favours a claim."""
        peaks = [self.bf16]
        peaks += [peak for peak in (self.fp8, self.short) if peak and weight_bytes <= 1]
        peaks += [self.fp4] if self.fp4 and weight_bytes <= 0.5 else []
        return max(peaks)

    def speed(self, weight_bytes: float) -> DeviceSpeed:
        """Its roofs for floating-point weights of so many bytes."""
        return DeviceSpeed(self.name, self.bandwidth, self.peak(weight_bytes), "datasheet", self.source)

    def is_named_by(self, name: str) -> bool:
        """Whether `name` is that of just this device, and not of a family from which it was chosen."""
        return all(re.search(pattern, name, re.IGNORECASE) for pattern in (self.pattern, self.variant))

    def caution(self, name: str) -> str:
        """What has to be known before these figures are taken for those of the device that a source calls `name`."""
        said = []
        if not self.is_named_by(name):
            said.append(f"{name!r} names no variant: taken as {self.name}.")
        if not self.checked:
            said.append(f"The figures of {self.name} are unverified: {self.source}.")
        return " ".join(said)

    def best_speed(self, weight_bytes: float) -> DeviceSpeed:
        """Its roofs for any weights of so many bytes."""
        return DeviceSpeed(self.name, self.bandwidth, self.fastest(weight_bytes), "datasheet", self.source)


_H100 = "NVIDIA H100 architecture whitepaper, Table 3, dense"
_A100 = "NVIDIA A100 datasheet, dense"
_BLACKWELL = "NVIDIA Blackwell datasheet, one GPU, up to 8 TB/s, its peaks with sparsity halved"

#: The first whose pattern is found in the name that a source gives wins, so variants stand before the plain name.
DEVICES: tuple[Device, ...] = (
    Device("H100 PCIe", r"h100.*pcie", 2.039e12, 756e12, 1513e12, _H100),
    Device("H100 NVL", r"h100.*nvl\b", 3.9e12, 835.5e12, 1671e12, "NVIDIA H100 NVL product page, dense"),
    Device("H100 SXM", r"h100", 3.352e12, 989.4e12, 1978.9e12, _H100, variant=r"sxm|hbm3"),
    Device("H800 SXM", r"h800", 3.35e12, 989.4e12, 1978.9e12, f"as H100 SXM, from which it differs in its links: {_H100}"),
    Device("H200", r"h200", 4.8e12, 989.4e12, 1978.9e12, "NVIDIA H200 datasheet, SXM, dense"),
    Device(
        "H20", r"\bh20\b", 4.0e12, 148e12, 296e12, "tables of resellers, 96 GB, which agree; no document of NVIDIA was found",
        checked=False,
    ),
    Device("GB200", r"\bgb200\b", 8.0e12, 2.5e15, 5.0e15, _BLACKWELL, fp4=10e15),
    Device("B200", r"\bb200\b", 8.0e12, 2.25e15, 4.5e15, _BLACKWELL, fp4=9e15),
    Device("A100 40GB", r"a100.*40\s*gb", 1.555e12, 312e12, None, _A100, short=624e12),
    Device("A100 80GB", r"a[18]00", 2.039e12, 312e12, None, f"{_A100}, SXM", short=624e12, variant=r"80\s*gb"),
    Device(
        "RTX PRO 6000 Blackwell", r"rtx pro 6000", 1.792e12, 503.8e12, 1007.6e12,
        "NVIDIA RTX Blackwell PRO whitepaper, Table 4, Workstation Edition, dense", fp4=2015.2e12,
        variant="workstation|server|max-q",
    ),
    Device(
        "GB10 of DGX Spark", r"dgx spark|gb10", 0.273e12, 125e12, 250e12,
        "273 GB/s and 1 PFLOP of FP4 with sparsity are NVIDIA's; half of it dense, half of that in FP8 and again in BF16 is "
        "our arithmetic",
        fp4=500e12, checked=False,
    ),
    Device(
        "RTX 5090", r"5090", 1.792e12, 209.5e12, 419e12, "NVIDIA RTX Blackwell whitepaper, Table 3, dense",
        short=838e12, fp4=1676e12,
    ),
    Device("B200", r"blackwell", 8.0e12, 2.25e15, 4.5e15, _BLACKWELL, fp4=9e15, variant="b200"),
    Device(
        "RTX 4090", r"4090", 1.008e12, 165.2e12, 330.3e12, "NVIDIA Ada whitepaper, Appendix A, dense", short=660.6e12
    ),
)  # fmt: skip


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
    ModelSize(
        "LLaDA-MoE-7B-A1B",
        r"llada-?moe",
        7e9,
        1.4e9,
        "LLaDA-MoE, arXiv:2509.24389; configuration: 64 experts, 8 per token",
        64,
        8,
    ),
    ModelSize(
        "LLaDA2-mini",
        r"llada2(\.\d)?-mini",
        16e9,
        1.4e9,
        "LLaDA2.0, arXiv:2512.15745; configuration: 256 experts, 8 per token",
        256,
        8,
    ),
    ModelSize(
        "LLaDA2-flash",
        r"llada2(\.\d)?-flash",
        100e9,
        6.1e9,
        "LLaDA2.0, arXiv:2512.15745; configuration: 256 experts, 8 per token",
        256,
        8,
    ),
    ModelSize(
        "DiffusionGemma 26B-A4B",
        r"diffusiongemma",
        25.2e9,
        3.8e9,
        "its model card; vLLM recipe: 128 experts, 8 per token",
        128,
        8,
    ),
    ModelSize(
        "Qwen3-30B-A3B",
        r"qwen3-(coder-)?30b",
        30.5e9,
        3.3e9,
        "Qwen3-30B-A3B model card: 128 experts, 8 per token",
        128,
        8,
    ),
    _dense("LLaDA-8B", r"llada(-1\.5|-8b|\b)", 8.0e9, "LLaDA, arXiv:2502.09992, Table 5"),
    _dense("Dream-7B", r"dream", 7.6e9, "Dream-v0 model card, from Qwen2.5-7B"),
    _dense("DiffuCoder-7B", r"diffucoder", 7.6e9, "DiffuCoder model card, from Qwen2.5-Coder-7B"),
    _dense("Fast-dLLM v2 1.5B", r"fast-?dllm[ -]?v2.*1\.5b", 1.54e9, "Fast_dLLM_v2_1.5B model card, from Qwen2.5-1.5B"),
    _dense("Fast-dLLM v2 7B", r"fast-?dllm[ -]?v2", 7.6e9, "Fast_dLLM_v2_7B model card, from Qwen2.5-7B"),
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
