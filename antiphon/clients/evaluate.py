"""Client work: recognise the client's own speech, and report numbers of errors."""

from __future__ import annotations

from antiphon.clients.client import Client
from antiphon.core import Report, Task, Unusable, Update
from antiphon.decoding.search import recognise
from antiphon.scoring.error_rate import Errors, character_errors, word_errors
from antiphon.tasks.client_work import COUNT, client_work

COUNTED = ("words", "words_wrong", "characters", "characters_wrong")


@client_work("evaluate", answers="nothing", reports=dict.fromkeys(COUNTED, COUNT))
def evaluate(task: Task, client: Client) -> Update:
    """Report word and character errors of greedy decoding on all utterances, or on those held out."""
    runtime = client.runtime
    runtime.load(task.tensors)
    words = characters = Errors(0, 0, 0, 0)
    indices = client.held_out if task.config.get("held_out") else client.indices
    if indices is None:
        raise Unusable("it has held out no utterance to be evaluated on")
    for index, hypothesis in recognise(
        runtime.model, runtime.tokens, runtime.store, indices, feed=runtime.feed
    ).items():
        reference = runtime.store.text(index)
        words += word_errors(reference, hypothesis)
        characters += character_errors(reference, hypothesis)
    counts = (words.length, words.total, characters.length, characters.total)
    stats = {key: float(count) for key, count in zip(COUNTED, counts, strict=True)}
    return Update({}, reports=(Report(client.id, stats),))
