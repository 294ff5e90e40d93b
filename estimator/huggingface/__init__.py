"""Models as Hugging Face writes them down: a ``config.json`` becomes a ``Transformer``."""

from estimator.huggingface.reader import model_of

__all__ = ["model_of"]
