"""The pool's page: what it knows, in a browser, and a button that cancels a job. It needs the extra `page`."""
