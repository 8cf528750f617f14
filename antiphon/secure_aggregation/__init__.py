"""Secure aggregation: the server learns the weighted mean of a cohort, and no single update.

K. Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, figure
4, against an honest-but-curious server (without signatures and the consistency check).

| paper                          | here                                                                     |
| ------------------------------ | ------------------------------------------------------------------------ |
| round 0, AdvertiseKeys, U1     | step "work": train, then send the report and two public keys             |
| round 1, ShareKeys, U2         | step "share": Shamir shares of b_u and s_u^SK, encrypted for each peer   |
| round 2, MaskedInputCollection | step "mask": weigh, round, add the masks in the ring of 2^32; U3         |
| round 4, Unmasking             | step "reveal": shares of b_v for v in U3, of s_v^SK for v in U2 \\ U3     |
| KA, KDF, PRG, AE               | X25519, HKDF-SHA256, ChaCha20, ChaCha20-Poly1305                         |
| field F, threshold t           | integers modulo 2^256 + 297; t > n/2, at least 3                         |

Threat model. The server follows the protocol and is curious. It may know the secrets of fewer than t clients
of the cohort; it then learns the mean of the others. Channels are authenticated (TLS). An active server
could replace public keys or tell clients different things; against it the paper adds signatures, a
consistency check and t > 2n/3.

Not protected:

- reports (loss, number of utterances, ...), and who takes part and who drops out at which step;
- weights, which all members of a round see; a DGA weight is a loss up to a constant;
- the mean itself. It says much about a client in a small cohort or with a large weight (`max_share`); noise
  protects it, secure aggregation does not (clients can add it themselves: `tasks.noised_update`);
- the sum from a malicious client: nobody sees its update, so only the client itself checks the range.

Deviations. Weights are decided after the reports, before the masks. A seed comes with its SHA-256 digest, so
that wrong shares are noticed. A client answers "reveal" once for an update, because two sums over the same
updates can reveal single ones. The same four requests get the same four answers, so that a run can be
resumed. All pairs of clients share a mask; for large cohorts see the k-regular graphs of J. H. Bell et al.,
CCS 2020.
"""
