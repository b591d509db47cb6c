"""The private prior: one release of sufficient statistics, from which every agent learns what all objectives share.

Hierarchical model in the shared features phi, ||phi(x)|| = 1, of agent n:

    f_n(x) = c_n + phi(x) . (g + h_n),    g ~ N(0, diag(v)),    h_n ~ N(0, diag(tau)),    y = f_n(x) + N(0, lam)

model: its settings. statistics: the agents' message. inference: the posterior of g given the noisy sum, which
`dpfbo.federated.prior_server` broadcasts. transfer: an agent's own Thompson sampling with that posterior as its prior.
"""
