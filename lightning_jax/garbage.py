"""Python's garbage collector, kept from looking at what lives as long as the process.

A full collection stops every thread while it goes through all objects. JAX and what else is imported make some 300,000
of them; on a busy machine that took 100 to 400 ms, in which no agent gets an answer.
"""

from __future__ import annotations

import gc


def spare_what_is_there() -> None:
    """Collect once, and leave what is alive now out of later collections. For programs: call it once, when all stands.

    What is alive now and part of a reference cycle is never freed, so a library has no business to call it.
    """
    gc.collect()
    gc.freeze()
