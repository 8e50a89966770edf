"""The live page: draw or drop an image, see the routing.

api.py         answers the page's requests in plain values, independent of HTTP. Read first
favourites.py  one pass over the test images, in the background, cached
worker.py      one thread that computes
server.py      HTTP on the loopback interface, and request checks
page/          HTML, CSS and JavaScript: app.js changes state.js, and one module renders each part of the page
"""

from .api import Explorer
from .server import Server

__all__ = ["Explorer", "Server"]
