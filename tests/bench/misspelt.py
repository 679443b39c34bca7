"""Texts to be edited: sentences of which a small model can correct the spelling, and keeps the rest.

Two texts have some sentences in common, as versions of a document have.
"""

import random

_SENTENCES_OF_A_TEXT = 8
_MISTAKES = 3
_SENTENCES = """
Every spring the river floods the meadows behind the old mill.
My grandmother kept bees and sold the honey at the weekly market.
The library closes at six, but the reading room stays open until nine.
Farmers in this valley grow apples, pears and a few kinds of plums.
In winter the road over the pass is often blocked by snow for days.
The bakery on the corner has been run by the same family since 1921.
Two fishing boats were lost in the storm, and nobody has found them yet.
Children like to skate on the frozen pond when their lessons are over.
A narrow path leads from the station to the castle on top of the hill.
The museum shows tools that carpenters used three hundred years ago.
Our neighbour repairs clocks, radios and sometimes a broken bicycle.
Last summer the town council planted forty lime trees along the street.
The ferry takes an hour to cross, and longer when the wind is strong.
Musicians from all over the country come here for the festival in June.
The school was built of red brick and has a bell tower without a bell.
Tourists rarely visit the northern shore because the water is so cold.
He wrote most of his novels in a small hotel close to the harbour.
The glass factory employed half of the village before it burned down.
She teaches chemistry in the morning and coaches rowing after lunch.
The new bridge carries trains on its lower deck and cars above them.
Wolves have returned to the forest, which worries some of the shepherds.
The theatre was restored with money that the citizens had collected.
On clear nights you can see the lighthouse from more than twenty miles.
The doctor visits the island twice a week, weather permitting.
""".strip().splitlines()
_SHORT = 5  # letters of words that are never misspelt


def misspelt_text(chance: random.Random) -> str:
    """Sentences in any order, in some of whose longer words two letters have changed their places."""
    words = " ".join(chance.sample(_SENTENCES, _SENTENCES_OF_A_TEXT)).split(" ")
    for index in chance.sample([index for index, word in enumerate(words) if len(word) > _SHORT], _MISTAKES):
        words[index] = _misspelt(words[index], chance)
    return " ".join(words)


def _misspelt(word: str, chance: random.Random) -> str:
    place = chance.choice([each for each in range(1, len(word) - 2) if word[each] != word[each + 1]])
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]
