"""What Google's cloud tells a virtual machine about itself.

The server is link-local and answers on Google's machines only, so whoever asks
must have seen that this is one. It is asked by number: looking its name up could
take longer than any time limit here. cloud.google.com/compute/docs/metadata.
"""

from __future__ import annotations

from collections.abc import Mapping

_ADDRESS = "169.254.169.254"
_OTHER_ADDRESSES = ("GCE_METADATA_IP", "GCE_METADATA_HOST")
_NOT_TO_BE_ASKED = "TPU_SKIP_MDS_QUERY"
_SECONDS = 1.0


def attribute(env: Mapping[str, str], name: str) -> str | None:
    """The instance attribute `name`, None where there is none or nobody answers."""
    if env.get(_NOT_TO_BE_ASKED):
        return None
    # Only here: these take longer to import than all else that probing needs.
    import http.client
    import urllib.request

    given = (env[variable] for variable in _OTHER_ADDRESSES if env.get(variable))
    url = f"http://{next(given, _ADDRESS)}/computeMetadata/v1/instance/attributes/{name}"
    # No proxy leads to a link-local address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
        with opener.open(request, timeout=_SECONDS) as answer:
            return str(answer.read(1 << 20).decode("utf-8", errors="replace"))
    except (OSError, ValueError, http.client.HTTPException):
        return None
