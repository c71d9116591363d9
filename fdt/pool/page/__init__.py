"""Shows the pool in a browser, with a button that cancels a job. The package needs the extra `page`."""
