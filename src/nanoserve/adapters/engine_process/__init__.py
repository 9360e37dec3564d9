"""An engine in another process (or thread): the host it runs in, the client that uses it, and the wire between them."""

import signal
from typing import Final

DUMP_SIGNAL: Final = signal.SIGUSR1
"""Makes the host write the stacks of all its threads to standard error, whatever it is stuck in."""
