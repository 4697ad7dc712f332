"""MTP feedback: a target residual and the embedding of the token after it become the draft layer's residual.

Shapes: R rows, S streams, H hidden. Source: section 9.2 of Qwen4-exp's description; b12x `sequence/mtp_feedback`.
"""

from torch import Tensor

from flare.layers.hyperconnection import StreamShape
from flare.layers.storage import Storage
from flare.ops.operators import Operators
from flare.plan.declarations import Declarations, Weight


class MtpFeedback:
    """r0[s] = fc_hidden · norm(h)[s] + fc_embedding · norm(e); one norm over all S · H of h. Stateless."""

    def __init__(self, name: str, shape: StreamShape, dtype: str) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype

    def declare(self) -> Declarations:
        hidden, square = self.shape.hidden, (self.shape.hidden, self.shape.hidden)
        return Declarations(
            weights=(
                Weight(f"{self.name}.pre_fc_norm_embedding.weight", (hidden,), self.dtype),
                Weight(f"{self.name}.pre_fc_norm_hidden.weight", (self.shape.width,), self.dtype),
                Weight(f"{self.name}.fc_embedding.weight", square, self.dtype, linear=True),
                Weight(f"{self.name}.fc_hidden.weight", square, self.dtype, linear=True),
            )
        )

    def bind(self, storage: Storage, ops: Operators) -> None:
        self.ops = ops
        self.norm_embedding = storage.weights[f"{self.name}.pre_fc_norm_embedding.weight"]
        self.norm_hidden = storage.weights[f"{self.name}.pre_fc_norm_hidden.weight"]
        self.fc_embedding = storage.linears[f"{self.name}.fc_embedding.weight"]
        self.fc_hidden = storage.linears[f"{self.name}.fc_hidden.weight"]

    def __call__(self, embedding: Tensor, feedback: Tensor) -> Tensor:
        """Embeddings [R, H] of the tokens one position later, residuals [R, S · H] → r0 [R, S · H]."""
        ops, shape = self.ops, self.shape
        normed = ops.zero_centred_norm(feedback, self.norm_hidden, shape.eps)
        streams = ops.linear(normed.view(-1, shape.hidden), self.fc_hidden).view(-1, shape.streams, shape.hidden)
        token = ops.linear(ops.zero_centred_norm(embedding, self.norm_embedding, shape.eps), self.fc_embedding)
        return (streams + token[:, None]).flatten(1)
