"""Names of generated code: random compounds, of pieces that the other split never sees.

A piece is an English word or a pseudo-word of random syllables. A hash decides for each piece
whether it belongs to the training split or to the held-out one, so no name of one split shares a
piece with a name of the other, whatever the seeds.
"""

from __future__ import annotations

import hashlib
import keyword
import random
import re
from typing import Literal

Split = Literal["train", "test"]
Style = Literal["function", "class", "constant", "module", "variable"]

HELD_OUT = 4
"""One piece in four belongs to the held-out split."""

WORDS = tuple(
    """
    account anchor apple arrow badge barrel basket beacon binder blanket border bottle branch
    bridge bronze bucket budget bundle button cabin cable camera candle canvas cargo carpet castle
    cellar chain channel chapter cherry circle client clock cloud clover coach coast column comet
    copper corner cotton course cradle crane credit crown crystal curtain cycle dealer degree depot
    desert device dinner dragon drawer driver eagle earth editor engine event falcon farmer feather
    fence ferry fiber field filter finger flame flight floor flower folder forest fossil frame
    freight garden gate glacier glass globe grain granite grape gravel guard guest guitar habit
    hammer handle harbor hazel heater helmet hill honey horizon hotel island ivory jacket jungle
    kettle kitchen ladder lagoon lamp lantern leaf ledger lemon lever library linen lion lobby
    locker lumber magnet mango maple marble margin market meadow member metal meter mirror mission
    mixer motor mountain museum needle nickel ocean olive onion orbit orchard oven owner oyster
    paddle panel paper parcel parrot pasture patrol pebble pepper permit piano pigeon pillow pilot
    planet player pocket pond portal powder prairie printer prism pulse puzzle quarry rabbit radar
    rail raven reader record reef ribbon ridge river robin rocket roof rope saddle sailor salmon
    sample saturn scale school screen season sector seed senate shadow shelf shield signal silver
    sketch socket spider spoon spring square stable statue storm stream student studio summit
    sunset tablet tailor temple theater thunder ticket tiger timber tower tractor trade trail
    tulip tunnel turtle valley vector velvet vendor vessel village violin visitor voyage wagon
    walnut warden water weaver whale wheel willow window winter wizard yard zebra
    """.split()  # noqa: SIM905 - words read best as words
)
VERBS = tuple(
    """
    align apply build carry check clean close count draw drop enter fetch fill find fold gather
    grow guide hold join keep lift link load mark match measure merge mix move open pack paint pick
    place plan press print pull push rank read roll route scan send shape share sort split stack
    start store sweep swap take trace track trim turn wash watch weigh wrap write
    """.split()  # noqa: SIM905 - words read best as words
)

_ONSETS = (*"bcdfghjklmnprstvwyz", *"bdfgklmnprstvz", "br", "ch", "dr", "fl", "gr", "pl", "sh", "st",
           "tr", "qu", "")  # fmt: skip
_NUCLEI = (*"aeiou", *"aeiou", "ai", "ea", "ee", "oa", "ou")
_CODAS = ("", "", "", "", "b", "d", "g", "l", "m", "n", "nd", "ng", "p", "r", "rk", "s", "sh", "st",
          "t", "x")  # fmt: skip


def split_of(piece: str) -> Split:
    """Which split a piece (lower case) belongs to."""
    held_out = hashlib.sha256(piece.encode()).digest()[0] % HELD_OUT == 0
    return "test" if held_out else "train"


class Names:
    """Fresh names for one repository: none contains another, and none is a word of Python."""

    def __init__(self, rng: random.Random, split: Split) -> None:
        self._rng = rng
        self._split: Split = split
        self._words = [word for word in WORDS if split_of(word) == split]
        self._verbs = [word for word in VERBS if split_of(word) == split]
        self._taken: set[str] = set()

    def piece(self) -> str:
        """One piece, half the time a pseudo-word."""
        if self._rng.random() < 0.5:
            return self._rng.choice(self._words)
        return self._pseudo_word()

    def _pseudo_word(self) -> str:
        rng = self._rng
        while True:
            syllables = rng.choice((1, 2, 2, 2, 2, 3))
            word = "".join(
                rng.choice(_ONSETS) + rng.choice(_NUCLEI) + rng.choice(_CODAS)
                for _ in range(syllables)
            )
            if 4 <= len(word) <= 8 and split_of(word) == self._split:
                return word

    def fresh(self, style: Style) -> str:
        """A name that has nothing to do with the ones given before."""
        while True:
            name = self._compound(style)
            if self._free(name):
                return name

    def alike(self, name: str) -> str:
        """A name that has a piece in common with `name`, at its beginning or its end.

        A name of one piece has nothing to share: then it is a name like any other.
        """
        rng = self._rng
        pieces = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
        if len(pieces) == 1:
            return self.fresh(
                "constant" if name.isupper() else "class" if name[0].isupper() else "function"
            )
        joint = "_" if "_" in name else ""
        while True:
            at = -1 if rng.random() < 0.7 else 0
            piece = self.piece()
            if name[0].isupper():
                piece = piece.upper() if name.isupper() else piece.capitalize()
            elif at == 0:
                piece = rng.choice(self._verbs)
            made = joint.join([*pieces[:-1], piece] if at else [piece, *pieces[1:]])
            if self._free(made):
                return made

    def _free(self, name: str) -> bool:
        """Take a name, if it has nothing to do with the others; False if it has."""
        low = name.lower()
        if keyword.iskeyword(low) or low in _RESERVED:
            return False
        if any(low in other or other in low for other in self._taken):
            return False
        self._taken.add(low)
        return True

    def _compound(self, style: Style) -> str:
        rng = self._rng
        match style:
            case "function":
                count = rng.choice((1, 1, 1, 2))
                verb = rng.choice(self._verbs) if rng.random() < 0.6 else self._pseudo_word()
                return "_".join([verb, *(self.piece() for _ in range(count))])
            case "class":
                return "".join(self.piece().capitalize() for _ in range(rng.choice((1, 2, 2))))
            case "constant":
                return "_".join(self.piece() for _ in range(rng.choice((1, 2, 2)))).upper()
            case "module":
                return "_".join(self.piece() for _ in range(rng.choice((1, 1, 1, 2))))
            case "variable":
                return self.piece()


_RESERVED = frozenset(
    """
    abs all any bool dict dir filter float format hash help id input int iter len list map max min
    next object open pow print range repr round set sorted str sum super tuple type vars zip self
    test tests unittest main init item items value total first second text key table count limit
    result entry left right amount size number name names data code string math json random time
    ast cmd copy queue select signal socket struct token trace types calendar sched shelve site
    stat statistics symbol turtle this enum array bisect operator
    """.split()  # noqa: SIM905 - words read best as words
)
