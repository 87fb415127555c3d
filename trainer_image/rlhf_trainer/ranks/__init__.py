"""The ranks of a trainer, and its run as one of them sees it."""
