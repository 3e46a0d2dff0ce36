"""Train an early-exit drafter for the example checkpoint: its lower layers, an adapter, and its own final matrix.

    python train_draft.py                    # writes draft.safetensors, prints the table of acceptance in README.md
    python train_draft.py --measure-only     # the table without training: lower layers as they are, and the shipped adapter

The adapter turns the state after layer l into one that the final norm and the tied output matrix read as a draft of the
next token:  y = x + down(silu(gate(n)) * up(n)),  n = norm(x);  logits = embedding @ head_norm(linear(y)).  It is
distilled: the loss is KL(model || draft) over all bytes, on the text that the model was trained on. The model itself
does not change, so drafting shares its KV rows. The choice of l is by expected speed (`speed` below).
"""

import argparse
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from data import BOS, load_text
from evaluate import HERE, load_checkpoint
from model import Llama, RMSNorm
from train import write_atomically


class Adapter(nn.Module):
    """Starts as the identity; without `ffn` the MLP is left out."""

    def __init__(self, model: Llama, ffn: int):
        super().__init__()
        hidden, eps = model.shape.hidden, model.shape.eps
        self.ffn = ffn
        if ffn:
            self.norm = RMSNorm(hidden, eps)
            self.gate = nn.Linear(hidden, ffn, bias=False)
            self.up = nn.Linear(hidden, ffn, bias=False)
            self.down = nn.Linear(ffn, hidden, bias=False)
            for w in (self.gate.weight, self.up.weight):
                nn.init.normal_(w, std=hidden**-0.5)
            nn.init.zeros_(self.down.weight)
        self.linear = nn.Linear(hidden, hidden, bias=False)
        nn.init.eye_(self.linear.weight)
        self.head_norm = RMSNorm(hidden, eps)
        self.head_norm.weight.data.copy_(model.model.norm.weight)

    def forward(self, x):
        if self.ffn:
            n = self.norm(x)
            x = x + self.down(F.silu(self.gate(n)) * self.up(n))
        return self.head_norm(self.linear(x))


@torch.no_grad()
def states(model: Llama, text: np.ndarray, starts, context: int, depths) -> tuple[dict, torch.Tensor]:
    """The states after each of `depths` layers, [tokens, hidden], and after the last one with its norm."""
    out, last = {d: [] for d in depths}, []
    cos, sin = model.cos[:context], model.sin[:context]
    for group in np.array_split(np.asarray(starts), max(1, len(starts) // 8)):
        rows = np.stack([np.concatenate(([BOS], text[s : s + context - 1])) for s in group]).astype(np.int64)
        x = model.model.embed_tokens(torch.from_numpy(rows))
        for depth, layer in enumerate(model.model.layers, start=1):
            x = layer(x, cos, sin)
            if depth in out:
                out[depth].append(x.flatten(0, 1))
        last.append(model.model.norm(x).flatten(0, 1))
    return {d: torch.cat(parts) for d, parts in out.items()}, torch.cat(last)


def train(model: Llama, adapter: Adapter, x: torch.Tensor, final: torch.Tensor, steps: int, rate: float) -> None:
    embedding = model.model.embed_tokens.weight.detach()
    optimiser = torch.optim.AdamW(adapter.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
    draws = torch.Generator().manual_seed(2026)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 50, (steps - step) / (0.5 * steps))
        rows = torch.randint(len(x), (1024,), generator=draws)
        target = F.log_softmax(final[rows] @ embedding.T, -1)
        draft = F.log_softmax(adapter(x[rows]) @ embedding.T, -1)
        loss = F.kl_div(draft, target, log_target=True, reduction="batchmean")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@torch.no_grad()
def acceptance(model: Llama, draft_state: torch.Tensor, final: torch.Tensor) -> tuple[float, float]:
    """Shares of tokens: the same most likely byte; sum of min(p, q), what a sampled draft is accepted with."""
    embedding = model.model.embed_tokens.weight
    same, overlap = [], []
    for d, f in zip(draft_state.split(8192), final.split(8192), strict=True):
        p, q = F.softmax(f @ embedding.T, -1), F.softmax(d @ embedding.T, -1)
        same.append((p.argmax(-1) == q.argmax(-1)).float())
        overlap.append(torch.minimum(p, q).sum(-1))
    return torch.cat(same).mean().item(), torch.cat(overlap).mean().item()


def cost(model: Llama, depth: int, adapter: Adapter | None) -> float:
    """Weights that a drafted token reads, of those that a token of the model reads."""
    embedding = model.model.embed_tokens.weight.numel()
    layer = sum(p.numel() for p in model.model.layers[0].parameters())
    extra = sum(p.numel() for p in adapter.parameters()) if adapter else 0
    return (depth * layer + extra + embedding) / (model.shape.layers * layer + embedding)


def speed(accepted: float, price: float) -> tuple[float, int]:
    """Tokens per time of one decoded token, over chains of 1 to 8, if a step verifies at the price of one token and
    every drafted token is accepted alike: (1 + a + ... + a^g) / (1 + g price). The best chain is the second result."""
    return max((sum(accepted**i for i in range(g + 1)) / (1 + g * price), g) for g in range(1, 9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure-only", action="store_true")
    parser.add_argument("--tokens", type=int, default=400_000, help="bytes of text to distil on")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--candidates", default="1:0,1:96,1:160,1:256,2:0,2:160,3:0", help="layers:ffn of the adapters tried")
    parser.add_argument("--checkpoint", type=pathlib.Path, default=HERE)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/decant-model")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "draft.safetensors")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(2026)
    model = load_checkpoint(args.checkpoint)
    train_text, held_out = load_text(args.cache)
    windows = lambda text, count: np.linspace(0, len(text) - args.context, count).astype(int)
    began = time.monotonic()
    test, test_final = states(model, held_out, windows(held_out, 64), args.context, range(1, 7))

    print("| drafter | greedy | sampled | cost | speed greedy | speed sampled |\n|---|---|---|---|---|---|", flush=True)

    def report(name: str, state: torch.Tensor, price: float) -> float:
        greedy, sampled = acceptance(model, state, test_final)
        (fast, g), (fast_sampled, gs) = speed(greedy, price), speed(sampled, price)
        print(f"| {name} | {greedy:.3f} | {sampled:.3f} | {price:.3f} | {fast:.2f} (chain {g}) | {fast_sampled:.2f} (chain {gs}) |",
              flush=True)
        return fast_sampled

    for depth in range(1, 7):
        report(f"{depth} layers", model.model.norm(test[depth]), cost(model, depth, None))

    if args.measure_only:
        with safe_open(args.out, "pt") as file:
            depth = int(file.metadata()["layers"])
            weights = {name: file.get_tensor(name).float() for name in file.keys()}
        adapter = Adapter(model, weights["gate.weight"].shape[0] if "gate.weight" in weights else 0)
        adapter.load_state_dict(weights)
        report(f"{depth} layers + {args.out.name}", adapter(test[depth]), cost(model, depth, adapter))
        return

    candidates = [tuple(map(int, c.split(":"))) for c in args.candidates.split(",")]
    depths = sorted({depth for depth, _ in candidates})
    x, final = states(model, train_text, windows(train_text, args.tokens // args.context), args.context, depths)
    best, fastest = None, 0.0
    for depth, ffn in candidates:
        torch.manual_seed(2026)
        adapter = Adapter(model, ffn)
        train(model, adapter, x[depth], final, args.steps, args.rate)
        kind = f"MLP {ffn} + linear" if ffn else "linear"
        found = report(f"{depth} layers + {kind}", adapter(test[depth]), cost(model, depth, adapter))
        if found > fastest:
            best, fastest = (depth, adapter), found
    depth, adapter = best
    weights = {name: w.detach().to(torch.bfloat16).contiguous() for name, w in adapter.named_parameters()}
    metadata = {"format": "pt", "layers": str(depth)}
    write_atomically(args.out, lambda path: save_file(weights, path, metadata=metadata))
    args.out.chmod(0o644)
    print(f"{args.out}: {args.out.stat().st_size} bytes, {(time.monotonic() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
