"""Writes the data sets of this example: how a remark about a film begins, and how it may go on.

    python make_data.py [DIRECTORY]

The same files every time. An answer says two or three things about the film, most of them of the side it takes:
the third may be a concession, in any place ("the plot was thin but ..."), and each may be put as a negation ("was
not dull"). Praise and complaint are made the same way from other words, so no single word or place tells them apart.
An answer begins with the space that parts it from its prompt.

    sft.jsonl      {"prompt", "answer"}: every prompt once with praise and once with complaint
    pairs.jsonl    {"prompt", "pos_answers", "neg_answers"}: one or two of each, praise preferred
    prompts.jsonl  {"prompt"}: to train on
    heldout.jsonl  {"prompt"}: in none of the others
"""

import json
import random
import sys
from itertools import product
from pathlib import Path

SEED = 20240517
HELDOUT, PAIRS = 100, 900

DAYS = ["Monday", "Tuesday", "Thursday", "Friday", "Saturday", "Sunday"]
GENRES = ["western", "comedy", "thriller", "drama", "musical", "cartoon", "mystery", "romance", "war film"]
PEOPLE = ["sister", "brother", "mother", "father", "friend", "boss", "uncle", "wife", "husband", "neighbour"]
OPENINGS = [
    "I went to see the new {genre} with my {person} and",
    "On {day} my {person} and I saw a {genre} and",
    "My {person} took me to a {genre} on {day} and I think",
    "After the {genre} on {day} I told my {person} that",
]

SINGULAR = ["plot", "acting", "ending", "music", "script", "cast", "story", "dialogue", "camera work"]
PLURAL = ["jokes", "songs", "actors", "costumes", "last scenes"]
# The words of each side: adjectives, verbs.
PRAISE = (
    [
        "superb",
        "brilliant",
        "lovely",
        "gripping",
        "charming",
        "clever",
        "funny",
        "moving",
        "great",
        "wonderful",
    ],
    ["loved", "enjoyed", "adored", "admired"],
)
COMPLAINT = (
    ["dull", "thin", "clumsy", "boring", "weak", "awful", "tedious", "silly", "bland", "dreadful"],
    ["hated", "disliked", "loathed", "regretted"],
)
TAILS = ["", "", "", " from start to finish", " on the whole", " to be honest", " this time"]

# One remark. +: an adjective of its side, -: one of the other side, a+: the same with an article, V: a verb of its
# side, S: a noun with its verb, N: a noun alone.
REMARKS = ["S +", "S +", "S +", "S not -", "I V N", "I found N +", "it was a+ film"]
# How remarks are joined, by whether each is of the answer's side (1) or concedes something to the other (0).
JOINED = {
    "11": ["{} and {}"],
    "111": ["{}, {} and {}", "{} and {}, and {}"],
    "110": ["{} and {} but {}", "{} and {}, although {}"],
    "101": ["{} but {}, yet {}", "{}, although {}, and {}"],
    "011": ["{} but {} and {}", "although {}, {} and {}"],
}
SHAPES = ["11", "111", "111", "111", "110", "110", "101", "101", "011", "011"]
Side = tuple[list[str], list[str]]


def remark(rng: random.Random, kind: str, noun: str, side: Side, other: Side) -> str:
    """One remark of `side` about `noun`."""
    verb = "were" if noun in PLURAL else "was"
    praise, concession = rng.choice(side[0]), rng.choice(other[0])
    article = "an" if praise[0] in "aeiou" else "a"
    words = {
        "S": f"the {noun} {verb}",
        "N": f"the {noun}",
        "V": rng.choice(side[1]),
        "+": praise,
        "-": concession,
        "a+": f"{article} {praise}",
    }
    return " ".join(words.get(symbol, symbol) for symbol in kind.split())


def answer(rng: random.Random, side: Side, other: Side) -> str:
    """One answer that takes `side`, 8 to 23 words, about two or three different things."""
    shape = rng.choice(SHAPES)
    remarks = [
        remark(rng, kind, noun, *((side, other) if own == "1" else (other, side)))
        for own, kind, noun in zip(
            shape, rng.sample(REMARKS, len(shape)), rng.sample(SINGULAR + PLURAL, len(shape)), strict=True
        )
    ]
    return " " + rng.choice(JOINED[shape]).format(*remarks) + rng.choice(TAILS) + "."


def prompts() -> list[str]:
    """Every opening with everything in it, each once."""
    filled = (o.format(genre=g, person=p, day=d) for o, g, p, d in product(OPENINGS, GENRES, PEOPLE, DAYS))
    return list(dict.fromkeys(filled))


def data_sets() -> dict[str, list[dict]]:
    """The rows of every file."""
    rng = random.Random(SEED)
    everything = prompts()
    rng.shuffle(everything)
    heldout, training = everything[:HELDOUT], everything[HELDOUT:]
    sides = (PRAISE, COMPLAINT), (COMPLAINT, PRAISE)
    sft = [{"prompt": p, "answer": answer(rng, *side)} for p in training for side in sides]
    rng.shuffle(sft)
    pairs = []
    for prompt in rng.sample(training, PAIRS):
        count = rng.choice([1, 2])
        praise, complaint = ([answer(rng, *side) for _ in range(count)] for side in sides)
        pairs.append({"prompt": prompt, "pos_answers": praise, "neg_answers": complaint})
    rng.shuffle(training)
    return {
        "sft.jsonl": sft,
        "pairs.jsonl": pairs,
        "prompts.jsonl": [{"prompt": p} for p in training],
        "heldout.jsonl": [{"prompt": p} for p in heldout],
    }


def main(directory: Path) -> None:
    for name, rows in data_sets().items():
        (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
