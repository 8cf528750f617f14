"""What an update tells about the words: which tokens occur, how long the text is, and the frames themselves.

Tokens. The gradient of CTC with respect to the bias of the output layer is Σ_t (p_tv − γ_tv) for token v: its
probability, minus that of its occurrence given the text. γ is zero for a token that the text does not have,
so its gradient is positive, in every step. A negative entry therefore proves that the token occurs. (The idea
is that of B. Zhao et al., "iDLG: Improved Deep Leakage from Gradients", arXiv:2001.02610, for one label.)

Frames. J. Geiping et al., "Inverting Gradients", NeurIPS 2020: frames are changed until their gradient has
the direction of the one that was sent. The attacker knows the text, as in arXiv:2104.07815. Its authors avoid
second derivatives; here CTC is written so that it has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from client_updates import LOCAL, Sizes, Speech, client_updates, in_groups
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from update_attacks import pairwise_cosine, settings_for

from antiphon.core import Tensors
from antiphon.data.batches import Batch, collate

FAR = -1e4  # a log probability of zero whose derivatives are numbers
LEAST = 2  # the first token that a text can have: 0 is the blank, 1 is unknown


def proven_tokens(bias: Tensor) -> Tensor:
    """Return which tokens occur for certain, from the change of the output bias (old − new) [V] bool."""
    found = bias < 0
    found[:LEAST] = False
    return found


def occurring(texts: Sequence[Sequence[int]], num_tokens: int) -> Tensor:
    """Return which tokens occur in some texts [V] bool."""
    found = torch.zeros(num_tokens, dtype=torch.bool)
    for text in texts:
        found[torch.tensor(text, dtype=torch.int64)] = True
    return found


def token_counts(changes: Tensor, truth: Tensor) -> dict[str, int]:
    """Count tokens that are named by changes of the bias [n, V], those that occur [n, V], and both."""
    named = torch.stack([proven_tokens(row) for row in changes])
    return {
        "named": int(named.sum()),
        "right": int((named & truth).sum()),
        "occurring": int(truth[:, LEAST:].sum()),
        "all": truth[:, LEAST:].numel(),
    }


def length_errors(known: Tensor, lengths: Tensor, unknown: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Return relative errors of lengths [m] by a ridge regression on biases, and by the median alone."""
    mean, deviation = known.mean(0), known.std(0).clamp(min=1e-12)
    inputs, others = (F.pad((rows - mean) / deviation, (0, 1), value=1.0) for rows in (known, unknown))
    penalty = 10.0 * torch.eye(inputs.shape[1])
    penalty[-1, -1] = 0.0
    weights = torch.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ lengths.log())
    guesses = (others @ weights).exp().clamp(lengths.min(), lengths.max())
    return (guesses - truth).abs() / truth, (lengths.median() - truth).abs() / truth


def smooth_ctc(log_probs: Tensor, tokens: Sequence[int]) -> Tensor:
    """Return the CTC loss of one utterance, log_probs [T, V], with derivatives of any order."""
    labels = [0]
    for token in tokens:
        labels += [token, 0]
    places = range(2, len(labels))
    skips = [False, False, *(labels[s] != 0 and labels[s] != labels[s - 2] for s in places)]
    may_skip = torch.tensor(skips)
    emitted = log_probs[:, torch.tensor(labels)]
    alpha = F.pad(emitted[0, :2], (0, len(labels) - 2), value=FAR)
    for frame in emitted[1:]:
        one, two = F.pad(alpha, (1, 0), value=FAR)[:-1], F.pad(alpha, (2, 0), value=FAR)[:-2]
        before = torch.stack([alpha, one, torch.where(may_skip, two, FAR)])
        alpha = frame + torch.logsumexp(before, dim=0)
    return -torch.logsumexp(alpha[-2:], dim=0)


def gradients_of(model: Any, batch: Batch, tokens: Sequence[int], keep: bool = False) -> list[Tensor]:
    """Return the gradient of the loss per token of one utterance; `keep`: it has derivatives itself."""
    with sdpa_kernel(SDPBackend.MATH):
        log_probs, _ = model(batch)
        loss = smooth_ctc(log_probs[0], tokens) / len(tokens)
        return list(torch.autograd.grad(loss, list(model.parameters()), create_graph=keep))


def gradient_distance(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
    """Return 1 − the cosine of two gradients, on average over tensors."""
    pairs = zip(found, wanted, strict=True)
    cosines = [F.cosine_similarity(a.flatten(), b.flatten(), dim=0, eps=1e-12) for a, b in pairs]
    return 1 - torch.stack(cosines).mean()


def invert(
    model: Any,
    batch: Batch,
    tokens: Sequence[int],
    wanted: Sequence[Tensor],
    start: Tensor,
    steps: int,
    lr: float,
) -> tuple[Tensor, float]:
    """Return frames [T, D] whose gradient has the direction of `wanted`, and the distance that is left."""
    frames = start.clone()[None].requires_grad_()
    optimizer = torch.optim.Adam([frames], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    distance = torch.tensor(1.0)
    for _ in range(steps):
        optimizer.zero_grad()
        found = gradients_of(model, replace(batch, features=frames), tokens, keep=True)
        distance = gradient_distance(found, wanted)
        (frames.grad,) = torch.autograd.grad(distance, [frames])
        optimizer.step()
        schedule.step()
    return frames.detach()[0], float(distance.detach())


# --- What was said, from updates of one utterance -------------------------------------------------


def read_tokens(speech: Speech, model: Any, params: Tensors, sizes: Sizes, seed: int) -> dict[str, Any]:
    """Return tokens and lengths that are found from updates of one utterance, by setting."""
    texts, sent = [], []
    for session in (0, 1):
        clients, _ = in_groups(speech, session, 1, sizes.singles)
        texts.append([speech.tokens.encode(speech.store.text(int(own[0]))) for own in clients.values()])
        sent.append(list(client_updates(speech, model, params, "full", clients, seed)))
    lengths = [torch.tensor([float(len(text)) for text in some]) for some in texts]
    truth = torch.stack([occurring([text], speech.tokens.size) for text in texts[1]])
    generator, rows = torch.Generator().manual_seed(seed), {}
    for setting in settings_for(seed):
        if setting.part != "full":
            continue
        known, unknown = (torch.stack([setting.change(u)["output.bias"] for u in some]) for some in sent)
        unknown = unknown + setting.deviation * torch.randn(unknown.shape, generator=generator)
        by_bias, by_median = length_errors(known, lengths[0], unknown, lengths[1])
        rows[setting.name] = {
            **token_counts(unknown, truth),
            "length_error": float(by_bias.median()),
            "length_error_without_update": float(by_median.median()),
        }
    return rows


def invert_some(
    speech: Speech, model: Any, params: Tensors, frames: Tensor, sizes: Sizes, seed: int
) -> list[dict[str, Any]]:
    """Reconstruct short utterances, one of a speaker at most, from one SGD step, by setting.

    frames [N, D]: the mean frame of each speaker, in the other session.
    """
    shortest = [int(own[np.argmin(speech.store.num_frames[own])]) for _, own in speech.sessions.values()]
    order = np.argsort(speech.store.num_frames[shortest], kind="stable")[: sizes.inversions].tolist()
    model.load_state_dict(params)
    model.eval().requires_grad_(True)
    chosen = [setting for setting in settings_for(seed) if setting.is_inverted]
    rows = []
    for number in order:
        index = shortest[number]
        batch = collate(speech.store, [index], speech.tokens.encode)
        tokens = speech.tokens.encode(speech.store.text(index))
        names = [name for name, _ in model.named_parameters()]
        exact = gradients_of(model, batch, tokens)
        step = {name: LOCAL.lr * tensor.detach() for name, tensor in zip(names, exact, strict=True)}
        generator = torch.Generator().manual_seed(index)
        start = frames.mean(0) + 0.1 * torch.randn(batch.features[0].shape, generator=generator)
        for setting in chosen:
            changed = setting.change(step).values()
            noise = [setting.deviation * torch.randn(t.shape, generator=generator) for t in changed]
            sent = [tensor + more for tensor, more in zip(changed, noise, strict=True)]
            found, left = invert(model, batch, tokens, sent, start, sizes.inversion_steps, 0.1)
            about = {"setting": setting.name, "seconds": float(speech.store.seconds[index]), "distance": left}
            rows.append(about | compare_frames(found, start, batch.features[0], frames, number))
    return rows


def compare_frames(
    found: Tensor, start: Tensor, true: Tensor, frames: Tensor, speaker: int
) -> dict[str, float]:
    """Compare frames [T, D] with the true ones, and find the speaker by the mean frames of all [N, D]."""
    mean, deviation = frames.mean(0), frames.std(0).clamp(min=1e-6)
    cosines = [F.cosine_similarity(x - mean, true - mean, dim=1).mean() for x in (found, start)]
    means = torch.stack([found.mean(0), true.mean(0)])
    guesses = pairwise_cosine((means - mean) / deviation, (frames - mean) / deviation).argmax(1)
    return {
        "cosine": float(cosines[0]),
        "cosine_of_start": float(cosines[1]),
        "speaker_found": float(guesses[0] == speaker),
        "speaker_found_from_true_frames": float(guesses[1] == speaker),
    }
