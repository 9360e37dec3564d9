"""The server as a process: its sockets, its start and what that says, its signals and its end."""
