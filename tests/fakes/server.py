"""Serve a script by hand: python tests/fakes/server.py tests/fakes/scripts/hello.json --port 0"""

import sys

from unabridged.agent.providers.scripted_server import main

if __name__ == "__main__":
    sys.exit(main())
