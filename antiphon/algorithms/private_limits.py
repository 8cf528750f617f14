"""What `private` refuses: runs that release more than noised sums, algorithms without bounded influence."""

from __future__ import annotations

from typing import Any

from antiphon.privacy.distributed_noise import Distributed
from antiphon.registry import choice_name
from antiphon.server.weighting import ByExamples, Uniform
from antiphon.tasks.private_pool import largest_weight
from antiphon.tasks.update_clipping import AdaptiveUpdate, EachLayerByNorm


def check_private_run(private: Any, run: Any) -> None:
    """Refuse a run that would release more than the sums of its rounds."""
    if run.algorithm is not private:
        outer = choice_name(type(run.algorithm))
        raise ValueError(f"write private around {outer}, not inside it: only then all it sends has noise")
    if run.held_out:
        raise ValueError("private: held_out scores models on clients, which has no noise: set held_out=0")
    if run.rounds.save_every != 1:
        raise ValueError(
            "private: a round that is repeated after a kill must find the release before it: set "
            "rounds.save_every=1"
        )
    if run.rounds.min_clients:
        raise ValueError(
            "private: a run that stops when few clients answer tells who answered: set "
            "rounds.min_clients=0 (a round without answers releases noise alone)"
        )
    if isinstance(private.clipping, EachLayerByNorm) and run.times.keys() & {"seed", "both"}:
        raise ValueError(
            "private: each_layer_by_norm learns from the server's speech, and here clients have it, too: "
            "set data=federated, or use clipping=each_layer"
        )
    _check_secure(private, run)


def _check_secure(private: Any, run: Any) -> None:
    """Refuse secure aggregation that does not fit the clipping or the noise."""
    secure, has_shares = run.secure_aggregation, isinstance(private.noise, Distributed)
    if has_shares and not secure:
        raise ValueError(
            "private: distributed noise is added by clients, in shares that are too little for each of them "
            "alone: set secure_aggregation={}"
        )
    if bool(secure) != private.trusts_clients:
        raise ValueError(
            "private: with secure_aggregation, the server sees no single update and cannot clip it "
            "again, so set trusts_clients=true; without, set trusts_clients=false"
        )
    if secure and isinstance(private.clipping, AdaptiveUpdate):
        raise ValueError(
            "private: adaptive_update counts the updates within its bound, and with secure_aggregation "
            "the server sees none of them: use another clipping"
        )
    if secure and not has_shares and secure.bound > private.clipping.bound:
        raise ValueError(
            "private: a clipped update has no entry above clipping.bound, and a finer grid rounds less: "
            f"set secure_aggregation.bound to {private.clipping.bound:g} or less"
        )
    if has_shares and private.noise.colluding >= secure.needed(run.rounds.cohort):
        raise ValueError(
            f"private: sums of {secure.needed(run.rounds.cohort)} clients are opened, and "
            f"{private.noise.colluding} of them may collude: nobody is left whose noise counts"
        )


def check_source_of_shares(private: Any, is_away: bool) -> None:
    """Refuse shares of noise from a source that does not fit the place of the clients."""
    if not isinstance(private.noise, Distributed) or private.simulated != is_away:
        return
    if is_away:
        raise ValueError(
            "private: sites draw distributed noise themselves, not from a seed: set simulated=false"
        )
    raise ValueError(
        "private: clients in one place have no noise that the server could not know: set simulated=true for "
        "distributed noise, or leave it to a federation"
    )


def why_unbounded(part: Any, has_shares: bool) -> str:
    """Return why one client's influence on a round has no bound that noise could hide; "" if it has one."""
    if getattr(part, "collects", False):
        return "it combines single updates in several ways, so its result has no bounded sensitivity"
    if getattr(part, "trains_on_server", False):
        return "it trains on all speech in one place, without updates that could be clipped"
    if reason := getattr(part, "unbounded", ""):
        return str(reason)
    weighting = getattr(part, "weighting", None)
    if has_shares and not isinstance(weighting, Uniform | None):
        return "clients add distributed noise before they are weighed: set weighting=uniform"
    if isinstance(weighting, ByExamples) and not weighting.max_utterances:
        return "the number of utterances has no cap: set weighting.max_utterances, or weighting=uniform"
    if weighting is not None and not largest_weight(weighting):
        return (
            f"the weighting {choice_name(type(weighting))} depends on what clients report, and one client "
            "can have any influence: set weighting=uniform"
        )
    return ""
