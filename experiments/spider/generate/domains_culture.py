"""Databases about culture: concerts, libraries, museums, films, games, schools."""

from __future__ import annotations

from experiments.spider.generate.schema import Domain, Table, category, integer, key, label, link, real
from experiments.spider.generate.values import CITIES, COUNTRIES, GENRES, PEOPLE, TITLES

CONCERTS = Domain(
    "concerts",
    (
        Table(
            "singers",
            (("singer", "singers"), ("vocalist", "vocalists")),
            (
                key("singer_id"),
                label("name", PEOPLE),
                category("country", COUNTRIES[:7], "home country", where="from {}"),
                integer("age", 18, 70, 1, more="older than", less="younger than", most="oldest", least="youngest"),
                integer("wealth", 100, 990, 10, "net worth", more="richer than", most="richest", least="poorest"),
            ),
            30,
            person=True,
        ),
        Table(
            "concerts",
            (("concert", "concerts"), ("show", "shows")),
            (
                key("concert_id"),
                link("singer_id", "singers", "gave", "given by"),
                category("city", CITIES[:7], where="in {}"),
                integer("year", 2001, 2024, 1, "concert year", more="after", less="before"),
                integer("attendance", 100, 990, 10, "audience size", "number of visitors", most="largest"),
            ),
            48,
        ),
    ),
)

LIBRARY = Domain(
    "library",
    (
        Table(
            "authors",
            (("author", "authors"), ("writer", "writers")),
            (
                key("author_id"),
                label("name", PEOPLE),
                category("nationality", COUNTRIES[3:10], "home country", where="from {}"),
                integer("born", 1960, 2004, 1, "year of birth", more="born after", less="born before"),
            ),
            28,
            person=True,
        ),
        Table(
            "books",
            (("book", "books"),),
            (
                key("book_id"),
                label("title", TITLES),
                link("author_id", "authors", "wrote", "written by"),
                category("genre", GENRES[:6], "kind of book", where="of genre {}"),
                integer("pages", 100, 990, 10, "page count", "number of pages", most="longest", least="shortest"),
                integer("published", 1960, 2024, 1, "year of publication", more="published after"),
            ),
            52,
        ),
        Table(
            "loans",
            (("loan", "loans"),),
            (
                key("loan_id"),
                link("book_id", "books", "had", "of"),
                label("reader", PEOPLE, "borrower"),
                integer("days", 1, 60, 1, "loan period", "number of days", most="longest", least="shortest"),
            ),
            56,
        ),
    ),
)

MUSEUM = Domain(
    "museum",
    (
        Table(
            "artists",
            (("artist", "artists"), ("painter", "painters")),
            (
                key("artist_id"),
                label("artist_name", PEOPLE, "name"),
                category("style", ("baroque", "cubist", "modern", "realist", "abstract", "gothic"), "art style"),
                integer("born", 1960, 2004, 1, "year of birth", more="born after", less="born before"),
            ),
            26,
            person=True,
        ),
        Table(
            "paintings",
            (("painting", "paintings"), ("picture", "pictures")),
            (
                key("painting_id"),
                label("title", TITLES),
                link("artist_id", "artists", "made", "made by"),
                category("material", ("oil", "ink", "chalk", "acrylic", "tempera"), "paint"),
                integer("width", 20, 99, 1, most="widest", least="narrowest", more="wider than"),
                integer("price", 100, 990, 10, "cost", most="most expensive", least="cheapest"),
            ),
            54,
        ),
    ),
)

FILMS = Domain(
    "films",
    (
        Table(
            "directors",
            (("director", "directors"), ("filmmaker", "filmmakers")),
            (
                key("director_id"),
                label("name", PEOPLE),
                category("country", COUNTRIES[5:12], "home country", where="from {}"),
                integer("awards", 0, 30, 1, "number of awards", "award count"),
            ),
            26,
            person=True,
        ),
        Table(
            "films",
            (("film", "films"), ("movie", "movies")),
            (
                key("film_id"),
                label("title", TITLES),
                link("director_id", "directors", "directed", "directed by"),
                category("genre", GENRES[3:9], "kind of film", where="of genre {}"),
                integer("released", 1980, 2024, 1, "year of release", more="released after", less="released before"),
                real("rating", 1.1, 9.9, "score", most="best rated", least="worst rated"),
                integer("budget", 100, 990, 10, "production cost"),
            ),
            56,
        ),
    ),
)

GAMES = Domain(
    "games",
    (
        Table(
            "studios",
            (("studio", "studios"), ("developer", "developers")),
            (
                key("studio_id"),
                label("studio_name", TITLES, "name"),
                category("city", CITIES[4:10], "location", where="in {}"),
                integer("staff", 100, 990, 10, "number of workers", "team size", most="largest", least="smallest"),
            ),
            24,
        ),
        Table(
            "games",
            (("game", "games"), ("video game", "video games")),
            (
                key("game_id"),
                label("title", TITLES),
                link("studio_id", "studios", "developed", "developed by"),
                category("platform", ("console", "mobile", "browser", "handheld", "desktop"), where="for {}"),
                real("score", 1.1, 9.9, "rating", most="best rated", least="worst rated"),
                integer("sales", 100, 990, 10, "copies sold", "number of sales"),
            ),
            56,
        ),
    ),
)

SCHOOL = Domain(
    "school",
    (
        Table(
            "teachers",
            (("teacher", "teachers"), ("instructor", "instructors")),
            (
                key("teacher_id"),
                label("name", PEOPLE),
                category("hometown", CITIES[2:8], "home town", where="from {}"),
                integer("age", 24, 66, 1, more="older than", less="younger than", most="oldest", least="youngest"),
            ),
            24,
            person=True,
        ),
        Table(
            "courses",
            (("course", "courses"), ("class", "classes")),
            (
                key("course_id"),
                link("teacher_id", "teachers", "taught", "taught by"),
                category("subject", ("algebra", "biology", "chemistry", "music", "physics", "sports"), "topic"),
                integer("credits", 1, 12, 1, "number of credits", "credit points"),
                integer("room", 100, 690, 10, "room number"),
            ),
            40,
        ),
        Table(
            "enrollments",
            (("enrollment", "enrollments"), ("registration", "registrations")),
            (
                key("enrollment_id"),
                link("course_id", "courses", "had", "in"),
                label("student", PEOPLE, "student name"),
                integer("grade", 1, 99, 1, "mark", most="best", least="worst"),
            ),
            60,
        ),
    ),
)

CULTURE = (CONCERTS, LIBRARY, MUSEUM, FILMS, GAMES, SCHOOL)
