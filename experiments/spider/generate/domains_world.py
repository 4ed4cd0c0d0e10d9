"""Databases about sport, health, travel, nature and the state."""

from __future__ import annotations

from experiments.spider.generate.schema import Domain, Table, category, integer, key, label, link
from experiments.spider.generate.values import CITIES, COUNTRIES, PEOPLE, PLACES, TITLES

FOOTBALL = Domain(
    "football",
    (
        Table(
            "team",
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
            "player",
            (("player", "players"), ("athlete", "athletes")),
            (
                key("player_id"),
                label("name", PEOPLE),
                link("team_id", "team", "employed", "playing for"),
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
            "doctor",
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
            "patient",
            (("patient", "patients"),),
            (
                key("patient_id"),
                label("patient_name", PEOPLE, "name"),
                link("doctor_id", "doctor", "treated", "treated by"),
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
            "airline",
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
            "flight",
            (("flight", "flights"),),
            (
                key("flight_id"),
                link("airline_id", "airline", "operated", "operated by"),
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
            "keeper",
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
            "animal",
            (("animal", "animals"),),
            (
                key("animal_id"),
                label("nickname", TITLES, "name"),
                link("keeper_id", "keeper", "fed", "fed by"),
                category("species", ("bear", "lion", "monkey", "parrot", "snake", "zebra"), "kind of animal"),
                integer("weight", 1, 99, 1, most="heaviest", least="lightest", more="heavier than"),
                integer("birth_year", 1990, 2024, 1, "year of birth", more="born after", less="born before"),
            ),
            58,
        ),
    ),
)

FARMS = Domain(
    "farms",
    (
        Table(
            "farm",
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
            "harvest",
            (("harvest", "harvests"),),
            (
                key("harvest_id"),
                link("farm_id", "farm", "had", "of"),
                category("crop", ("barley", "corn", "potato", "rice", "wheat"), "plant", where="of {}"),
                integer("harvest_year", 2005, 2024, 1, "year of harvest", more="after", less="before"),
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
            "state",
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
            "town",
            (("town", "towns"), ("city", "cities")),
            (
                key("town_id"),
                label("town_name", PLACES, "name"),
                link("state_id", "state", "contained", "lying in"),
                integer("elevation", 100, 990, 10, "height above sea level", most="highest", least="lowest"),
                integer("founded", 1960, 2020, 1, "founding year", more="founded after", less="founded before"),
            ),
            54,
        ),
        Table(
            "river",
            (("river", "rivers"), ("stream", "streams")),
            (
                key("river_id"),
                label("river_name", TITLES, "name"),
                link("state_id", "state", "held", "flowing through"),
                integer(
                    "length", 100, 990, 10, most="longest", least="shortest", more="longer than", less="shorter than"
                ),
            ),
            40,
        ),
        Table(
            "mayor",
            (("mayor", "mayors"),),
            (
                key("mayor_id"),
                label("name", PEOPLE),
                link("town_id", "town", "elected", "elected in"),
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
            "trainer",
            (("trainer", "trainers"), ("coached", "coaches")),
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
            "member",
            (("member", "members"), ("guest", "guests")),
            (
                key("member_id"),
                label("name", PEOPLE),
                link("trainer_id", "trainer", "coached", "coached by"),
                category("level", ("beginner", "advanced", "expert", "master"), "skill level"),
                integer("age", 16, 80, 1, more="older than", less="younger than", most="oldest", least="youngest"),
                integer("join_year", 2005, 2024, 1, "year of joining", more="joined after", less="joined before"),
            ),
            58,
            person=True,
        ),
    ),
)

WORLD = (FOOTBALL, HOSPITAL, FLIGHTS, ZOO, FARMS, COUNTRY, GYM)
