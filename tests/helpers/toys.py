"""Toy models whose order of tokens is known: the score of an answer is a sum over the tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from tests.helpers.tiny import tokenizer

WEIGHTS = {"cat": 1.5, "dog": -0.75, "mat": 0.5, "red": -0.25, "sat": 0.125, "sun": 0.0}


class ToyConfig(PretrainedConfig):
    """The configuration of the toys: 60 ids, as the tiny tokenizer has them."""

    model_type = "toy"

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"pad_token_id": 1, **options})
        self.vocab_size, self.hidden_size = 60, 1


class _Toy(PreTrainedModel):
    config_class = ToyConfig

    def __init__(self, config: ToyConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(60, 1)
        with torch.no_grad():
            self.words.weight.zero_()
            for word, weight in WEIGHTS.items():
                index = tokenizer().convert_tokens_to_ids(word)
                self.words.weight[index] = weight
        self.double().eval()

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def weights(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        summands = self.words(input_ids)[..., 0]
        return summands if attention_mask is None else summands * attention_mask


class ToyForSequenceClassification(_Toy):
    """The logit of the first class is the sum of the tokens' weights, that of the second is 0."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        total = self.weights(input_ids, attention_mask).sum(-1)
        return SimpleNamespace(logits=torch.stack([total, torch.zeros_like(total)], dim=-1))


class ToyForCausalLM(_Toy):
    """The logit of id 7 after a token is the sum of the weights up to it; all others are 0."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Any:
        sums = self.weights(input_ids, attention_mask).cumsum(-1)
        logits = torch.zeros(*sums.shape, 60, dtype=sums.dtype)
        logits[..., 7] = sums
        return SimpleNamespace(logits=logits)


def toy_classifier() -> Any:
    return ToyForSequenceClassification(ToyConfig(num_labels=2))


def toy_language_model() -> Any:
    return ToyForCausalLM(ToyConfig())


def toy_scores(factor: float = 1.0) -> Any:
    """A method that scores each token by its weight, times a factor."""

    def scores(model: Any, _tokenizer: Any, texts: Any) -> list[Any]:
        from normscope.attribution.reading import Reader

        reader = Reader(model, _tokenizer, truncate=False)
        causal = type(model).__name__ == "ToyForCausalLM"
        rows = [reader.prompt(t)[0] if causal else reader.text(t) for t in texts]
        table = model.words.weight.detach().numpy()[:, 0]
        return [factor * table[row.ids] for row in rows]

    return scores
