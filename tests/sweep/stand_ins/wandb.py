"""In the place of a service that keeps figures: it keeps none."""


class _Run:
    def __getattr__(self, name):
        return lambda *_, **__: None


run = _Run()


def init(*_, **__):
    return run


def log(*_, **__):
    pass


def finish(*_, **__):
    pass
