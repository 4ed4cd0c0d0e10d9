"""The text values that rows are filled with: single words out of modest lists, shared between the databases.

A small policy must be able to copy each of them as one token, so the lists are few and no value has a space.
"""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE = _words(
    "Ada Alan Alma Amir Anna Anton Bella Boris Carla Carlos Clara Colin Dana David Diego Dora Edgar Elena Elsa Emil "
    "Erik Eva Felix Fiona Frank Gina Gloria Hanna Hector Helga Hugo Ida Igor Irene Ivan Jana Jonas Julia Karim Kira "
    "Lara Leo Lena Lucas Luisa Marco Maria Maya Milo Nadia Nina Noah Olga Omar Oscar Paula Pedro Petra Rafael Rita "
    "Rosa Samir Sara Simon Sofia Tara Tomas Vera Victor Zoe"
)
PLACES = _words(
    "Abbey Alder Ashton Barrow Bayside Beacon Birch Bridge Brook Cedar Chapel Cliff Clover Corner Dale Eastgate Elm "
    "Fairview Fern Ford Garden Glen Grange Grove Harbor Haven Heath Hill Hollow Ivy Juniper Kings Lakeside Laurel "
    "Linden Maple Meadow Mill Moor Northgate Oak Orchard Park Pine Pond Quarry Ridge River Rowan Sandy Southgate "
    "Spring Station Stone Summit Terrace Valley Walnut Westgate Willow"
)
TITLES = _words(
    "Amber Anchor Apollo Arrow Atlas Aurora Blaze Bronze Canyon Castle Comet Compass Copper Coral Cosmos Crown "
    "Crystal Dawn Delta Diamond Dragon Dream Eagle Echo Eclipse Ember Falcon Feather Flame Fortune Galaxy Ghost "
    "Glory Horizon Hunter Island Jade Journey Legend Lion Lotus Magnet Marble Mercury Mirror Mosaic Nova Ocean Onyx "
    "Opal Orion Pearl Phoenix Pioneer Prism Raven Riddle Rocket Ruby Safari Shadow Silver Spark Spirit Storm Sunset "
    "Tiger Titan Vertex Voyage"
)
COUNTRIES = _words("Brazil Canada Chile Egypt France Germany India Italy Japan Kenya Mexico Norway Peru Spain")
CITIES = _words("Athens Berlin Boston Cairo Dublin Geneva Lima London Madrid Oslo Paris Rome Sydney Tokyo Vienna")
COLORS = _words("black blue brown gray green orange red white yellow")
GENRES = _words("comedy crime drama fantasy history horror mystery romance science western")
