"""An architecture that Transformers lacks: Llama whose feed-forward layers have a squared ReLU in place of SwiGLU.

After Primer (So et al. 2021, arXiv:2109.08668): W_down relu(W_up x)^2.
"""

from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification, LlamaModel


class PrimerConfig(LlamaConfig):
    model_type = "primer"


class SquaredReLU(nn.Module):
    """[..., hidden_size] -> [..., hidden_size]."""

    def __init__(self, config: PrimerConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.up_proj(x).relu().square())


class PrimerModel(LlamaModel):
    config_class = PrimerConfig

    def __init__(self, config: PrimerConfig) -> None:
        super().__init__(config)
        for layer in self.layers:
            layer.mlp = SquaredReLU(config)
        self.post_init()


class PrimerForCausalLM(LlamaForCausalLM):
    config_class = PrimerConfig

    def __init__(self, config: PrimerConfig) -> None:
        super().__init__(config)
        self.model = PrimerModel(config)
        self.post_init()


class PrimerForTokenClassification(LlamaForTokenClassification):
    """PPO's critic. Transformers makes it of the base class of its configuration, which is PrimerModel."""

    config_class = PrimerConfig
