"""dllm-audit: is a diffusion language model really faster, at this quality, on this machine?"""

__version__ = "0.1.0"
