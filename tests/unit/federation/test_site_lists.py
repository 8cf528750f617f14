"""Sites with N-best lists: what they do, what they refuse, and what never leaves them."""

from __future__ import annotations

import json
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.algorithms.fmp import MARGINAL
from antiphon.algorithms.fmp_errors import REPORTS, RESCORE, ErrorCounts
from antiphon.core import Stopped
from antiphon.decoding.nbest import Hypothesis, NBest, read_nbest, write_nbest
from antiphon.federation.federation_site import Site
from antiphon.federation.kits import create_kits
from antiphon.federation.remote_lists import RemoteLists, read_lists
from antiphon.federation.site_lists import LISTS, SiteLists, pack_list_setup
from antiphon.federation.site_policy import SitePolicy
from antiphon.lm.arpa import save_ngram
from antiphon.lm.kneser_ney import estimate
from antiphon.personalisation.count_noise import CountNoise
from antiphon.personalisation.list_clients import ListSettings, shared_tensors
from antiphon.personalisation.marginal_adaptation import Mixture, estimate_unigram
from antiphon.personalisation.schedule import Schedule
from antiphon.personalisation.trial import Grid
from antiphon.pools.remote_exchange import Arrival
from antiphon.pools.remote_messages import Message, head_of, pack, unpack
from antiphon.workflows.personalisation_plan import RoundsPlace, make_plan
from antiphon.workflows.personalisation_results import NoiseSettings, Personalisation
from antiphon.workflows.personalise_sites import personalise_at_sites
from antiphon.workflows.personalize_lists import personalize
from antiphon.workflows.run_federation import join_federation, leaving

TEXT = ["the cat sat", "the dog sat", "a dog sat on the mat", "a fog sat"]
BACKGROUND = estimate_unigram(TEXT, ["log", "bog", "ran"])
POINT = Grid((0.5,), (0.25,), (6.0,), (1.0,))
WEIGHTS = {"own": 1.0, "score": 1.0}
SETTINGS = ListSettings(Mixture(0.5, 0.25, 1.0, 1.0), Schedule(2), 1, WEIGHTS, "own", ("own",))


def lists_of(meeting: str, number: int = 6) -> list[NBest]:
    """A meeting that says its own word, which the first pass hears as "dog" now and then."""
    clear = tuple(Hypothesis(f"the {word} sat", score=-1.0 - n) for n, word in enumerate((meeting, "dog")))
    unclear = tuple(
        Hypothesis(f"the {word} sat", score=-1.0 - n / 9) for n, word in enumerate(("dog", meeting))
    )
    return [
        NBest(f"{meeting}{n}", unclear if n % 3 == 2 else clear, f"the {meeting} sat", session=meeting)
        for n in range(number)
    ]


@dataclass
class DirectLink:
    """Sites in this process, at the end of no wire."""

    sites: dict[str, Site]
    waiting: deque[Arrival] = field(default_factory=deque)
    sent: list[tuple[str, Message, Message]] = field(default_factory=list)  # site, message, answer

    def push(self, site: str, message: Message) -> str:
        answer = self.sites[site].answer(Message.split(bytes(message)))
        self.sent.append((site, message, answer))
        self.waiting.append(Arrival(str(len(self.sent)), Message.split(bytes(answer))))
        return str(len(self.sent))

    def poll(self, seconds: float) -> Arrival | None:
        return self.waiting.popleft() if self.waiting else None

    def cancel(self, ticket: str) -> None:
        self.waiting = deque(arrival for arrival in self.waiting if arrival.ticket != ticket)

    def greeted(self) -> RemoteLists:
        hello = pack({"verb": "hello"})
        announced = {name: read_lists(name, site.answer(hello)) for name, site in self.sites.items()}
        return RemoteLists(self, announced)


@dataclass
class World:
    """Two sites with two meetings each, and a server with files."""

    folder: Path
    said: list[str] = field(default_factory=list)

    def site(self, name: str, *meetings: str, policy: SitePolicy = SitePolicy(), hide: bool = False) -> Site:
        lists = [entry for meeting in meetings for entry in lists_of(meeting)]
        if hide:
            lists = [replace(entry, reference=None) for entry in lists]
        write_nbest(self.folder / f"{name}.jsonl", lists)
        own = SiteLists.read(self.folder / f"{name}.jsonl", "meeting")
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return Site(name, None, folder, policy, "cpu", self.said.append, lists=own)

    def link(self, *sites: Site) -> DirectLink:
        return DirectLink({site.name: site for site in sites})

    def personalise(
        self,
        link: DirectLink,
        *,
        noise: NoiseSettings | None = None,
        server: list[NBest] | None = None,
        **more: Any,
    ) -> Personalisation:
        options: dict[str, Any] = {
            "tune_splits": "",
            "earlier_splits": "",
            "grid": POINT,
            "search": {},
            **more,
        }
        nbest = None
        if server is not None:
            write_nbest(nbest := self.folder / "server.jsonl", server)
        plan = make_plan(
            nbest, [self.text], [self.dictionary], {"own": self.lm}, "", {"own": 1.0, "score": 1.0},
            options["search"], options.get("client", "meeting"), Schedule(2), 20, options["grid"], 0.1, 0.0,
            options["tune_splits"], options["earlier_splits"],
        )  # fmt: skip
        out = self.folder / "out"
        out.mkdir(exist_ok=True)
        place = RoundsPlace(out / "rounds")
        return personalise_at_sites(
            plan, link.greeted(), place, noise, out, lambda *step: None, self.said.append
        )

    @property
    def text(self) -> Path:
        return self.folder / "text.txt"

    @property
    def dictionary(self) -> Path:
        return self.folder / "dictionary.txt"

    @property
    def lm(self) -> Path:
        return self.folder / "lm.arpa"

    def journal(self) -> list[dict[str, Any]]:
        (path,) = self.folder.glob("out/rounds/scored-*/journal.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.text.write_text("\n".join(TEXT))
    made.dictionary.write_text("log bog ran fog hog")
    save_ngram(estimate(TEXT, order=2), made.lm)
    return made


# --- The result -----------------------------------------------------------------------------------


@pytest.mark.parametrize("has_server_lists", [False, True])
def test_results_are_those_of_one_machine(world: World, has_server_lists: bool) -> None:
    """With lists of its own, the server finds settings on them, and their clients go on reporting."""
    own = [replace(entry, split="heldout") for entry in lists_of("hog")] if has_server_lists else None
    splits = {"tune_splits": "heldout", "earlier_splits": "heldout"} if has_server_lists else {}
    grid = Grid((0.25, 0.5), (0.25,), (4.0, 6.0), (1.0,)) if has_server_lists else POINT
    link = world.link(world.site("berlin", "fog", "bog"), world.site("oslo", "log"))
    away = world.personalise(link, server=own, grid=grid, **splits)
    there = [replace(e, split="test") for meeting in ("fog", "bog", "log") for e in lists_of(meeting)]
    write_nbest(world.folder / "all.jsonl", [*(own or []), *there])
    here = personalize(
        world.folder / "all.jsonl", [world.text], dictionary=[world.dictionary], lm={"own": world.lm},
        rounds=[2], weights=WEIGHTS, grid=grid, splits="test", out=world.folder / "here", **splits,
    )  # fmt: skip
    assert away.rows == here.rows
    assert away.clients == here.clients
    assert away.mixture == here.mixture
    assert away.num_lists == here.num_lists
    assert any(client.after < client.before for client in away.clients)
    saved = "rounds/scored-T2-sigma1/checkpoints/*/*.safetensors"
    ours, theirs = (sorted((world.folder / name).glob(saved)) for name in ("out", "here"))
    assert [path.read_bytes() for path in ours] == [path.read_bytes() for path in theirs]
    assert len(ours) == (4 if has_server_lists else 3)  # earlier clients have a round more


def test_ranked_lists_stay_at_the_site_and_texts_never_leave_it(world: World) -> None:
    link = world.link(world.site("berlin", "fog"), world.site("oslo", "bog"))
    world.personalise(link)
    (path,) = world.folder.glob("berlin/ranked/*/fog.jsonl")
    assert path.stat().st_mode & 0o077 == 0
    given, ranked = lists_of("fog"), list(read_nbest(path))
    assert [entry.reference for entry in ranked] == [entry.reference for entry in given]
    assert given[5].hypotheses[0].text == "the dog sat"
    assert ranked[5].hypotheses[0].text == "the fog sat"
    assert {h.text for h in ranked[5].hypotheses} == {h.text for h in given[5].hypotheses}
    for _, _, answer in link.sent:
        assert b"sat" not in bytes(answer)


def test_without_references_the_server_gets_no_error_counts_and_says_so(world: World) -> None:
    link = world.link(world.site("berlin", "fog", hide=True), world.site("oslo", "bog"))
    found = world.personalise(link)
    assert [client.name for client in found.clients] == ["bog"]
    assert any("1 of 2 clients have no references" in line for line in world.said)
    (report,) = (head_of(a)["stats"] for s, m, a in link.sent if s == "berlin" and kind_of(m) == RESCORE)
    assert report == {"num_lists": 6.0}
    assert list(world.folder.glob("berlin/ranked/*/fog.jsonl"))

    alone = World(world.folder / "alone")
    alone.folder.mkdir()
    for name in ("text.txt", "dictionary.txt", "lm.arpa"):
        (alone.folder / name).write_bytes((world.folder / name).read_bytes())
    assert alone.personalise(alone.link(alone.site("berlin", "fog", hide=True))).rows == ()
    assert not (alone.folder / "out" / "results.json").exists()


def kind_of(message: Message) -> str:
    return str(head_of(message).get("kind", ""))


def test_one_kind_of_noise_is_added_by_the_server_and_counts_are_capped_by_clients(world: World) -> None:
    link = world.link(world.site("berlin", "fog", "bog"), world.site("oslo", "log"))
    world.personalise(link, noise=NoiseSettings(("gaussian=2",), cap=2.0))
    metrics = [entry["metrics"] for entry in world.journal()]
    assert metrics[-1]["epsilon"] == pytest.approx(2.0, rel=0.05)
    for _, message, answer in link.sent:
        if kind_of(message) == MARGINAL and head_of(answer)["verb"] == "answer":
            head, tensors = unpack(answer)
            counts = tensors[MARGINAL] * head["stats"]["pseudo_count"]
            assert float(counts.norm()) <= 2.0 + 1e-9
    claims = json.loads((world.folder / "out" / "private.json").read_text())["claims"]
    of_client = [claim["epsilon"] for claim in claims if claim["unit"] == "one client"]
    assert min(of_client) == pytest.approx(2.0, rel=0.05)
    assert any("epsilon (delta) of one client" in line for line in world.said)


# --- What a site refuses --------------------------------------------------------------------------


def reasons(world: World) -> set[str]:
    return {why for entry in world.journal() for why in entry.get("failures", {}).values()}


@pytest.mark.parametrize(
    ("policy", "noise", "why"),
    [
        (SitePolicy(kinds=("rescore",)), (), "it allows rescore, not 'marginal'"),
        (SitePolicy(only_secure=True), (), "it takes part under secure aggregation only"),
        (SitePolicy(min_cohort=4), (), "it wants at least 4 clients in a cohort, not 3"),
        (SitePolicy(answers_per_client=1), (), "the client has given its 1 answers to this run"),
        (SitePolicy(epsilon=1.0), (), "it has a limit on epsilon: it takes part in private runs only"),
        (SitePolicy(epsilon=1.0), ("paper=1",), "noise of the kind 'paper' protects words, and not clients"),
        (SitePolicy(epsilon=1.0, delta=1e-5), ("gaussian=2",), "epsilon of a client would be 2"),
        (SitePolicy(epsilon=1.0, delta=1e-5), ("laplace=2",), "epsilon of a client would be"),
    ],
)
def test_the_policy_of_a_site_has_the_last_word(
    world: World, policy: SitePolicy, noise: tuple[str, ...], why: str
) -> None:
    """Its clients are named failures, and the others go on."""
    link = world.link(world.site("berlin", "fog", policy=policy), world.site("oslo", "bog", "log"))
    found = world.personalise(link, noise=NoiseSettings(noise) if noise else None)
    assert [client.name for client in found.clients][-2:] == ["bog", "log"]
    refused = [
        reason for reason in reasons(world) if reason.startswith("site 'berlin' refuses by its policy")
    ]
    assert any(why in reason for reason in refused), reasons(world)


def test_bytes_of_personalisation_are_counted(world: World) -> None:
    """With one byte less than a run needs, the last report is refused."""
    berlin = world.site("berlin", "fog")
    world.personalise(world.link(berlin, world.site("oslo", "bog")))
    (needed,) = berlin.ledger.days.values()
    shutil.rmtree(world.folder / "out")
    shutil.rmtree(world.folder / "berlin")
    thrifty = world.site("berlin", "fog", policy=SitePolicy(bytes_per_day=needed - 1))
    found = world.personalise(world.link(thrifty, world.site("oslo", "bog")))
    assert [client.name for client in found.clients] == ["bog"]
    assert any(f"it allows {needed - 1} bytes a day" in line for line in world.said)


def test_a_budget_that_is_large_enough_is_charged_for_all_rounds(world: World) -> None:
    policy = SitePolicy(epsilon=2.1, delta=1e-5)
    berlin = world.site("berlin", "fog", policy=policy)
    world.personalise(world.link(berlin, world.site("oslo", "bog")), noise=NoiseSettings(("gaussian=2",)))
    assert not any("policy" in reason for reason in reasons(world))
    ((run, cost),) = berlin.ledger.costs.items()
    assert cost["cost"] == "concentrated"
    assert 1.9 < berlin.ledger.epsilon(berlin.ledger.costs, 1e-5) <= 2.01
    assert sorted(berlin.ledger.turns[run]["fog"]) == ["0", "1", "2"]  # two rounds, and the count of errors


def work(site: Site, setup: Message, kind: str, client: str = "fog", **config: Any) -> dict[str, Any]:
    """Ask a site directly; return the head of its answer."""
    assert head_of(site.answer(setup))["verb"] == "ready"
    tensors = shared_tensors([BACKGROUND.probabilities] * 2) if kind == RESCORE else {}
    about = {"verb": "work", "run": "a" * 32, "client": client, "cohort": 1, "kind": kind, "states": {}}
    task = {"config": {"round": 0, "call": 0, **config}, "setup": head_of(setup)["body"]["sha256"]}
    return head_of(site.answer(pack({**about, **task}, tensors)))


def setup_of(world: World, settings: ListSettings = SETTINGS) -> Message:
    return pack_list_setup(settings, BACKGROUND, [world.lm])


@pytest.mark.parametrize(
    ("kind", "more", "why"),
    [
        ("train", {}, "ValueError"),
        (MARGINAL, {"round": 2}, "ValueError"),
        (MARGINAL, {"round": -3}, "ValueError"),
        (MARGINAL, {"client": "hog"}, "it has no client 'hog'"),
    ],
)
def test_other_work_is_refused(world: World, kind: str, more: dict[str, Any], why: str) -> None:
    site = world.site("berlin", "fog")
    assert work(site, setup_of(world), MARGINAL)["verb"] == "answer"
    reply = work(site, setup_of(world), kind, **more)
    assert reply["verb"] == "failure"
    assert why in reply["reason"]


def test_errors_are_counted_once_in_a_private_run(world: World) -> None:
    """Asked with other words of all clients, a client with a limit does not count again."""
    site = world.site("berlin", "fog", policy=SitePolicy(epsilon=3.0, delta=1e-5))
    setup = setup_of(world, replace(SETTINGS, noise=CountNoise("gaussian", 2.0, 2)))
    assert work(site, setup, RESCORE, round=2)["verb"] == "answer"
    assert work(site, setup, RESCORE, round=2)["verb"] == "answer"  # asked the same: the answer was lost
    assert "something else in round 3" in work(site, setup, RESCORE, round=2, other=1)["reason"]
    assert "announced noise for 2 rounds" in work(site, setup, RESCORE, round=3)["reason"]


def test_lists_without_a_part_that_has_a_weight_fail_by_name(world: World) -> None:
    settings = replace(SETTINGS, weights={"own": 1.0, "acoustic": 0.1})
    reply = work(world.site("berlin", "fog"), setup_of(world, settings), RESCORE, round=2)
    assert reply["reason"] == "its lists have no 'acoustic', which the second pass needs"


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body | {"depth": 0},
        lambda body: body | {"first": 2},
        lambda body: body | {"schedule": body["schedule"] | {"rounds": 10**9}},
        lambda body: body | {"noise": {"kind": "pepper", "epsilon": 1.0, "rounds": 1, "limit": None}},
    ],
)
def test_settings_that_cannot_be_are_refused_at_the_site(
    world: World, damage: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    site, setup = world.site("berlin", "fog"), setup_of(world)
    assert work(site, setup, RESCORE, round=2)["verb"] == "answer"
    site = world.site("berlin", "fog")  # started again
    (path,) = world.folder.glob(f"berlin/setups/*/{LISTS}")
    body = json.loads(path.read_text())
    body.pop("sha256", None)
    path.write_text(json.dumps(damage(body)))
    head = {"verb": "work", "run": "a" * 32, "client": "fog", "cohort": 1, "kind": RESCORE, "states": {}}
    task = {"config": {"round": 2, "call": 0}, "setup": head_of(setup)["body"]["sha256"]}
    assert head_of(site.answer(pack({**head, **task})))["verb"] == "failure"


# --- What the server refuses ----------------------------------------------------------------------


def greeting(**lists: Any) -> Message:
    return pack({"verb": "here", "version": "x", "clients": {}, "lists": lists})


@pytest.mark.parametrize(
    ("lists", "why"),
    [
        ({"kind": "room", "clients": {}}, "no known kind"),
        ({"kind": ["session"], "clients": {}}, "no known kind"),
        ({"kind": "session", "clients": []}, "no known kind"),
        ({"kind": "session", "clients": {"a": [0, True]}}, "makes no sense"),
        ({"kind": "session", "clients": {"a": [1, 1]}}, "makes no sense"),
        ({"kind": "session", "clients": {"a": 3}}, "makes no sense"),
        ({"kind": "session", "clients": {"earlier/a": [3, True]}}, "cannot be the name of a client"),
        ({"kind": "session", "clients": {"server/a": [3, True]}}, "cannot be the name of a client"),
        ({"kind": "session", "clients": {"": [3, True]}}, "cannot be the name of a client"),
    ],
)
def test_announcements_that_make_no_sense_are_refused(lists: dict[str, Any], why: str) -> None:
    with pytest.raises(Stopped, match=why):
        read_lists("berlin", greeting(**lists))


def test_clients_of_another_kind_of_two_sites_or_of_none_are_refused(world: World) -> None:
    berlin = world.site("berlin", "fog")
    with pytest.raises(ValueError, match="sites 'berlin' and 'oslo' both announce 'fog'"):
        world.link(berlin, world.site("oslo", "fog")).greeted()
    with pytest.raises(ValueError, match="are sessions, and --client says speaker"):
        world.link(berlin).greeted().check("speaker")
    world.link(berlin).greeted().check("meeting")
    world.link(berlin).greeted().check("session")
    with pytest.raises(ValueError, match="no site has N-best lists: join there with --lists"):
        RemoteLists(world.link(berlin), {"oslo": read_lists("oslo", pack({"verb": "here"}))}).check("meeting")


def counts_of(**changes: float) -> dict[str, float]:
    stats = ErrorCounts(np.array([[1, 2, 3, 9]] * 4), np.array([[2, 0, 2]] * 4)).to_stats()
    return {"num_lists": 4.0, **stats, **changes}


def test_error_counts_survive_their_way_and_impossible_ones_are_refused() -> None:
    assert counts_of().keys() == REPORTS.keys()
    found = ErrorCounts.of_stats(counts_of(adapted_insertions=5.0, adapted_difference=2.0))
    assert found is not None
    assert found.errors[2].tolist() == [1, 2, 5, 9]
    assert found.segments[2].tolist() == [2, 2, 2]
    assert ErrorCounts.of_stats({"num_lists": 4.0}) is None
    with pytest.raises(ValueError, match="more words that are wrong"):
        ErrorCounts.of_stats(counts_of(words=2.0))
    with pytest.raises(ValueError, match="do not belong to its error counts"):
        ErrorCounts.of_stats(counts_of(adapted_insertions=5.0))
    with pytest.raises(ValueError, match="did not report 'oracle_segments'"):
        ErrorCounts.of_stats({k: v for k, v in counts_of().items() if k != "oracle_segments"})


@pytest.mark.parametrize("lie", [{"words": 0.5}, {"adapted_deletions": -1.0}, {"oracle_squares": 1e12}])
def test_reports_out_of_their_bounds_become_failures(
    world: World, lie: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = ErrorCounts.to_stats
    monkeypatch.setattr(ErrorCounts, "to_stats", lambda counts: {**honest(counts), **lie})
    with pytest.raises(Stopped, match="no client has ranked its lists"):
        world.personalise(world.link(world.site("berlin", "fog")))
    assert any("no error counts of fog" in line and next(iter(lie)) in line for line in world.said)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rounds": (1, 2)}, "give one number of rounds"),
        ({"splits": "test"}, "leave out --split"),
        ({"tune_splits": "test"}, "name lists of the server"),
        ({"earlier_splits": "test"}, "name lists of the server"),
        ({"noise": NoiseSettings(("gaussian=2,1",))}, "one kind of noise with one ε"),
        ({"noise": NoiseSettings(("gaussian=2", "laplace=2"))}, "one kind of noise with one ε"),
        ({"noise": NoiseSettings(("gaussian=2",), populations=(10,))}, "clients that do not exist"),
        ({"grid": Grid()}, "several values of alpha, beta, lambda or sigma"),
        ({"search": {"words": 1.0}}, "the weight of 'words' is searched"),
        ({"weights": {}}, "the weight of 'own' is searched"),
        ({"num_processes": 2}, "leave out --workers"),
    ],
)
def test_what_only_a_simulation_can_do_is_refused(world: World, options: dict[str, Any], why: str) -> None:
    usual: dict[str, Any] = {"rounds": (2,), "grid": POINT, "weights": WEIGHTS}
    with pytest.raises(ValueError, match=why):
        personalize(None, [world.text], lm={"own": world.lm}, federation="no kit", **{**usual, **options})


def test_rounds_of_other_settings_are_not_continued(world: World) -> None:
    link = world.link(world.site("berlin", "fog"), world.site("oslo", "bog"))
    world.personalise(link)
    with pytest.raises(ValueError, match="holds rounds of other lists or settings"):
        world.personalise(link, grid=Grid((0.25,), (0.25,), (1.0,), (1.0,)))


# --- What leaves a site ---------------------------------------------------------------------------


def test_a_dry_run_knows_every_byte(world: World) -> None:
    site = world.site("berlin", "fog", "bog")
    assert any("no vocabulary has been sent here yet" in line for line in leaving(site))
    link = world.link(site)
    world.personalise(link)
    lines = list(leaving(site))
    announced = len(site.announcement())
    assert f"before a run, once: {announced} bytes, which say" in lines
    assert "  fog: 6 lists, with references" in lines
    (setup,) = site.setups(LISTS)
    assert site.lists is not None
    body, head, errors = site.lists.answer_sizes(setup)
    assert any(f"{body} bytes of counts, at most {head} bytes of report" in line for line in lines)
    answers = {k: [a for _, m, a in link.sent if kind_of(m) == k and head_of(a)["verb"] == "answer"]
               for k in (MARGINAL, RESCORE)}  # fmt: skip
    assert {len(answer.body) for answer in answers[MARGINAL]} == {body}
    assert all(len(answer.head) <= head for answer in answers[MARGINAL])
    assert all(len(answer) <= errors for answer in answers[RESCORE])
    assert len(answers[RESCORE]) == 2


def test_joining_needs_speech_or_lists_of_a_known_kind(world: World, tmp_path: Path) -> None:
    _, kit = create_kits("localhost:8002", ["oslo"], tmp_path / "kits")
    write_nbest(tmp_path / "lists.jsonl", lists_of("fog"))
    with pytest.raises(ValueError, match="or with both"):
        join_federation(kit)
    with pytest.raises(ValueError, match="a client is a meeting, a session, a speaker, not 'room'"):
        join_federation(kit, lists=tmp_path / "lists.jsonl", clients="room")
    said: list[str] = []
    found = join_federation(kit, lists=tmp_path / "lists.jsonl", dry_run=True, notify=said.append)
    assert found == {"site": "oslo", "clients": {}, "lists": {"fog": (6, True)}}
    assert "1 clients with 6 N-best lists" in said
    assert not any("model" in line or "utterances" in line for line in said)
