"""How much noise private updates need, what each round costs, and what an attacker finds."""

from dataclasses import replace

from antiphon.algorithms.private import Private
from antiphon.experiment.canary_audit import audit_updates
from antiphon.privacy.distributed_noise import Distributed
from antiphon.privacy.matrix_factorisation import prefix_error
from antiphon.privacy.participation import PoissonSampling, RoundRobin
from antiphon.privacy.update_accounting import Blt, epsilon_of
from antiphon.tasks.update_clipping import EachLayer

PLANS = {  # 100 clients, 10 of them in a round, 100 rounds
    "independent noise": Private(cohorts=RoundRobin(separation=10), bands=1),
    "correlated noise": Private(cohorts=RoundRobin(separation=10)),
    "noise with buffers": Private(cohorts=RoundRobin(separation=10), noise=Blt()),
    "noise of clients": Private(cohorts=RoundRobin(separation=10), noise=Distributed()),
    "secret samples": Private(cohorts=PoissonSampling(rate=0.1)),
}


def main() -> None:
    for name, settings in PLANS.items():
        private = replace(settings, rounds=100, cohort=10.0)
        spent = [epsilon_of((private.plan.cost(rounds),), private.delta) for rounds in (1, 10, 50, 100)]
        error = private.plan.deviation * prefix_error(private.plan.coefficients, 100)
        print(f"{name}: error of the model {error:.1f} bounds; epsilon", *(f"{value:.2f}" for value in spent))
    settings = Private(epsilon=3.0, clipping=EachLayer(bound=0.3), cohorts=RoundRobin(separation=2))
    found = audit_updates(replace(settings, rounds=4, cohort=10.0), num_canaries=5000)
    found_by = f"{found.at_least:.2f} from one run, {found.cosine.low:.2f} by cosines"
    print(f"audit: claimed {found.claimed:.2f}, at least {found_by}")


if __name__ == "__main__":
    main()
