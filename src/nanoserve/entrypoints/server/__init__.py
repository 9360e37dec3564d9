"""The server as a process: its sockets, its start and start-up report, its signals and its end."""
