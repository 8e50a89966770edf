"""The last level's critic, weights, projection and best capsule, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..network import BestCapsule
from ..network.routing import Router, Routing
from .compile import Kernel, structures
from .critic import FusedCritic, judged
from .layout import STRUCTURES, SumsAt, build
from .prepare import Prepared, Zeros
from .supports import NORMALIZED

STRUCTURES["predict.cu"] = structures("predict.cu")


class FusedHead:
    """c of the last level → a, b, logits and the best capsule. Without a critic, the router gives the fitness."""

    def __init__(
        self, router: Router, critic: FusedCritic | None, projection: nn.Parameter, classes: int, height: int,
        width: int, detach: bool, dropout: float, projection_dropout: float, salt: int, zeros: Zeros | None = None,
    ):  # fmt: skip
        self.router, self.critic, self.projection = router, critic, projection
        self.zeros = zeros or (critic.zeros if critic else Zeros())
        self.classes, self.height, self.width = classes, height, width
        self.detach, self.dropout, self.projection_dropout, self.salt = detach, dropout, projection_dropout, salt
        self.normalized = NORMALIZED[router.weighting]

    def parameters(self) -> list[nn.Parameter]:
        return [*(self.critic.all_parameters() if self.critic else []), self.projection]

    def forward(
        self, c: Tensor, training: bool, seed: Tensor, prepared: Prepared | None
    ) -> tuple[tuple[Tensor, ...], Any]:
        m, n, positions, k = c.shape
        vectors, outputs = n * positions, self.projection.shape[1]
        sums = self.zeros(16, c.device)
        of_raw = SumsAt(sums.data_ptr(), sums.data_ptr() + 32, 0)
        said, saved = judged(self.router, self.critic, c, training, seed, of_raw, prepared)
        a, b, noisy = torch.empty((3, m, vectors), device=c.device)
        sum_, logits = torch.empty((m, k), device=c.device), torch.empty((m, outputs), device=c.device)
        vector, position = torch.empty((m, k), device=c.device), torch.empty((m, 2), device=c.device)
        place = torch.empty((m, 3), dtype=torch.int64, device=c.device)
        facts = {
            **said,
            "c": c,
            "w": self.projection,
            "a": a,
            "b": b,
            "noisy": noisy,
            "sum": sum_,
            "place": place,
            "vectors": vectors,
            "height": self.height,
            "width": self.width,
            "k": k,
            "outputs": outputs,
            "classes": self.classes,
            "running": not training,
            "normalized": self.normalized,
            "sharpness": self.router.sharpness,
            "growing": 0 if self.router.growing is None or not training else self.router.growing,
            "detach": self.detach,
            "keep": 1 - self.dropout if training else 1.0,
            "keep_c": 1 - self.projection_dropout if training else 1.0,
            "seed": seed,
            "salt": self.salt,
            "statistics": STRUCTURES["predict.cu"]["Statistics"](*of_raw.addresses()),
            "count": m * vectors,
        }
        arguments = build(
            STRUCTURES["predict.cu"]["Predict"],
            **facts,
            logits=logits,
            vector=vector,
            position=position,
            update=training and self.critic is not None,
            share=self.router.noise_share if training else 0.0,
            std=self.router.noise_std,
        )
        Kernel("predict.cu", "predict_forward")((m, 1, 1), 128, 4 * (32 + vectors + k), arguments)
        answers = (a, b, logits, vector, position, place)
        return answers, (saved, facts, sums, answers)

    def backward(
        self, saved: Any, da: Tensor | None, db: Tensor | None, dlogits: Tensor, dvector: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        of_critic, facts, *_ = saved
        c = facts["c"]
        m, n, positions, k = c.shape
        dc, g = torch.empty_like(c), None if self.critic is None else torch.empty_like(facts["raw"])
        gradient = self.zeros(2, c.device)
        dgamma, dbeta = gradient[0], gradient[1]
        arguments = build(
            STRUCTURES["predict.cu"]["Predict"],
            **facts,
            dc=dc,
            g=0 if g is None else g,
            da=0 if da is None else da,
            db=0 if db is None else db,
            dlogits=dlogits,
            dvector=0 if dvector is None else dvector,
            dgamma=dgamma,
            dbeta=dbeta,
        )
        Kernel("predict.cu", "predict_backward")((m, 1, 1), 128, 4 * (32 + n * positions + k), arguments)
        dw = facts["sum"].t() @ dlogits
        if self.critic is None or g is None:
            return dc, [dw]
        d_raw = self.critic.through_norm(facts, g, facts["raw"], dgamma, dbeta, m, n * positions)
        return dc, [*self.critic.backward(of_critic, d_raw), dgamma.view(1), dbeta.view(1), dw]


class _Predicted(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, head: FusedHead, c: Tensor, seed: Tensor, prepared: Prepared | None, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        answers, saved = head.forward(c, True, seed, prepared)
        ctx.head, ctx.saved = head, saved
        ctx.mark_non_differentiable(answers[4], answers[5], *(() if head.critic else answers[:2]))
        ctx.set_materialize_grads(False)
        return answers

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        da, db, dlogits, dvector, *_ = (None if d is None else d.float().contiguous() for d in gradients)
        if dlogits is None:  # a loss that does not depend on the prediction
            dlogits = torch.zeros_like(ctx.saved[-1][2])
        dc, of_parameters = ctx.head.backward(ctx.saved, da, db, dlogits, dvector)
        del ctx.saved
        return (None, dc, None, None, *of_parameters)


def predicted(
    head: FusedHead, c: Tensor, training: bool, seed: Tensor, prepared: Prepared | None = None
) -> tuple[Routing, Tensor, BestCapsule]:
    if training:
        a, b, logits, vector, position, place = _Predicted.apply(head, c, seed, prepared, *head.parameters())
    else:
        (a, b, logits, vector, position, place), _ = head.forward(c, False, seed, prepared)
    shape = (c.shape[0], c.shape[1], head.height, head.width)
    return Routing(a.view(shape), b.view(shape)), logits, BestCapsule(vector, position, place)
