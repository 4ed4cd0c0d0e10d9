"""Databases about trade and work: shops, companies, banks, hotels, restaurants, cars, houses."""

from __future__ import annotations

from experiments.spider.generate.schema import Domain, Table, category, integer, key, label, link, real
from experiments.spider.generate.values import CITIES, COLORS, COUNTRIES, PEOPLE, PLACES, TITLES

SHOP = Domain(
    "shop",
    (
        Table(
            "suppliers",
            (("supplier", "suppliers"), ("vendor", "vendors")),
            (
                key("supplier_id"),
                label("supplier_name", TITLES, "name"),
                category("country", COUNTRIES[:6], where="from {}"),
                integer("founded", 1960, 2020, 1, "founding year", more="founded after", less="founded before"),
            ),
            24,
        ),
        Table(
            "products",
            (("product", "products"), ("item", "items")),
            (
                key("product_id"),
                label("product_name", TITLES, "name"),
                link("supplier_id", "suppliers", "delivered", "delivered by"),
                category("color", COLORS[:6], "colour", where="in {}"),
                integer("price", 100, 990, 10, "cost", most="most expensive", least="cheapest"),
                integer("stock", 1, 99, 1, "units in stock", "stock level"),
            ),
            54,
        ),
        Table(
            "sales",
            (("sale", "sales"), ("purchase", "purchases")),
            (
                key("sale_id"),
                link("product_id", "products", "had", "of"),
                category("payment", ("card", "cash", "cheque", "transfer"), "payment method", where="paid by {}"),
                integer("quantity", 1, 60, 1, "amount sold", "number of units", most="largest", least="smallest"),
            ),
            58,
        ),
    ),
)

COMPANY = Domain(
    "company",
    (
        Table(
            "departments",
            (("department", "departments"), ("division", "divisions")),
            (
                key("department_id"),
                label("dept_name", PLACES, "department name", "name"),
                category("city", CITIES[6:12], "location", where="in {}"),
                integer("budget", 100, 990, 10, "yearly budget", most="best funded"),
            ),
            22,
        ),
        Table(
            "employees",
            (("employee", "employees"), ("worker", "workers")),
            (
                key("employee_id"),
                label("name", PEOPLE),
                link("department_id", "departments", "employed", "working in"),
                category("job", ("analyst", "clerk", "engineer", "manager", "lawyer", "designer"), "job title"),
                integer("salary", 1000, 9900, 100, "pay", most="best paid", least="worst paid"),
                integer("hired", 1995, 2024, 1, "year of hire", more="hired after", less="hired before"),
            ),
            60,
            person=True,
        ),
        Table(
            "projects",
            (("project", "projects"),),
            (
                key("project_id"),
                label("title", TITLES, "project name"),
                link("employee_id", "employees", "led", "led by"),
                integer("weeks", 1, 60, 1, "length in weeks", most="longest", least="shortest"),
            ),
            40,
        ),
    ),
)

BANK = Domain(
    "bank",
    (
        Table(
            "branches",
            (("branch", "branches"), ("bank office", "bank offices")),
            (
                key("branch_id"),
                label("branch_name", PLACES, "name"),
                category("city", CITIES[:6], where="in {}"),
                integer("opened", 1960, 2020, 1, "opening year", more="opened after", less="opened before"),
            ),
            22,
        ),
        Table(
            "clients",
            (("client", "clients"), ("customer", "customers")),
            (
                key("client_id"),
                label("name", PEOPLE),
                link("branch_id", "branches", "served", "served by"),
                category("status", ("basic", "gold", "premium", "student"), "client status"),
                integer("age", 18, 80, 1, more="older than", less="younger than", most="oldest", least="youngest"),
            ),
            50,
            person=True,
        ),
        Table(
            "accounts",
            (("account", "accounts"),),
            (
                key("account_id"),
                link("client_id", "clients", "owned", "owned by"),
                category("currency", ("dollar", "euro", "franc", "peso", "yen"), where="in {}"),
                integer("balance", 100, 9900, 100, "amount of money"),
            ),
            60,
        ),
    ),
)

HOTELS = Domain(
    "hotels",
    (
        Table(
            "hotels",
            (("hotel", "hotels"), ("inn", "inns")),
            (
                key("hotel_id"),
                label("hotel_name", PLACES, "name"),
                category("city", CITIES[8:14], where="in {}"),
                integer("stars", 1, 5, 1, "number of stars", "star rating"),
            ),
            26,
        ),
        Table(
            "rooms",
            (("room", "rooms"), ("hotel room", "hotel rooms")),
            (
                key("room_id"),
                link("hotel_id", "hotels", "offered", "offered by"),
                category("view", ("garden", "lake", "sea", "street", "yard"), "outlook", where="with view {}"),
                integer("beds", 1, 6, 1, "number of beds", "bed count"),
                integer("price", 100, 990, 10, "nightly rate", most="most expensive", least="cheapest"),
            ),
            58,
        ),
    ),
)

RESTAURANTS = Domain(
    "restaurants",
    (
        Table(
            "chefs",
            (("chef", "chefs"), ("cook", "cooks")),
            (
                key("chef_id"),
                label("name", PEOPLE),
                category("country", COUNTRIES[6:12], "home country", where="from {}"),
                integer(
                    "experience", 1, 40, 1, "years of experience", most="most experienced", least="least experienced"
                ),
            ),
            24,
            person=True,
        ),
        Table(
            "dishes",
            (("dish", "dishes"), ("meal", "meals")),
            (
                key("dish_id"),
                label("dish_name", TITLES, "name"),
                link("chef_id", "chefs", "created", "created by"),
                category("course", ("breakfast", "dessert", "salad", "soup", "starter"), "menu section"),
                integer("price", 5, 99, 1, "cost", most="most expensive", least="cheapest"),
                integer("calories", 100, 990, 10, "energy", "calorie count"),
            ),
            54,
        ),
    ),
)

CARS = Domain(
    "cars",
    (
        Table(
            "makers",
            (("maker", "makers"), ("manufacturer", "manufacturers")),
            (
                key("maker_id"),
                label("maker_name", TITLES, "name"),
                category("country", COUNTRIES[4:10], "home country", where="from {}"),
                integer("plants", 1, 40, 1, "number of plants", "factory count"),
            ),
            22,
        ),
        Table(
            "cars",
            (("car", "cars"), ("vehicle", "vehicles")),
            (
                key("car_id"),
                label("model", TITLES, "model name"),
                link("maker_id", "makers", "built", "built by"),
                category("color", COLORS[2:8], "colour", where="painted {}"),
                integer("horsepower", 100, 990, 10, "engine power", most="strongest", least="weakest"),
                integer("weight", 900, 9900, 100, most="heaviest", least="lightest", more="heavier than"),
                integer("year", 1990, 2024, 1, "year of the model"),
            ),
            58,
        ),
    ),
)

HOUSES = Domain(
    "houses",
    (
        Table(
            "agents",
            (("agent", "agents"), ("broker", "brokers")),
            (
                key("agent_id"),
                label("name", PEOPLE),
                category("language", ("Arabic", "English", "French", "Hindi", "Spanish"), where="speaking {}"),
                real("commission", 1.1, 9.9, "fee", "commission rate"),
            ),
            22,
            person=True,
        ),
        Table(
            "houses",
            (("house", "houses"), ("home", "homes")),
            (
                key("house_id"),
                label("street", PLACES, "street name"),
                link("agent_id", "agents", "sold", "sold by"),
                category("heating", ("coal", "gas", "solar", "wood"), "type of heating", where="heated by {}"),
                integer("rooms", 1, 12, 1, "number of rooms", "room count"),
                integer("area", 100, 990, 10, "floor space", most="largest", least="smallest"),
                integer("price", 1000, 9900, 100, "cost", most="most expensive", least="cheapest"),
            ),
            56,
        ),
    ),
)

TRADE = (SHOP, COMPANY, BANK, HOTELS, RESTAURANTS, CARS, HOUSES)
