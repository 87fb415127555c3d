"""Imports what adapters need of PEFT, without bitsandbytes: it would import that, where it is installed, for quantized
models, and no such model is trained here."""

from ..process.imports import without

with without("bitsandbytes"):
    from peft import LoraConfig, inject_adapter_in_model
    from peft.import_utils import is_bnb_available
    from peft.tuners.lora import LoraLayer, ParamWrapper
    from peft.tuners.lora.variants import DoraLinearVariant
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    is_bnb_available()  # which PEFT asks again at each adapter, and whose answer is kept

__all__ = [
    "DoraLinearVariant",
    "LoraConfig",
    "LoraLayer",
    "ParamWrapper",
    "convert_peft_config_for_transformers",
    "inject_adapter_in_model",
]
