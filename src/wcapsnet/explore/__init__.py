"""The live page: draw or drop an image, see the routing.

answers.py     what the page may ask, answered in plain values; knows nothing of HTTP. Read first
favourites.py  one pass over the test images, in the background and kept
worker.py      one thread that computes, the newest question of a page before its older ones
server.py      HTTP on the loopback interface, and what it refuses
page/          HTML, CSS and JavaScript as the browser gets them
"""

from .answers import Explorer
from .server import Server

__all__ = ["Explorer", "Server"]
