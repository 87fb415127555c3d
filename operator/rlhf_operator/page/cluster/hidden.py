"""The error of data that cannot be shown to a viewer."""


class Hidden(Exception):
    """Figures and samples of a job cannot be shown to this viewer; the text says why, and what to do."""
