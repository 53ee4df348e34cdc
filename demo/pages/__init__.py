"""A sample world of web pages, whose design only a human knows who asks for them."""
