"""A Llama in plain PyTorch for training: RMSNorm, RoPE (rotate-half), grouped-query attention, SwiGLU, tied embedding.

Parameter names are Hugging Face's, so that the state is exported as it is. `forward` runs either with full visibility or
under SPEED (arXiv 2605.06105): prompt tokens run in the first K layers only.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of the shipped checkpoint."""

    vocab: int = 256
    hidden: int = 128
    ffn: int = 352
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    context: int = 2048
    rope_theta: float = 100_000.0
    eps: float = 1e-5
    speed_layers: int = 6  # K: the layers in which prompt tokens run under SPEED


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


def rotate(x, cos, sin):
    """RoPE with the rotate-half pairing (f, f + d/2), computed in fp32."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.s = s
        self.q_proj = nn.Linear(s.hidden, s.heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)

    def forward(self, x, cos, sin, mask):
        s, (rows, length, _) = self.s, x.shape
        split = lambda y, heads: y.view(rows, length, heads, s.head_dim).transpose(1, 2)
        q = rotate(split(self.q_proj(x), s.heads), cos, sin)
        k = rotate(split(self.k_proj(x), s.kv_heads), cos, sin)
        v = split(self.v_proj(x), s.kv_heads)
        group = s.heads // s.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(y.transpose(1, 2).reshape(rows, length, -1))


class MLP(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden, s.ffn, bias=False)
        self.up_proj = nn.Linear(s.hidden, s.ffn, bias=False)
        self.down_proj = nn.Linear(s.ffn, s.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.self_attn = Attention(s)
        self.mlp = MLP(s)
        self.input_layernorm = RMSNorm(s.hidden, s.eps)
        self.post_attention_layernorm = RMSNorm(s.hidden, s.eps)

    def forward(self, x, cos, sin, mask=None):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = RMSNorm(s.hidden, s.eps)


class Llama(nn.Module):
    def __init__(self, shape: Shape = Shape()):
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        frequency = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).double() / shape.head_dim)
        angle = torch.outer(torch.arange(shape.context).double(), frequency)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 if "embed" in name else p.shape[1] ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(p)
        look_back(self)

    def forward(self, tokens, prompt: int = 0):
        """Logits [rows, length, vocab], or with a prompt under SPEED those of the rows prompt-1 .. length-1."""
        s, length = self.shape, tokens.shape[1]
        cos, sin, mask = self.cos[:length], self.sin[:length], None
        x = self.model.embed_tokens(tokens)
        for depth, layer in enumerate(self.model.layers):
            if prompt and depth == s.speed_layers:
                kept = torch.tensor([0, *range(prompt - 1, length)])
                x, cos, sin, mask = x[:, kept], cos[kept], sin[kept], pivot_mask(len(kept))
            x = layer(x, cos, sin, mask)
        if prompt:
            x = x[:, 1:]
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)


@torch.no_grad()
def look_back(model: Llama) -> None:
    """Starts layer 0 with heads that look 1, 2, 3 and 4 tokens back and copy what stands there.

    Recall matches what was just read with what was read before a fact, and such heads are its first half. A model of this
    size finds them only after far more text than it is given here. One dimension of the embedding is the same for all
    tokens; queries and keys made of it alone differ by the rotation of RoPE alone, so a query turned back by n tokens is
    most like the key n tokens before. Training may change all of it.
    """
    s, constant, sharpness, copied = model.shape, 0, 1.3, 0.15
    model.model.embed_tokens.weight *= 4
    model.model.embed_tokens.weight[:, constant] = 0.5
    attention = model.model.layers[0].self_attn
    pairs = 8  # the fast ones
    half = s.head_dim // 2
    frequency = s.rope_theta ** (-torch.arange(0, s.head_dim, 2)[:pairs].double() / s.head_dim)
    q = torch.zeros(s.heads, s.head_dim, s.hidden)
    k = torch.zeros(s.kv_heads, s.head_dim, s.hidden)
    k[:, :pairs, constant] = sharpness
    for head in range(s.heads):
        angle = -(head + 1) * frequency
        q[head, :pairs, constant] = sharpness * angle.cos().float()
        q[head, half : half + pairs, constant] = sharpness * angle.sin().float()
    attention.q_proj.weight.copy_(q.flatten(0, 1))
    attention.k_proj.weight.copy_(k.flatten(0, 1))
    nn.init.orthogonal_(attention.v_proj.weight)
    attention.v_proj.weight[:, constant] = 0
    nn.init.orthogonal_(attention.o_proj.weight, gain=copied)


def pivot_mask(kept: int) -> torch.Tensor:
    """What the kept rows (BoS, pivot, decode tokens) see in the upper layers: causal, but only the pivot sees itself."""
    mask = torch.ones(kept, kept, dtype=torch.bool).tril()
    mask[2:, 1] = False
    return mask


def speed_mask(prompt: int, length: int) -> torch.Tensor:
    """The same rule as a mask over all tokens: the definition that the compact run above is tested against."""
    key, query = torch.arange(length)[None, :], torch.arange(length)[:, None]
    materialised = (key == 0) | (key >= prompt)
    return (key <= query) & (materialised | (key == query))
