"""Asks the model hub once whether it answers; where it does not, its cache on this machine is used alone."""

from huggingface_hub import constants, get_session

from rlhf_api.host.model_directory import HUB_SECONDS


def use_cache_if_unreachable() -> None:
    """Sets the equivalent of HF_HUB_OFFLINE=1 for the rest of the process: the hub's client would try again for over a
    minute, for each file. For commands that a person waits for; a role had better wait for a network that comes
    back."""
    if constants.is_offline_mode():
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS)
    except Exception:  # whichever HTTP library it has
        constants.HF_HUB_OFFLINE = True
