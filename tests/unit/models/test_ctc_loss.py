import pytest
import torch
import torch.nn.functional as F

from antiphon.data.batches import repeated
from antiphon.models.ctc import ExactCtc

CASES = [([12, 9, 7, 10], [4, 2, 1, 3]), ([12, 12, 5, 1], [4, 2, 0, 1])]


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize(("lengths", "token_lengths"), CASES)
def test_losses_and_gradients_are_those_of_pytorch(lengths, token_lengths, padding):
    torch.manual_seed(0)
    logits = torch.randn(4, 12, 6, dtype=torch.float64, requires_grad=True)
    tokens = F.pad(torch.tensor([[1, 2, 2, 5], [3, 3, 0, 0], [4, 0, 0, 0], [1, 5, 1, 0]]), (0, padding))
    sizes = torch.tensor(lengths), torch.tensor(token_lengths)
    scale = torch.arange(1.0, 5.0, dtype=torch.float64)

    log_probs = logits.log_softmax(-1)
    expected = F.ctc_loss(log_probs.transpose(0, 1), tokens, *sizes, reduction="none")
    feasible = torch.isfinite(expected)
    (expected_gradient,) = torch.autograd.grad((expected * scale)[feasible].sum(), logits)
    ours = ExactCtc.apply(logits.log_softmax(-1), sizes[0], tokens, sizes[1])
    (gradient,) = torch.autograd.grad((ours * scale)[feasible].sum(), logits)

    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient[feasible], expected_gradient[feasible], rtol=1e-10, atol=1e-12)


def test_the_gradient_is_that_of_finite_differences():
    torch.manual_seed(1)
    logits = torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True)
    tokens, lengths, token_lengths = (
        torch.tensor([[1, 1], [3, 0]]),
        torch.tensor([6, 4]),
        torch.tensor([2, 1]),
    )
    assert torch.autograd.gradcheck(
        lambda x: ExactCtc.apply(x.log_softmax(-1), lengths, tokens, token_lengths), (logits,)
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gradients_on_a_gpu_are_the_same_every_time():
    torch.manual_seed(2)
    logits = torch.randn(16, 400, 30, device="cuda", requires_grad=True)
    tokens = torch.randint(1, 30, (16, 100), device="cuda")
    lengths, token_lengths = torch.full((16,), 400).cuda(), torch.full((16,), 100).cuda()
    first, second = (
        torch.autograd.grad(
            ExactCtc.apply(logits.log_softmax(-1), lengths, tokens, token_lengths).sum(), logits
        )
        for _ in range(2)
    )
    assert torch.equal(first[0], second[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("longest", [9, 150, 700], ids=lambda tokens: f"{tokens} tokens")
def test_a_gpu_gives_the_losses_and_gradients_of_a_cpu(longest):
    """A placeholder, a text of no tokens, repeated tokens, and utterances shorter than the batch."""
    torch.manual_seed(3)
    token_lengths = torch.tensor([longest, 0, 0, longest // 2, 1, longest])
    tokens = torch.randint(1, 4, (6, longest + 2))  # of three tokens, so that many repeat
    lengths = torch.tensor([3 * longest, 1, 5, 3 * longest // 2, 2, 3 * longest - 1])
    logits = torch.randn(6, 3 * longest, 30, requires_grad=True)

    def gradient(given, *others):
        losses = ExactCtc.apply(given.log_softmax(-1), *others)
        return losses.detach().cpu(), torch.autograd.grad(losses.sum(), given)[0].cpu()

    exact = gradient(logits.double(), lengths, tokens, token_lengths)
    single = gradient(logits, lengths, tokens, token_lengths)
    found = gradient(logits.cuda(), lengths.cuda(), tokens.cuda(), token_lengths.cuda())
    for ours, theirs, right in zip(found, single, exact, strict=True):  # as near as 32 bits are on a CPU
        assert (ours - right).abs().max() <= 3 * (theirs - right).abs().max() + 1e-6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_texts_of_one_utterance_share_its_length_on_a_gpu():
    torch.manual_seed(4)
    logits = torch.randn(1, 20, 6, requires_grad=True)
    tokens = torch.tensor([[1, 2, 2], [3, 4, 0], [5, 0, 0], [1, 0, 0]])
    token_lengths = torch.tensor([3, 2, 1, 1])

    def losses(device):
        length = torch.tensor([18], device=device)
        heard = logits.to(device).log_softmax(-1), length
        return ExactCtc.apply(
            *(repeated(x, 4) for x in heard), tokens.to(device), token_lengths.to(device)
        ).cpu()

    torch.testing.assert_close(losses("cuda"), losses("cpu"))
