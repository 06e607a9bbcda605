"""Glossary of the program, in plain language. It imports next to nothing, so that an answer appears at once."""

from __future__ import annotations

from sordino.errors import unknown
from sordino.privacy.unit import Unit

WORDS: dict[str, str] = {
    "accuracy": (
        "The share of test records that a model gets right. Each client's models are judged on the client's own "
        "test records; what is printed is the mean over clients. A simulation measures it on raw records: no "
        "client of a deployment would send it."
    ),
    "attack": (
        "The accuracy of the best possible attacker who must tell whether one unit took part: 50% is guessing, "
        "100% is certainty. It says the same as epsilon, in a way that people can judge."
    ),
    "blend": (
        "With personal=blend a client predicts with a mixture of models: those that it trained alone, the "
        "server's, tuned to its records or adjusted to its labels, their mean over the rounds, and the method's "
        "own. It is weighed at the client, nothing of it leaves, and it costs no privacy. Given away, such a model "
        "is not protected."
    ),
    "budget": (
        "The epsilon that the protected observer may reach. A run computes its noise from the budget before it "
        "starts, so that the budget is reached after the last round and not exceeded."
    ),
    "client": (
        "One participant with its own data: a hospital, a phone, a sensor. Where clients are the unit, the "
        "guarantee is for all of a client's records together."
    ),
    "clipping": (
        "Scaling an update (or one record's gradient) down to a length of at most C, the threshold, so that noise "
        "of a known size can hide it. clipping=quantile lets the threshold find itself, privately."
    ),
    "cohort": (
        "The clients that are asked in one round: all of them, or the share that participation says. They take turns."
    ),
    "colluders": ("Clients that may tell an outsider which noise they added, so that it can be subtracted."),
    "delta": (
        "Roughly the chance that more is revealed than epsilon allows. It must be well below one over the "
        "number of protected units; a larger one is refused, because publishing one unit's whole data would "
        "satisfy it."
    ),
    "epsilon": (
        "How much anybody can learn about one unit (a client, or a record) from what leaves: with or without that "
        "unit, any outcome is at most e^epsilon times as likely, up to delta. 0 is nothing, 1 is strong, 8 is "
        "common in practice, 50 is hardly privacy. It always holds for an observer, a unit and a delta; see "
        "`sordino explain views`."
    ),
    "feasible": (
        "How many shared parameters can be trained at a budget: about (clients x mu) squared. With more, the sum "
        "of the updates drowns in noise; `sordino plan` says so before a run."
    ),
    "gate": ("The only exit of a client: whatever leaves is declared, bounded, noised and charged there."),
    "global": (
        "The server's model, as it is after the last round, without any client's own training. Methods with "
        "clusters have several."
    ),
    "identity": (
        "A hash of everything that decides a run's results. Runs of equal identity give equal numbers, and a "
        "comparison takes them from the store instead of running them again."
    ),
    "interval": (
        "Where the difference of two methods lies with 95% confidence, from the differences on each seed. Where "
        "it holds zero, no difference is shown."
    ),
    "ledger": (
        "The durable list of all that left, from which epsilon is computed. Every row is chained to those before "
        "it, so that a lost or changed one shows."
    ),
    "local": (
        "Training alone: nothing leaves a client, and it costs no privacy. It is the rival that any federation "
        "has to beat."
    ),
    "mu": (
        "The Gaussian measure of a budget: the best attacker sees two bell curves whose centres are mu deviations "
        "apart. Epsilon at a delta follows from it."
    ),
    "neighbours": (
        "The two worlds that epsilon compares: somebody who sees all that left can hardly tell in which of them they "
        f"are. Where clients are the unit: {Unit.CLIENT.neighbours}. Where records are: {Unit.RECORD.neighbours}. "
        f"Where persons are: {Unit.PERSON.neighbours}."
    ),
    "noise multiplier": (
        "The deviation of the noise over what one unit can change, for the protected observer, in one round. More "
        "is more private. It follows from the budget, or is given in place of it."
    ),
    "not covered": (
        "What epsilon does not speak of, such as labels that were read from the data or a personal model that its "
        "client gives away. A run lists it."
    ),
    "outsider": ("An observer who sees sums and published models, but no single message. See `sordino explain views`."),
    "paper": (
        "variant=paper is a mechanism as it was published, with its true epsilon printed beside it, infinity "
        "included. variant=sound, the default, is one whose epsilon holds."
    ),
    "participation": (
        "The share of clients in a round. Below 1, clients take turns, each pays for its own rounds, and "
        "accuracies while a run goes on are those of the clients that took part in the last round."
    ),
    "partition": (
        "How records are dealt to clients: natural (each record has an owner), iid, dirichlet:0.5 (skewed labels; "
        "the smaller, the more), shards:2, labels:20%, or a function of your own."
    ),
    "peer": ("Another client, who also knows its own share of the noise. See `sordino explain views`."),
    "person": (
        "Somebody whom rows of a client are about. Where a column with codes of persons is declared (`--person`, or "
        "`person` in a schema), methods that protect records protect persons instead: all rows of one contribute once "
        f"to a sum. Neighbours: {Unit.PERSON.neighbours}."
    ),
    "personal": (
        "The model with which a client predicts: trained from what the federation gave it on the client's own "
        "records. It stays at the client."
    ),
    "recalibrate": (
        "With personal=recalibrate a client predicts with the server's model, whose probabilities it has fitted to its "
        "own records by a slope and an offset for each class. A client with at least five records for each feature "
        "takes the mean with a model that it trained alone. Nothing of it leaves, and it costs no privacy. Given away, "
        "such a model is not protected."
    ),
    "record": (
        "One row of a client's data, as it was read: not one person, who may have several rows and pays for each. "
        "Where each client adds noise of its own, epsilon holds against the server too; where the clients share the "
        "noise of one sum (dp-fedsgd), each observer has an epsilon of its own. "
        f"Neighbours: {Unit.RECORD.neighbours}."
    ),
    "release": ("One kind of thing that leaves a client: its bound, its noise and its cost."),
    "replaced": (
        "At record level epsilon speaks of one record whose contents are replaced by nothing. For contents that are "
        "replaced by others, in the same place, the figure is larger; it is printed too."
    ),
    "round": ("The server sends a model, clients train and send what changed, the server takes the mean."),
    "secure sum": (
        "A protocol in which the server learns the sum of the clients' messages and none of them alone. Noise "
        "against outsiders is shared out over the cohort, so a deployment needs this or a trusted server."
    ),
    "seed": (
        "The number from which partition, initial model, batches and simulated noise are drawn. Methods with "
        "equal seeds meet equal data, so that they are compared seed by seed."
    ),
    "server": (
        "The party that asks clients and adds up. As an observer it sees every message. See `sordino explain views`."
    ),
    "sound": ("variant=sound: the epsilon that is printed holds. See `sordino explain paper`."),
    "spread": (
        "The standard deviation of a figure over seeds, printed after the mean. It says how much seeds differ. "
        "Whether two methods differ is said by the interval of their difference."
    ),
    "start": ("The accuracy of the model with which a client began the round, before it trained on its own records."),
    "store": ("The folder with all runs, their ledgers and models: .sordino, or what --store names."),
    "threshold": ("C, the length to which updates or gradients are clipped. See `sordino explain clipping`."),
    "unit": ("What the guarantee protects: a whole client, or one record of a client."),
    "views": (
        "Who is looking. The outsider sees sums and published models; a peer is another client and knows its own "
        "share of the noise; the server sees every message. Each has an epsilon of its own; --protect-from says "
        "for whom the budget is planned, and all are printed."
    ),
    "worst": ("The accuracy of the client that is worst off."),
}
"""Meaning of each word."""
ALIASES = {
    "view": "views",
    "observer": "views",
    "observers": "views",
    "blending": "blend",
    "recalibration": "recalibrate",
    "recalibrated": "recalibrate",
    "clip": "clipping",
    "variant": "paper",
    "noise": "noise multiplier",
    "noise-multiplier": "noise multiplier",
    "noise_multiplier": "noise multiplier",
    "best attack": "attack",
    "personal model": "personal",
    "global model": "global",
    "secure aggregation": "secure sum",
    "not-covered": "not covered",
    "protect-from": "views",
    "clients": "client",
    "records": "record",
    "neighbour": "neighbours",
    "row": "record",
    "rows": "record",
    "rounds": "round",
    "seeds": "seed",
    "ε": "epsilon",
    "δ": "delta",
    "μ": "mu",
    "dirichlet": "partition",
    "iid": "partition",
    "shards": "partition",
    "verdict": "interval",
}
"""Other spellings and synonyms, each with the word that explains it."""


def meaning(word: str) -> tuple[str, str]:
    """Look up a word; returns the word under which it is explained, and its meaning."""
    asked = " ".join(word.lower().split())
    found = ALIASES.get(asked, asked)
    if found not in WORDS:
        raise unknown("word in the glossary:", word, [*WORDS, *ALIASES])
    return found, WORDS[found]
