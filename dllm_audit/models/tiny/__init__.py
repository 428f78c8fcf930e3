"""The models embedded in the package: three small twins, one per kind of decoding, with what made them.

`EMBEDDED_MODELS` maps a name to its folder. Importing this package does not import torch.
"""

from pathlib import Path

EMBEDDED_MODELS: dict[str, Path] = {
    name: Path(__file__).parent / "weights" / name for name in ("tiny-ar", "tiny-mdm", "tiny-block")
}
"""Name -> folder with config.json, model.safetensors, the tokenizer and a model card."""
