"""A site: what it answers, what it refuses, and what never leaves it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from world import FRONTEND, LETTERS, MASKS, MODELS, World

from antiphon.algorithms.self_training import SelfTrained
from antiphon.core import Stopped
from antiphon.data.corpus import Corpus
from antiphon.data.partition import BySession
from antiphon.data.tokens import Characters
from antiphon.experiment.settings import Experiment, Run
from antiphon.experiment.teaching import check_labels
from antiphon.federation.federation_server import Announcement, read_announcements
from antiphon.federation.federation_site import Site
from antiphon.federation.remote_clients import RemoteClients
from antiphon.federation.run_setup import SetupSettings, pack_setup
from antiphon.federation.sent_folders import SentFolders, keep_files, pack_model, refuse_imports
from antiphon.federation.site_policy import Ledger, SitePolicy
from antiphon.lm.arpa import load_ngram, save_ngram
from antiphon.lm.kneser_ney import estimate
from antiphon.pools.local import LocalPool
from antiphon.pools.remote_link import SocketLink
from antiphon.pools.remote_messages import Message, WireError, head_of, pack, unpack
from antiphon.recognizer import Blueprint, Recognizer
from antiphon.tasks.local_training import LocalTraining
from antiphon.tasks.pseudo_labels import Labelling
from antiphon.workflows.run_federation import leaving

NOON = datetime(2026, 11, 18, 12, 0)
CLIENT = "speaker/s01"


@pytest.fixture
def site(world: World, tmp_path: Path) -> Site:
    return Site("oslo", Corpus.open(world.corpus), tmp_path, device="cpu", clock=lambda: NOON)


@pytest.fixture(scope="module")
def setup(world: World) -> Message:
    model: Any = world.runtime().model
    recognizer = Recognizer(Blueprint(FRONTEND, MODELS["ctc"]), Characters(LETTERS), model)
    return pack_setup(recognizer, SetupSettings(tuple(world.params()), seed=7, augment=MASKS))


def task_for(world: World, set_up: Message, /, **changes: Any) -> Message:
    local = {**LocalTraining(lr=0.05, batch_seconds=1.5).to_task(), "round": 2, "call": 0, "seed": 3}
    head = {
        "verb": "work",
        "run": "a" * 32,
        "client": CLIENT,
        "kind": "train",
        "config": local,
        "setup": head_of(set_up)["body"]["sha256"],
        "cohort": 4,
        "states": {"keep": [], "attempt": "x", "resumed_at": 0, "expected": None},
    }
    return pack({**head, **changes}, world.params())


def reason(reply: Message) -> str:
    head = head_of(reply)
    assert head["verb"] == "failure", head
    return str(head["reason"])


def ready(site: Site, setup: Message) -> Site:
    assert head_of(site.answer(setup))["verb"] == "ready"
    return site


# --- Work -----------------------------------------------------------------------------------------


def test_a_site_says_how_much_speech_each_speaker_has_and_no_more(site: Site, world: World) -> None:
    head = head_of(site.answer(pack({"verb": "hello"})))
    assert head.keys() == {"verb", "version", "clients", "body"}
    utterances = [u for u in Corpus.open(world.corpus).utterances() if f"speaker/{u.speaker}" == CLIENT]
    seconds = round(sum(u.seconds for u in utterances), 1)
    assert head["clients"][CLIENT] == [len(utterances), seconds]


@pytest.mark.parametrize(
    ("clients", "why"),
    [
        (None, "announces no clients"),
        ({CLIENT: 3}, "which makes no sense"),
        ({CLIENT: [0, 1.0]}, "which makes no sense"),
        ({CLIENT: [True, 1.0]}, "which makes no sense"),
        ({CLIENT: [1, -1.0]}, "which makes no sense"),
        ({"valid/s08": [1, 1.0]}, "is not the name of a speaker"),
        ({"speaker/\x1b[2J": [1, 1.0]}, r"'speaker/\\x1b\[2J', which is not the name of a speaker"),
        ({f"speaker/{'x' * 500}": [1, 1.0]}, "is not the name of a speaker"),
    ],
)
def test_an_announcement_that_makes_no_sense_is_refused(clients: object, why: str) -> None:
    with pytest.raises(Stopped, match=f"^site 'oslo' announces.*{why}|^site 'oslo' {why}"):
        read_announcements("oslo", pack({"verb": "here", "clients": clients}))


def test_sessions_can_be_the_clients_of_a_site(site: Site, setup: Message, world: World) -> None:
    by_session = replace(site, kind="session")
    utterances = list(Corpus.open(world.corpus).utterances())
    assert by_session.clients.keys() == {f"session/{utterance.session}" for utterance in utterances}
    assert sum(count for count, _ in by_session.clients.values()) == len(utterances)
    client = next(iter(by_session.clients))
    reply = head_of(ready(by_session, setup).answer(task_for(world, setup, client=client)))
    assert (reply["verb"], reply["client"]) == ("answer", client)
    assert "it has no client" in reason(by_session.answer(task_for(world, setup)))
    with pytest.raises(ValueError, match="a client is a speaker or a session, not 'device'"):
        replace(site, kind="device")


def test_a_run_over_sessions_is_refused_if_a_site_has_speakers() -> None:
    announced = {"oslo": {"session/a": Announcement(1, 1.0)}, "quito": {"speaker/b": Announcement(1, 1.0)}}
    clients = RemoteClients(SocketLink(), announced)
    runs = {"seed": Run(data="seed", start_run=""), "sessions": Run(clients=BySession())}
    with pytest.raises(ValueError, match="those of site 'quito' are not: join there with --clients session"):
        clients.check(Experiment(runs=runs))


def test_a_server_does_not_ask_for_the_texts_of_clients_that_are_elsewhere(world: World) -> None:
    """With `labelled` 1, sites label what has no text there; the server cannot know what that is."""
    model: Any = world.runtime().model
    teacher = Recognizer(Blueprint(FRONTEND, MODELS["ctc"]), Characters(LETTERS), model)
    run, store = Run(SelfTrained()), world.runtime().store
    away = {CLIENT: np.empty(0, dtype=np.int64)}
    check_labels(run, teacher, store, away, list, Labelling(), "", "")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nothing to label"):
        check_labels(run, teacher, store, world.clients(), list, Labelling(), "", "")  # type: ignore[arg-type]


def test_a_site_asks_for_the_setup_and_then_trains_to_the_bits_of_the_local_pool(
    site: Site, setup: Message, world: World
) -> None:
    asked = task_for(world, setup)
    need = head_of(site.answer(asked))
    assert (need["verb"], need["digest"]) == ("need", head_of(setup)["body"]["sha256"])
    ready(site, setup)
    head, update = unpack(site.answer(asked.without_body()))  # it has kept the tensors of the task
    assert (head["verb"], head["client"], head["moment"]) == ("answer", CLIENT, [2, 0])
    from antiphon.pools.remote_answers import task_in

    task = task_in(*unpack(asked))
    expected = LocalPool(world.worker(world.clients())).reduce(task, [CLIENT], lambda report: 0.0)
    for name, tensor in expected.mean.items():
        assert torch.equal(update[name], tensor), name
    assert head["stats"] == dict(expected.reports[0].stats)


def test_a_question_that_is_asked_again_gets_the_same_answer_without_new_work(
    site: Site, setup: Message, world: World
) -> None:
    ready(site, setup)
    asked = task_for(world, setup)
    first = site.answer(asked)
    assert site.answer(asked) is first
    assert site.ledger.num_answers("a" * 32, CLIENT) == 1


def test_a_site_that_was_started_again_has_its_setup(site: Site, setup: Message, world: World) -> None:
    ready(site, setup)
    again = replace(site)
    assert head_of(again.answer(task_for(world, setup)))["verb"] == "answer"


def test_a_dry_run_knows_every_byte(site: Site, setup: Message, world: World) -> None:
    """The announcement and the parameters exactly; a report has at most so many bytes."""
    assert any("no model has been sent here yet" in line for line in leaving(site))
    ready(site, setup)
    announcement = site.answer(pack({"verb": "hello"}))
    lines = list(leaving(site))
    assert f"before a run, once: {len(announcement)} bytes, which say" in lines
    answer = site.answer(task_for(world, setup))
    (sizes,) = site.answer_sizes()
    assert len(answer.body) == sizes.tensors
    assert sizes.report - 400 < len(answer.head) <= sizes.report
    about = f"{sizes.tensors} bytes for all its parameters, at most {sizes.report} bytes of report"
    assert any(about in line for line in lines)
    evaluated = site.answer(task_for(world, setup, kind="evaluate"))
    assert head_of(evaluated)["verb"] == "answer"
    assert len(evaluated) < sizes.report


# --- What does not leave --------------------------------------------------------------------------


def test_of_an_error_only_its_kind_leaves(site: Site, setup: Message, world: World) -> None:
    ready(site, setup)
    said: list[str] = []
    site.notify = said.append
    broken = site.answer(task_for(world, setup, config={"secret": "what was said"}))
    assert reason(broken) == "KeyError (the log of site 'oslo' says more)"
    assert any("KeyError" in line for line in said)


def test_nothing_of_the_texts_is_in_an_answer(site: Site, setup: Message, world: World) -> None:
    ready(site, setup)
    answer = bytes(site.answer(task_for(world, setup)))
    for utterance in Corpus.open(world.corpus).utterances():
        if len(utterance.text) > 5:
            assert utterance.text.encode() not in answer
            assert utterance.id.encode() not in answer


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"client": "speaker/nobody"}, "it has no client 'speaker/nobody'"),
        ({"client": "valid/s08"}, "it has no client"),
        ({"run": "../../etc"}, "the task does not name its run"),
        ({"setup": "../x"}, "the task does not name its run"),
        ({"verb": "mask"}, "does not know that"),
        ({"config": {"views": '[["pseudo_labels", {"labelling": {}, "model": "/etc"}]]'}}, "the file '/etc'"),
        ({"config": {"a": [1]}}, "no task"),
        ({"kind": "no such work"}, "ValueError"),
    ],
)
def test_tasks_that_make_no_sense_are_refused(
    changes: dict, expected: str, site: Site, setup: Message, world: World
) -> None:
    assert expected in reason(ready(site, setup).answer(task_for(world, setup, **changes)))


def test_a_message_of_another_version_is_refused_and_named_on_both_sides(site: Site) -> None:
    def other(message: Message) -> Message:
        return Message(message.head[:8] + b"\0\2" + message.head[10:])

    said: list[str] = []
    site.notify = said.append
    refused = site.answer(other(pack({"verb": "hello"})))
    why = "the message has version 2 of the wire format, and this side has version 1: install"
    assert f"site 'oslo': {why}" in reason(refused)
    assert [line.startswith(f"refused: {why}") for line in said] == [True]
    # The server cannot read that refusal, and ends a run that has not begun.
    with pytest.raises(Stopped, match=f"^site 'oslo': {why}"):
        read_announcements("oslo", other(refused))


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../x"])
def test_a_setup_does_not_write_outside_its_folder(name: str, site: Site) -> None:
    setup = pack({"verb": "setup"}, {name: torch.zeros(3, dtype=torch.uint8)})
    assert "cannot be a file of it" in reason(site.answer(setup))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"seed": 7', '"seed": 8'),
        lambda text: text[:-9],
        lambda text: "[" * 10**5,
        lambda text: '{"base": ["no such parameter"]}',
        lambda text: '{"base": 3}',
    ],
)
def test_a_setup_that_is_damaged_is_named_and_not_used(
    damage: Callable[[str], str], site: Site, setup: Message, world: World, tmp_path: Path
) -> None:
    """Its noise is what the site accounts for, its seed what the answers depend on."""
    ready(site, setup)
    assert len(list(site.answer_sizes())) == 1
    (path,) = tmp_path.glob("setups/*/setup.json")
    path.write_text(damage(path.read_text()))
    said: list[str] = []
    reply = replace(site, notify=said.append).answer(task_for(world, setup))
    assert head_of(reply)["verb"] == "failure"
    with pytest.raises(ValueError, match=str(path.parent)):
        list(site.answer_sizes())


def test_what_a_kill_left_of_a_setup_is_not_looked_at(site: Site, setup: Message, tmp_path: Path) -> None:
    ready(site, setup)
    (tmp_path / "setups" / ".x.making-y-1-2-3").mkdir()
    assert len(list(site.answer_sizes())) == 1


def test_a_setup_names_no_class_by_its_module() -> None:
    refuse_imports({"blueprint": {"model": {"ctc": {"encoder": {"conformer": {"dim": 16}}}}}})
    evil = ({"os:system": {}}, "antiphon.evil:Class", [{"x": ["a.b:c"]}], "os : system", "os:system [x]")
    for settings in evil:
        with pytest.raises(WireError, match="registered names only"):
            refuse_imports(settings)


# --- The policy -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (SitePolicy(kinds=("evaluate",)), "it allows evaluate, not 'train'"),
        (SitePolicy(hours="22:00-06:00"), "it works from 22:00 to 06:00, and it is 12:00 there"),
        (SitePolicy(min_cohort=5), "it wants at least 5 clients in a cohort, not 4"),
        (SitePolicy(bytes_per_day=1000), "it allows 1000 bytes a day, and "),
    ],
)
def test_the_policy_of_a_site_has_the_last_word(
    policy: SitePolicy, expected: str, site: Site, setup: Message, world: World
) -> None:
    ready(site, setup)
    strict = replace(site, policy=policy)
    assert reason(strict.answer(task_for(world, setup))).startswith(
        f"site 'oslo' refuses by its policy: {expected}"
    )
    kind = replace(site, policy=SitePolicy(("train",), (), "06:00-22:00", 10**9, 4, 1))
    assert head_of(kind.answer(task_for(world, setup)))["verb"] == "answer"


def test_a_client_gives_no_more_answers_than_allowed_even_after_a_restart(
    site: Site, setup: Message, world: World
) -> None:
    ready(site, setup)
    for attempt in range(2):
        strict = replace(site, policy=SitePolicy(answers_per_client=1))
        reply = strict.answer(task_for(world, setup, config={**_config(world, setup), "round": attempt}))
        assert (head_of(reply)["verb"] == "answer") == (attempt == 0)
    assert "has given its 1 answers" in reason(reply)


def _config(world: World, setup: Message) -> dict[str, Any]:
    return dict(head_of(task_for(world, setup))["config"])


def test_all_bytes_count_also_of_what_is_refused_asked_for_or_sent_again(
    site: Site, setup: Message, world: World
) -> None:
    task = task_for(world, setup)
    wrong, hello = task_for(world, setup, kind="no such work"), pack({"verb": "hello"})
    exchanges = [(message, site.answer(message)) for message in (hello, task, setup, task, task, wrong)]
    verbs = [head_of(reply)["verb"] for _, reply in exchanges]
    assert verbs == ["here", "need", "ready", "answer", "answer", "failure"]
    assert site.ledger.used(NOON) == sum(len(message) + len(reply) for message, reply in exchanges)


def test_no_work_is_done_for_a_message_that_is_above_the_bytes_of_the_day(
    site: Site, setup: Message, world: World
) -> None:
    ready(site, setup)
    task = task_for(world, setup)
    used = site.ledger.used(NOON)
    strict = replace(site, policy=SitePolicy(bytes_per_day=used + len(task) - 1))
    assert reason(strict.answer(task)).endswith(f"a day, and {used} are used")
    assert strict._worker is None  # the model was not even opened
    assert strict.ledger.used(NOON) > used + len(task)  # it has arrived all the same
    assert "a day, and" in reason(strict.answer(task.without_body()))
    assert head_of(strict.answer(pack({"verb": "hello"})))["verb"] == "here"  # others go on with the run


def test_bytes_count_for_their_day_only(site: Site, setup: Message, world: World) -> None:
    ready(site, setup)
    site.answer(task_for(world, setup))
    assert site.ledger.used(NOON) > 2 * len(world.params())
    assert site.ledger.used(datetime(2026, 11, 19)) == 0
    assert json.loads((site.folder / "ledger.json").read_text())["days"].keys() == {"2026-11-18"}


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))


DAYS = [b'{"days": {"2026-11-18": -1}, "answers": {}}', b'{"days": 3, "answers": {}}']
OTHERS = [b"{}", b'{"format": "antiphon-releases/1", "rounds": {}}']  # a file from beside it
COSTS = [b'{"days": {}, "answers": {}, "costs": {"run": {"cost": "free"}}}']


@pytest.mark.parametrize("damage", [b"", b"[]", b"\xff", *DAYS, *OTHERS, *COSTS])
def test_a_damaged_ledger_is_named_with_what_is_lost(tmp_path: Path, damage: bytes) -> None:
    ledger = Ledger.open(tmp_path / "ledger.json")
    ledger.add(NOON, 7, "run", "ann")
    assert Ledger.open(ledger.path) == ledger
    edited = ledger.path.read_bytes().replace(b"7", b"1")
    for data in (damage, edited):
        ledger.path.write_bytes(data)
        with pytest.raises(ValueError, match=r"ledger\.json .*forgets what it has used"):
            Ledger.open(ledger.path)
    ledger.path.unlink()
    ledger.path.symlink_to(ledger.path)
    with pytest.raises(ValueError, match=r"cannot read ledger\.json"):
        Ledger.open(ledger.path)


def test_a_policy_is_read_from_yaml_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("kinds: [train]\nhours: 22:00-06:00\n")
    assert SitePolicy.read(path) == SitePolicy(kinds=("train",), hours="22:00-06:00")
    for text in ("hours: late", "kind: [train]", "min_cohort: 0", "bytes_per_day: -1", "[", LAUGHS):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"policy\.yaml"):
            SitePolicy.read(path)


def test_hours_may_pass_midnight() -> None:
    night, day = SitePolicy(hours="22:00-06:00"), SitePolicy(hours="08:00-12:00")
    allowed = {
        policy: [h for h in range(24) if policy._is_open(datetime(2026, 1, 1, h))] for policy in (night, day)
    }
    assert allowed == {night: [0, 1, 2, 3, 4, 5, 22, 23], day: [8, 9, 10, 11]}


# --- States ---------------------------------------------------------------------------------------


def test_states_are_set_back_once_when_the_server_is_resumed(
    site: Site, setup: Message, world: World
) -> None:
    ready(site, setup)
    run, folder = "a" * 32, site.folder / "states" / ("a" * 32)

    def ask(round: int, attempt: str, resumed_at: int) -> None:
        expected = [round - 1, 0] if round else None
        states = {"keep": [], "attempt": attempt, "resumed_at": resumed_at, "expected": expected}
        config = {**_config(world, setup), "round": round}
        reply = site.answer(task_for(world, setup, config=config, states=states))
        assert head_of(reply)["verb"] == "answer", head_of(reply)
        states_here = site._worker_of(run, head_of(setup)["body"]["sha256"]).states
        assert states_here is not None
        states_here.write(CLIENT, (round, 0), {"x": torch.tensor([float(round)])})
        states_here.sync()

    for round in range(3):
        ask(round, "first", 0)
    names = lambda: sorted(path.name[:6] for path in folder.rglob("*.safetensors"))  # noqa: E731
    assert names() == ["000000", "000001", "000002"]
    ask(1, "second", 1)
    assert names() == ["000000", "000001"]
    ask(2, "second", 1)  # the same attempt: nothing is set back again
    assert names() == ["000000", "000001", "000002"]


def test_the_policy_in_the_documentation_is_one() -> None:
    example = Path(__file__).parents[3] / "docs" / "examples" / "site_policy.yaml"
    assert SitePolicy.read(example).views == ()


# --- Models that tasks name -----------------------------------------------------------------------


def taught(world: World, set_up: Message, teacher: str) -> Message:
    """A task whose client labels its speech with a teacher."""
    views = json.dumps([["pseudo_labels", {"labelling": {}, "model": teacher}]])
    config = {**_config(world, set_up), "views": views}
    return task_for(world, set_up, config=config)


def digest(message: Message) -> str:
    return str(head_of(message)["body"]["sha256"])


def test_a_site_asks_for_a_teacher_once_and_keeps_it(
    site: Site, setup: Message, world: World, tmp_path: Path
) -> None:
    recognizer = Recognizer.load(ready(site, setup).folder / "setups" / digest(setup))
    recognizer.save(tmp_path / "teacher")
    folders = SentFolders()
    view = json.dumps([["pseudo_labels", {"model": str(tmp_path / "teacher")}]])
    travelling = folders.outgoing({"views": view})["views"]
    name = json.loads(travelling)[0][1]["model"]
    assert str(tmp_path) not in travelling
    need = head_of(site.answer(taught(world, setup, name)))
    assert (need["verb"], f"sha256:{need['digest']}") == ("need", name)
    sent = folders.supply(need["digest"])
    assert sent is not None
    assert head_of(site.answer(sent))["verb"] == "ready"
    assert head_of(site.answer(taught(world, setup, name)))["verb"] == "answer"
    again = replace(site)  # was started again
    assert head_of(again.answer(taught(world, setup, name)))["verb"] == "answer"


def test_language_models_travel_as_folders_with_the_same_numbers(tmp_path: Path) -> None:
    ngrams = estimate(["A BEE SEES", "A SEA", "BEES SEE A SEA"], 3)
    save_ngram(ngrams, tmp_path / "lm.arpa")
    save_ngram(load_ngram(tmp_path / "lm.arpa"), tmp_path / "lm")
    texts = ["A SEA", "SEES BEES", "NEVER SEEN"]
    expected = load_ngram(tmp_path / "lm.arpa").score_sentences(texts)
    for name in ("lm.arpa", "lm"):
        message = pack_model(tmp_path / name)
        keep_files(unpack(message)[1], tmp_path / "kept" / name, 4)
        kept = load_ngram(tmp_path / "kept" / name)
        assert kept.score_sentences(texts).tolist() == expected.tolist()


def test_a_teacher_names_no_class_by_its_module(site: Site, setup: Message, world: World) -> None:
    ready(site, setup)
    main = torch.frombuffer(bytearray(b'{"blueprint": {"model": {"os:system": {}}}}'), dtype=torch.uint8)
    evil = pack({"verb": "folder"}, {"model.json": main})
    assert head_of(site.answer(evil))["verb"] == "ready"
    assert "registered names only" in reason(site.answer(taught(world, setup, f"sha256:{digest(evil)}")))
    for name in ("sha256:../../etc", f"sha256:{'A' * 64}", "/etc/passwd"):
        assert "names the file" in reason(site.answer(taught(world, setup, name)))


@pytest.mark.parametrize(
    ("file", "changes", "expected"),
    [
        ("tokens.json", {"kind": "os:system"}, "names the class 'os:system'"),
        ("model.json", {"blueprint": {"model": {"hugging_face": {"folder": "/etc"}}}}, "the folder '/etc'"),
        ("model.json", {"blueprint": {"frontend": {"x": {"folder": "a/../../b"}}}}, "the folder 'a/../../b'"),
    ],
)
def test_setups_and_teachers_name_no_code_and_no_folder_of_the_site(
    file: str, changes: dict, expected: str, site: Site, setup: Message, world: World
) -> None:
    files = dict(unpack(setup)[1])
    body = {**json.loads(files[file].numpy().tobytes()), **changes}
    files[file] = torch.frombuffer(bytearray(json.dumps(body).encode()), dtype=torch.uint8)
    evil = pack({"verb": "setup"}, files)
    assert expected in reason(ready(site, evil).answer(task_for(world, evil)))
    ready(site, setup)
    teacher = pack({"verb": "folder"}, files)
    ready(site, teacher)
    assert expected in reason(site.answer(taught(world, setup, f"sha256:{digest(teacher)}")))


def test_models_that_were_used_last_are_kept(tmp_path: Path) -> None:
    files = {"x": torch.zeros(1, dtype=torch.uint8)}
    for number in range(4):
        keep_files(files, tmp_path / str(number), 3)
        os.utime(tmp_path / str(number), (number, number))
    os.utime(tmp_path / "1", (9, 9))
    keep_files(files, tmp_path / "4", 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3", "4"]
