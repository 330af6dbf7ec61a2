"""The part of tiktoken that the scripts use, without a download: a token is a byte."""


class Encoding:
    """Bytes as tokens, in a vocabulary of GPT-2's size."""

    n_vocab = 50257
    eot_token = 50256

    def encode(self, text: str, **_: object) -> list[int]:
        """Token ids of a text."""
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        """Text of token ids."""
        return bytes(token % 256 for token in tokens).decode("latin-1")


def get_encoding(_: str) -> Encoding:
    """The one encoding, whatever its name."""
    return Encoding()
