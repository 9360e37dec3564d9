"""The server's end: requests go to an engine elsewhere, replies come back, and an engine that dies is started again."""
