"""Formats errors of API calls as one line: the error, the cluster, the remedy."""

from ..kube.api_error import ApiError


def explain(error: ApiError, where: str) -> str:
    """Text of an API server's refusal, or missing reply; `where` names the cluster."""
    _, _, message = error.message.partition(": ")  # without the call
    message = " ".join(message.split()) or error.reason
    match error.status:
        case 0:
            return f"cannot reach {where}: {message}; is it up, and is that the cluster you mean?"
        case 401:
            return f"{where} does not accept your credentials ({message}); log in again"
        case 403 if error.lacks_right:
            return f"{message}; ask for the cluster's role `view` (to look) or `edit` in that namespace"
        case 403:
            return f"{where} refused it: {message}"
        case 409:
            return message
        case 415:
            return f"{where} is too old: it does not know server-side apply ({message}); Kubernetes 1.20 does"
        case 429:
            return f"{where} has too much to do ({message}); try again"
        case status if status >= 500:
            return f"{where} has failed: {status} {message}; try again, or look at the API server's logs"
        case status:
            return f"{where} refused it: {status} {message}"


def passing(error: ApiError) -> bool:
    """Transient: the same call may succeed later."""
    return error.status in (0, 429) or error.status >= 500
