"""Databases about sport, health, travel, nature and the state."""

from __future__ import annotations

from experiments.spider.generate.schema import Domain, Table, category, integer, key, label, link
from experiments.spider.generate.values import CITIES, COUNTRIES, PEOPLE, PLACES, TITLES

FOOTBALL = Domain(
    "football",
    (
        Table(
            "teams",
            (("team", "teams"), ("club", "clubs")),
            (
                key("team_id"),
                label("team_name", TITLES, "name"),
                category("city", CITIES[1:7], "home city", where="from {}"),
                integer("founded", 1960, 2020, 1, "founding year", more="founded after", less="founded before"),
            ),
            22,
        ),
        Table(
            "players",
            (("player", "players"), ("athlete", "athletes")),
            (
                key("player_id"),
                label("name", PEOPLE),
                link("team_id", "teams", "employed", "playing for"),
                category("position", ("defender", "forward", "keeper", "midfield"), "playing position"),
                integer("wage", 100, 990, 10, "weekly pay", most="best paid", least="worst paid"),
                integer("goals", 0, 60, 1, "number of goals", "goals scored"),
            ),
            60,
            person=True,
        ),
    ),
)

HOSPITAL = Domain(
    "hospital",
    (
        Table(
            "doctors",
            (("doctor", "doctors"), ("physician", "physicians")),
            (
                key("doctor_id"),
                label("doctor_name", PEOPLE, "name"),
                category(
                    "specialty", ("cardiology", "neurology", "pediatrics", "surgery", "radiology"), "medical field"
                ),
                integer("salary", 1000, 9900, 100, "pay", most="best paid", least="worst paid"),
            ),
            24,
            person=True,
        ),
        Table(
            "patients",
            (("patient", "patients"),),
            (
                key("patient_id"),
                label("patient_name", PEOPLE, "name"),
                link("doctor_id", "doctors", "treated", "treated by"),
                category("disease", ("asthma", "diabetes", "fever", "flu", "migraine"), "illness", where="with {}"),
                integer("age", 1, 90, 1, more="older than", less="younger than", most="oldest", least="youngest"),
                integer("weight", 40, 99, 1, most="heaviest", least="lightest", more="heavier than"),
            ),
            58,
            person=True,
        ),
    ),
)

FLIGHTS = Domain(
    "flights",
    (
        Table(
            "airlines",
            (("airline", "airlines"), ("carrier", "carriers")),
            (
                key("airline_id"),
                label("airline_name", TITLES, "name"),
                category("country", COUNTRIES[7:13], "home country", where="from {}"),
                integer("fleet", 5, 99, 1, "fleet size", "number of planes"),
            ),
            22,
        ),
        Table(
            "flights",
            (("flight", "flights"),),
            (
                key("flight_id"),
                link("airline_id", "airlines", "operated", "operated by"),
                category("origin", CITIES[:6], "departure city", where="from {}"),
                category("destination", CITIES[6:13], "arrival city", where="to {}"),
                integer("distance", 100, 990, 10, "length of the trip", most="longest", least="shortest"),
                integer("price", 100, 990, 10, "fare", most="most expensive", least="cheapest"),
            ),
            60,
        ),
    ),
)

ZOO = Domain(
    "zoo",
    (
        Table(
            "keepers",
            (("keeper", "keepers"), ("caretaker", "caretakers")),
            (
                key("keeper_id"),
                label("keeper_name", PEOPLE, "name"),
                category("shift", ("morning", "evening", "night", "weekend"), "working shift"),
                integer("age", 18, 65, 1, more="older than", less="younger than", most="oldest", least="youngest"),
            ),
            22,
            person=True,
        ),
        Table(
            "animals",
            (("animal", "animals"),),
            (
                key("animal_id"),
                label("nickname", TITLES, "name"),
                link("keeper_id", "keepers", "fed", "fed by"),
                category("species", ("bear", "lion", "monkey", "parrot", "snake", "zebra"), "kind of animal"),
                integer("weight", 1, 99, 1, most="heaviest", least="lightest", more="heavier than"),
                integer("born", 1990, 2024, 1, "year of birth", more="born after", less="born before"),
            ),
            58,
        ),
    ),
)

FARMS = Domain(
    "farms",
    (
        Table(
            "farms",
            (("farm", "farms"), ("estate", "estates")),
            (
                key("farm_id"),
                label("farm_name", PLACES, "name"),
                category("soil", ("clay", "loam", "peat", "sand"), "soil type"),
                integer("area", 100, 990, 10, "size", most="largest", least="smallest", more="larger than"),
            ),
            24,
        ),
        Table(
            "harvests",
            (("harvest", "harvests"),),
            (
                key("harvest_id"),
                link("farm_id", "farms", "had", "of"),
                category("crop", ("barley", "corn", "potato", "rice", "wheat"), "plant", where="of {}"),
                integer("year", 2005, 2024, 1, "year of harvest", more="after", less="before"),
                integer("tons", 1, 99, 1, "yield", "weight in tons"),
            ),
            56,
        ),
    ),
)

COUNTRY = Domain(
    "country",
    (
        Table(
            "states",
            (("state", "states"), ("province", "provinces")),
            (
                key("state_id"),
                label("state_name", TITLES, "name"),
                category(
                    "region", ("north", "south", "east", "west", "center"), "part of the country", where="in the {}"
                ),
                integer("population", 100, 990, 10, "number of people", most="most populous", least="least populous"),
                integer("area", 100, 990, 10, "size", most="largest", least="smallest"),
            ),
            30,
        ),
        Table(
            "towns",
            (("town", "towns"), ("city", "cities")),
            (
                key("town_id"),
                label("town_name", PLACES, "name"),
                link("state_id", "states", "contained", "lying in"),
                integer("elevation", 100, 990, 10, "height above sea level", most="highest", least="lowest"),
                integer("founded", 1960, 2020, 1, "founding year", more="founded after", less="founded before"),
            ),
            54,
        ),
        Table(
            "rivers",
            (("river", "rivers"), ("stream", "streams")),
            (
                key("river_id"),
                label("river_name", TITLES, "name"),
                link("state_id", "states", "held", "flowing through"),
                integer(
                    "length", 100, 990, 10, most="longest", least="shortest", more="longer than", less="shorter than"
                ),
            ),
            40,
        ),
        Table(
            "mayors",
            (("mayor", "mayors"),),
            (
                key("mayor_id"),
                label("name", PEOPLE),
                link("town_id", "towns", "elected", "elected in"),
                category("party", ("liberal", "labor", "conservative", "independent"), "political party"),
                integer("since", 2000, 2024, 1, "first year in office"),
            ),
            40,
            person=True,
        ),
    ),
)

GYM = Domain(
    "gym",
    (
        Table(
            "trainers",
            (("trainer", "trainers"), ("coach", "coaches")),
            (
                key("trainer_id"),
                label("name", PEOPLE),
                category("sport", ("boxing", "cycling", "rowing", "swimming", "yoga"), "kind of sport"),
                integer("wage", 10, 90, 1, "hourly pay", most="best paid", least="worst paid"),
            ),
            22,
            person=True,
        ),
        Table(
            "members",
            (("member", "members"), ("guest", "guests")),
            (
                key("member_id"),
                label("name", PEOPLE),
                link("trainer_id", "trainers", "coach", "coached by"),
                category("level", ("beginner", "advanced", "expert", "master"), "skill level"),
                integer("age", 16, 80, 1, more="older than", less="younger than", most="oldest", least="youngest"),
                integer("joined", 2005, 2024, 1, "year of joining", more="joined after", less="joined before"),
            ),
            58,
            person=True,
        ),
    ),
)

WORLD = (FOOTBALL, HOSPITAL, FLIGHTS, ZOO, FARMS, COUNTRY, GYM)
