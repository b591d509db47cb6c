"""Templates of the files that `init` writes."""

OBJECTIVE = '''"""The objective of this site: fill in `evaluate`."""


def evaluate(configuration):
    """Return the score of a configuration, a number; {better} is better.

    Return None if there is no score, for example if the training diverged. After an exception the site stops, and
    evaluates the same configuration again when it is started again.

    Args:
        configuration: The values by name: {names}.
    """
    raise NotImplementedError("fill in evaluate() in objective.py")
'''

APP = """[project]
name = "dpfbo-study"
version = "1.0.0"
description = "A study of dpfbo over Flower. The code is in the installed package."
license = "Apache-2.0"
dependencies = ["flwr>=1.42,<1.43"]

[tool.flwr.app]
publisher = "dpfbo"

[tool.flwr.app.components]
serverapp = "runners.deploy.flower.server_app:app"
clientapp = "runners.deploy.flower.client_app:app"

[tool.flwr.app.config]
"""

OPERATOR = """# The operator's part

1. Install on this machine: `pip install 'dpfbo[flower]'`. Keep this folder: it holds the study, and later the ledger.
2. Ask every site to install the software and to send you the file `public.json` that `dpfbo deploy site-key` writes.
3. Add each site: `dpfbo deploy roster add {project} --agent 0 --keys public.json --name "first clinic"`.
4. Read the fingerprint to the site by telephone: `dpfbo deploy roster show {project}`. It must be the same there.
5. When the roster is complete, send each site the folder `for_sites`, which is public.
6. Open port {port} of {host} for incoming HTTPS. The sites need no open port.
7. Start the server: `dpfbo deploy server {project}`. After an interrupt or a crash give the same command again.
8. With `--step-timeout 3600` the server goes on without sites that stay silent for an hour, if enough have answered.
9. See who is in which phase: `dpfbo deploy status {project}`.
10. The server ends when every site has what it needs. {trust}
"""

SITE = """# A site's part

1. Install: `pip install 'dpfbo[flower]'`. You need Python 3.11 or later, and outgoing HTTPS.
2. Make your keys: `dpfbo deploy site-key FOLDER`. Send `FOLDER/public.json` to the operator, and no other file.
3. Compare the fingerprint that the command printed with the one that the operator reads to you.
4. Copy the files of `for_sites`, which the operator sends you, into FOLDER: study, roster, certificate, objective.
5. Write your objective: the function `evaluate` in `FOLDER/objective.py`. It runs on your machine alone.
6. Start: `dpfbo deploy site FOLDER`. After an interrupt or a crash give the same command again: no value is lost.
7. The site makes {evaluations} evaluations, waits for the server after the first {n_init}, and ends with the study.
8. See where it stands: `dpfbo deploy status FOLDER`.
9. The best configuration, your epsilon and your ledger: `dpfbo deploy result FOLDER`. They stay with you.
10. Keep FOLDER secret, and never start a copy of it: restore a backup only if the folder is lost.
"""

UNTRUSTED = "Of the sites' messages it learns only the noisy sum: nobody need trust it."
TRUSTED = "It sees the sites' messages: the sites must trust it."
