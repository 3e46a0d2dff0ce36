"""Muon for the matrices of the layers, AdamW for the embedding and the norms.

Muon (Jordan et al. 2024): momentum, then the nearest semi-orthogonal matrix by a quintic Newton-Schulz iteration. All
matrices of one shape are stacked, so that a step is a few batched products.
"""

import torch


def orthogonalise(g: torch.Tensor) -> torch.Tensor:
    """Newton-Schulz on a stack [n, rows, cols] with rows <= cols."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.01):
        by_shape = {}
        for p in params:
            by_shape.setdefault(tuple(p.shape), []).append(p)
        groups = [{"params": group} for group in by_shape.values()]
        super().__init__(groups, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params, lr, momentum = group["params"], group["lr"], group["momentum"]
            grads = torch.stack([p.grad for p in params])
            state = self.state[params[0]]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(grads)
            state["momentum"].lerp_(grads, 1 - momentum)
            update = grads.lerp(state["momentum"], momentum)  # Nesterov
            rows, cols = params[0].shape
            update = orthogonalise(update.mT).mT if rows > cols else orthogonalise(update)
            scale = lr * max(1.0, rows / cols) ** 0.5
            for p, u in zip(params, update.unbind(), strict=True):
                p.mul_(1 - lr * group["weight_decay"]).add_(u, alpha=-scale)


def make_optimisers(model, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.dim() != 2 or "embed" in name]
    return [Muon(matrices, lr=muon_lr), torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0)]
