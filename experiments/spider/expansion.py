"""How far a query's common table expressions unfold, before SQLite is asked to unfold them.

SQLite copies the body of a common table expression at each place that names it, while it *prepares* the statement: no
time limit acts there. A chain in which each expression names the one before it twice doubles per link; 18 links
(700 characters) take 500 MB, 22 take 8 GB. The product of the numbers of uses bounds the copies from above.
"""

from __future__ import annotations

import math
from collections import Counter

from experiments.spider.lexer import Token, significant


def expansions(sql: str) -> int:
    """An upper bound of the copies SQLite makes of any table expression of `sql`; 1 where there is none."""
    tokens = significant(sql)
    if not any(token.is_word("with") for token in tokens):
        return 1
    names = {_name(tokens[i]) for i in range(len(tokens)) if _defines(tokens, i)}
    uses = Counter(
        _name(token)
        for i, token in enumerate(tokens)
        if token.kind in ("word", "quoted")
        and _name(token) in names
        and not _defines(tokens, i)
        and not (i + 1 < len(tokens) and tokens[i + 1].is_symbol("."))  # a qualifier of a column, no use
    )
    return math.prod(max(1, uses[name]) for name in names)


def _name(token: Token) -> str:
    return token.text.strip('"`[]').lower()


def _defines(tokens: list[Token], i: int) -> bool:
    """Whether token i is the name in `name [(columns)] AS [[NOT] MATERIALIZED] (`."""
    if tokens[i].kind not in ("word", "quoted"):
        return False
    j = i + 1
    if j < len(tokens) and tokens[j].is_symbol("("):
        while j < len(tokens) and not tokens[j].is_symbol(")"):
            j += 1
        j += 1
    if not (j < len(tokens) and tokens[j].is_word("as")):
        return False
    j += 1
    while j < len(tokens) and tokens[j].is_word("not", "materialized"):
        j += 1
    return j < len(tokens) and tokens[j].is_symbol("(")
