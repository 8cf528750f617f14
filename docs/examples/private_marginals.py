import numpy as np
import torch

from antiphon.algorithms.fmp import Fmp, background_params
from antiphon.core import Stopped
from antiphon.personalisation.word_cache import Cache, MarginalWorker
from antiphon.pools.local import LocalPool
from antiphon.privacy.accounting import Budget, Renyi
from antiphon.privacy.ledger import Ledger
from antiphon.privacy.mechanisms import CapL2, gaussian_for
from antiphon.privacy.release import PrivateRelease

background = torch.full((50,), 1 / 50, dtype=torch.float64)  # of a vocabulary of 50 words
words = np.random.default_rng(0).zipf(1.5, (500, 200)).clip(max=50) - 1  # 500 clients say 200 words each
caches = {f"client{place}": Cache().plus(said, np.ones(200)) for place, said in enumerate(words)}

budget = Budget(epsilon=2.0, delta=1e-5)  # for a client, all rounds together
cap = CapL2(limit=20.0)  # on the client
noise = gaussian_for(cap.limit, budget, rounds=3)
server = Fmp(release=PrivateRelease(noise, Ledger(budget, Renyi()), background))
pool = LocalPool(MarginalWorker(caches, 50, cap))

state = server.init(background_params(background))
try:
    while True:
        state, metrics = server.round(state, sorted(caches), pool)
        print(f"round {state.round}: epsilon {metrics['epsilon']:.2f} of {budget.epsilon} spent")
except Stopped as reason:
    print(reason)
