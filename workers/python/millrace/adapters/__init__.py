"""Environments of other packages, unmodified, each by one file here that needs its package alone:

    millrace up RUN.toml --exec "python3 -m millrace.adapters gem textarena"
"""
