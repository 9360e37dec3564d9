"""Train a head that drafts for the embedded model (EAGLE-3, Li et al. 2025), on texts that the model writes, and write it to a folder.

Run from the repository root: `python -m tools.embedded_model.draft_head --out FOLDER`. It takes minutes on two cores. As in the paper the head is trained on its own guesses: at depth 2 and 3 it reads the states that it had at depth 1 and 2,
and attends to the keys that it will find when it drafts. It learns the model's whole distribution over the tokens that it can guess.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM

from nanoserve.entrypoints.offline import LLM, SamplingParams
from tools.embedded_model.corpus.documents import document
from tools.embedded_model.tokenizer import MODEL_FOLDER

SEED: Final = 20260
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB = 256, 8, 2, 32, 256, 1024
TAPS: Final = (4, 8)
"""Layers whose inputs the head reads; one past the last is the last one's output."""
EPS, THETA = 1e-5, 10_000.0
ROW: Final = 192
"""Tokens of a text that are learned from."""
DEPTHS: Final = (1.0, 0.8, 0.6)
"""What the loss of each guess in a row counts."""
TEXTS, STEPS, BATCH, RATE = 800, 700, 8, 1.5e-3


def write_texts(count: int) -> list[list[int]]:
    """The model's own continuations of beginnings of its training documents, of both courses."""
    with LLM() as llm:
        encode = llm.get_tokenizer().encode
        prompts = []
        for number in range(count):
            text = document(number, "train", course=("texts", "tools")[number % 2]).rendered()
            prompts.append({"prompt_token_ids": encode(text, add_special_tokens=False)[: 16 + number % 48]})
        params = [
            SamplingParams(temperature=0.7, top_p=0.9, seed=number, max_tokens=ROW, ignore_eos=True)
            for number in range(count)
        ]
        outputs = llm.generate(prompts, params)
    return [[*each.prompt_token_ids, *each.outputs[0].token_ids][:ROW] for each in outputs]


class Head(nn.Module):
    """The head's layer over [batch, positions]; its parameters are called as in its file."""

    def __init__(self) -> None:
        super().__init__()
        shapes = {
            "fc": (HIDDEN, len(TAPS) * HIDDEN),
            "q": (HEADS * HEAD_DIM, 2 * HIDDEN),
            "k": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
            "v": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
            "o": (HIDDEN, HEADS * HEAD_DIM),
            "gate": (INNER, HIDDEN),
            "up": (INNER, HIDDEN),
            "down": (HIDDEN, INNER),
            "lm_head": (VOCAB, HIDDEN),
        }
        self.matrices = nn.ParameterDict(
            {name: nn.Parameter(torch.randn(shape) * shape[1] ** -0.5) for name, shape in shapes.items()}
        )
        norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm", "norm")
        self.norms = nn.ParameterDict({name: nn.Parameter(torch.ones(HIDDEN)) for name in norms})

    def join(self, taps: Tensor) -> Tensor:
        """The model's states [..., taps * hidden] to the head's."""
        joined: Tensor = taps @ self.matrices["fc"].T
        return joined

    def forward(self, vectors: Tensor, hidden: Tensor, earlier: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Tokens' vectors and hidden states [batch, positions, hidden] to the states behind them; keys and values are added to those of `earlier` depths."""
        batch, length, _ = vectors.shape
        entering = torch.cat(
            (self._norm(vectors, "input_layernorm"), self._norm(hidden, "hidden_norm")), dim=-1
        )
        q, k, v = ((entering @ self.matrices[name].T).view(batch, length, -1, HEAD_DIM) for name in "qkv")
        group = HEADS // KV_HEADS
        q, k = (turned(each.transpose(1, 2)) for each in (q, k))
        earlier.append((k.repeat_interleave(group, 1), v.transpose(1, 2).repeat_interleave(group, 1)))
        attended = attend(q, earlier).transpose(1, 2).reshape(batch, length, -1)
        stream = hidden + attended @ self.matrices["o"].T
        x = self._norm(stream, "post_attention_layernorm")
        gated = functional.silu(x @ self.matrices["gate"].T) * (x @ self.matrices["up"].T)
        states: Tensor = stream + gated @ self.matrices["down"].T
        return states

    def logits(self, states: Tensor) -> Tensor:
        """Of the tokens that it can guess."""
        logits: Tensor = self._norm(states, "norm") @ self.matrices["lm_head"].T
        return logits

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, (HIDDEN,), self.norms[name], EPS)

    def tensors(self) -> dict[str, Tensor]:
        """As its file names them."""
        block = {"q": "self_attn.q", "k": "self_attn.k", "v": "self_attn.v", "o": "self_attn.o"}
        block |= {name: f"mlp.{name}" for name in ("gate", "up", "down")}
        named = {f"midlayer.{place}_proj.weight": self.matrices[name] for name, place in block.items()}
        named |= {f"{name}.weight": self.matrices[name] for name in ("fc", "lm_head")}
        for name, weight in self.norms.items():
            named[f"{name}.weight" if name == "norm" else f"midlayer.{name}.weight"] = weight
        return {name: each.detach().to(torch.bfloat16).contiguous() for name, each in named.items()}


def turned(x: Tensor) -> Tensor:
    """Heads [batch, heads, positions, head_dim], rotated."""
    angles = torch.arange(x.shape[2])[:, None] * THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    cosines, sines = (torch.cat((each, each), dim=1) for each in (angles.cos(), angles.sin()))
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


def attend(q: Tensor, earlier: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Position i at depth d sees keys of depth 1 up to i - d + 1, and of each depth e after it the one at i - d + e."""
    depth, length = len(earlier), q.shape[2]
    (keys, values), *guessed = earlier
    unseen = torch.ones(length, length, dtype=torch.bool).triu(2 - depth)
    scores = [(q @ keys.transpose(2, 3)).masked_fill(unseen, -torch.inf)]
    shifted = [[shift(each, depth - place) for each in pair] for place, pair in enumerate(guessed, start=2)]
    scores += [(q * key).sum(-1, keepdim=True) for key, _ in shifted]
    weights = (torch.cat(scores, dim=-1) * HEAD_DIM**-0.5).softmax(-1)
    result: Tensor = weights[..., :length] @ values
    for place, (_, value) in enumerate(shifted):
        result = result + weights[..., length + place, None] * value
    return result


def shift(x: Tensor, by: int) -> Tensor:
    """Position i holds what position i - `by` held; the first ones hold zeros. Positions are the last dimension but one."""
    return functional.pad(x, (0, 0, by, 0))[..., : x.shape[-2], :]


@torch.no_grad()
def read_model(model: Any, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of rows [batch, ROW] vectors, taps and logits at each position."""
    last: list[Tensor] = []
    hook = model.model.layers[-1].register_forward_hook(
        lambda _module, _inputs, output: last.append(output[0] if isinstance(output, tuple) else output)
    )
    result = model(rows, output_hidden_states=True, use_cache=False)
    hook.remove()
    states = [*result.hidden_states[:-1], *last]
    return result.hidden_states[0], torch.cat([states[each] for each in TAPS], dim=-1), result.logits


def batch_loss(head: Head, model: Any, rows: Tensor, chosen: Tensor) -> tuple[Tensor, list[float]]:
    """The loss over all depths, and how often the likeliest guess of each is the model's likeliest token."""
    vectors, taps, logits = read_model(model, rows)
    # At position i the head reads the state of token i and token i + 1, and guesses token i + 2.
    vectors, hidden, wanted = vectors[:, 1:-1], head.join(taps[:, :-2]), logits[:, 1:-1]
    targets, best = wanted.softmax(-1)[..., chosen], wanted.argmax(-1)
    earlier: list[tuple[Tensor, Tensor]] = []
    total, right = torch.zeros(()), []
    for depth, worth in enumerate(DEPTHS):
        states = head(vectors, hidden, earlier)
        guesses = head.logits(states)
        losses = -(targets * guesses.log_softmax(-1)).sum(-1)
        total = total + worth * losses[:, depth:].mean()
        right.append(float((chosen[guesses.argmax(-1)] == best)[:, depth:].float().mean()))
        hidden = shift(states, 1)
    return total, right


def train(texts: list[list[int]], steps: int) -> tuple[Head, Tensor]:
    """A head, and the ids of the tokens that it can guess: those that the texts have most often."""
    torch.manual_seed(SEED)
    model: Any = LlamaForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float32)
    rows = torch.tensor([each for each in texts if len(each) == ROW])
    counts = torch.bincount(rows.flatten(), minlength=model.config.vocab_size)
    chosen = counts.topk(VOCAB).indices.sort().values
    print(
        f"{len(rows)} texts, {counts[chosen].sum() / counts.sum():.1%} of their tokens can be guessed",
        flush=True,
    )
    head = Head()
    optimizer = torch.optim.AdamW(head.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        loss, right = batch_loss(head, model, rows[torch.randint(len(rows), (BATCH,))], chosen)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            shares = " ".join(f"{each:.1%}" for each in right)
            print(f"step {step}: loss {float(loss.detach()):.3f}, right at each depth {shares}", flush=True)
    return head, chosen


def write_head(head: Head, chosen: Tensor, folder: Path) -> None:
    """As published heads are: a config of Llama with what a head has besides, and its tensors in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = json.loads((MODEL_FOLDER / "config.json").read_text())["vocab_size"]
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": vocab_size,
        "draft_vocab_size": VOCAB,
        "rope_theta": THETA,
        "rms_norm_eps": EPS,
        "max_position_embeddings": 2048,
        "eagle_aux_hidden_state_layer_ids": list(TAPS),
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    known = torch.zeros(vocab_size, dtype=torch.bool).index_fill_(0, chosen, True)
    maps = {"d2t": chosen - torch.arange(VOCAB), "t2d": known}
    save_file(head.tensors() | maps, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Write texts, train, and write the head."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    write_head(*train(write_texts(arguments.texts), arguments.steps), arguments.out)


if __name__ == "__main__":
    main()
