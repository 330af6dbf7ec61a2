"""An LSTM language model."""

import torch
from torch import nn


class LSTMLanguageModel(nn.Module):
    """Stacked LSTM layers: [batch, sequence_length] token ids → [batch, sequence_length,
    vocabulary_size] logits. Forward FLOPs per token are 16·hidden² per layer (four gates, for input
    and state) + 2·hidden·vocabulary_size."""

    def __init__(self, vocabulary_size: int, hidden_size: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, hidden_size)
        self.recurrent = nn.LSTM(hidden_size, hidden_size, num_layers=layers, batch_first=True)
        self.output = nn.Linear(hidden_size, vocabulary_size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.embedding(tokens))
        return self.output(hidden)
