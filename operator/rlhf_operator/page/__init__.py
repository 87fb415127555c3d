"""The page over what runs leave behind: readers of their folders, a read-only JSON API, and its server on loopback."""
