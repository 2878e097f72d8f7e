"""An MCP server of the official SDK, for tests: `calculator.py [JOURNAL]`.

Each call of `add` writes a line with the process's number into JOURNAL. The seventh call kills the process before it
answers.
"""

import os
import pathlib
import signal
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("calculator")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two whole numbers."""
    if sys.argv[1:]:
        journal = pathlib.Path(sys.argv[1])
        with journal.open("a") as file:
            file.write(f"{os.getpid()}\n")
        if len(journal.read_text().splitlines()) == 7:
            os.kill(os.getpid(), signal.SIGKILL)
    return a + b


@server.tool()
def divide(a: float, b: float) -> float:
    """Divides two numbers."""
    return a / b


if __name__ == "__main__":
    server.run()
