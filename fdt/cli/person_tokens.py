"""`fdt token`: makes, lists and revokes the tokens of the persons who use a pool."""

import datetime
import sys
import time
from pathlib import Path

from fdt.base import user_folder
from fdt.base.printable import printable
from fdt.cli.options import Token
from fdt.cli.pool_commands import aligned
from fdt.cli.settings import state_folder
from fdt.errors import UsageError
from fdt.pool import token_file
from fdt.pool.state_folder import TOKENS


def token(options: Token) -> int:
    """Runs `fdt token`; returns the exit status."""
    path = _file(options)
    if options.action == "list":
        print("\n".join(_listed(path)))
        return 0
    assert options.name is not None, "`fdt.cli.combinations` checks this"
    if options.action == "revoke":
        token_file.revoke(path, options.name)
        print(f"{options.name}: revoked")
        return 0
    print(token_file.add(path, options.name, time.time(), options.expires), flush=True)
    about = f"this is {options.name}'s token, shown this once: for a file of mode 0600 that --token-file names"
    print(f"fdt: {about}. Its hash is in {path}", file=sys.stderr, flush=True)
    return 0


def _file(options: Token) -> Path:
    if options.tokens is not None:
        return options.tokens.absolute()
    folder, _ = state_folder(options)
    if folder is None:
        raise UsageError(
            "there is no state folder for the pool: expected --tokens FILE, or --state DIR as the pool has it"
        )
    try:
        user_folder.make(folder)
    except OSError as error:
        raise UsageError(f"the pool's state folder cannot be made: {error}. Expected another: --state DIR") from error
    complaint = user_folder.complaint(folder)
    if complaint is not None:
        raise UsageError(f"the pool's state folder holds its tokens, so it must be this user's alone: {complaint}")
    return folder / TOKENS


def _listed(path: Path) -> list[str]:
    found, now_s = token_file.read(path), time.time()
    if not found:
        return [f"nobody has a token of their own ({printable(str(path))})"]
    rows = [("NAME", "ADDED", "EXPIRES")]
    for each in found:
        end = "never" if each.expires_s is None else _date(each.expires_s)
        rows.append((each.name, _date(each.added_s), f"{end} (expired)" if each.is_expired(now_s) else end))
    return aligned(rows, right=())


def _date(time_s: float) -> str:
    return f"{datetime.datetime.fromtimestamp(time_s):%Y-%m-%d %H:%M}"
