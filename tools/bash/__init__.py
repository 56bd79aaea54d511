"""What a shell command would do, found by structure: parsed, expanded, and looked up in tables.

`classify.classify` is the door; `env.HARDENED_ENV` is what the shell tool must export for its
answers to hold.
"""
