"""The databases of the embedded study, twenty walks of life in a fixed order."""

from __future__ import annotations

from experiments.spider.generate.domains_culture import CULTURE
from experiments.spider.generate.domains_trade import TRADE
from experiments.spider.generate.domains_world import WORLD
from experiments.spider.generate.schema import Domain

DOMAINS: tuple[Domain, ...] = (*CULTURE, *TRADE, *WORLD)
