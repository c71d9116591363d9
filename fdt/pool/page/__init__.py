"""The pool's page: shows the pool in a browser, with a button that cancels a job. It needs the extra `page`."""
