"""The methods that a config.json may name in `quant_method`, a file for each."""

from numaserve.workers.models.config.quantization_methods.auto_round import auto_round
from numaserve.workers.models.config.quantization_methods.awq import awq
from numaserve.workers.models.config.quantization_methods.compressed_tensors import compressed_tensors
from numaserve.workers.models.config.quantization_methods.fp8 import fp8
from numaserve.workers.models.config.quantization_methods.gptq import gptq
from numaserve.workers.models.config.quantization_methods.modelopt import has_fixed_inputs, modelopt, modelopt_settings
from numaserve.workers.models.config.quantization_methods.mxfp4 import mxfp4
from numaserve.workers.models.config.quantization_methods.rules import Rule

__all__ = [
    "Rule",
    "auto_round",
    "awq",
    "compressed_tensors",
    "fp8",
    "gptq",
    "has_fixed_inputs",
    "modelopt",
    "modelopt_settings",
    "mxfp4",
]
