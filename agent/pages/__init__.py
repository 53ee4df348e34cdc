"""Read web pages for a purpose: the tool `crawl_page` and the routes of services that read pages."""
